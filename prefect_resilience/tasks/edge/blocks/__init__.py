"""Policies as Prefect blocks: operators change them in the UI, and running workers apply the change."""

from prefect_resilience.tasks.edge.blocks.policy import ResiliencePolicy

__all__ = ["ResiliencePolicy"]
