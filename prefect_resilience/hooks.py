"""Hooks for tasks and flows of Prefect's own."""

from prefect_resilience.tasks.edge.hooks import dead_letter as dead_letter
