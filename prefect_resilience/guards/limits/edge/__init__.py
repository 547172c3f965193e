"""Prefect's API as limits reach it."""
