"""Resilient tasks and flows for Prefect."""
