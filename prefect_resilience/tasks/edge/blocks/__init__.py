"""Policies as Prefect blocks: an operator changes them in the UI, and running workers follow."""

from prefect_resilience.blocks.policy import ResiliencePolicy

__all__ = ["ResiliencePolicy"]
