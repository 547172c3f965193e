"""Compensations that run as Prefect tasks."""
