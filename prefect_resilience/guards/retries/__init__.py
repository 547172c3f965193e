"""Whether and when to try again."""

from prefect_resilience.retries.backoff import Backoff
from prefect_resilience.retries.budget import RetryBudget
from prefect_resilience.retries.policy import Retry, Verdict

__all__ = ["Backoff", "Retry", "RetryBudget", "Verdict"]
