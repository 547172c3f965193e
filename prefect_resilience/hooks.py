"""Hooks for plain Prefect tasks and flows."""

from prefect_resilience.tasks.edge.run_hooks import dead_letter as dead_letter
