"""Retries and their delays."""

from prefect_resilience.guards.retries.backoff import Backoff
from prefect_resilience.guards.retries.policy import Retry, RetryBudget, Verdict

__all__ = ["Backoff", "Retry", "RetryBudget", "Verdict"]
