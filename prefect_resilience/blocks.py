"""Policies as Prefect blocks: an operator changes them in the UI, and running workers follow."""

from prefect_resilience.tasks.edge.policy_block import ResiliencePolicy as ResiliencePolicy
