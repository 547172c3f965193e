"""Replays that run as Prefect tasks, and the configured queue."""
