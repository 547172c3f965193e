"""Resilience for Prefect 3: retries by kind of error, circuits, deadlines and fallbacks, seen in its UI.

Importing this opens no file, socket or thread.
"""

from prefect_resilience.circuits.breaker import CircuitBreaker
from prefect_resilience.circuits.fleet import get_circuits, reset_all_circuits
from prefect_resilience.circuits.model import CircuitPolicy, CircuitSnapshot
from prefect_resilience.circuits.registry import set_default_store
from prefect_resilience.errors.classify import (
    ErrorInfo,
    classifier,
    classify,
    register_classifier,
)
from prefect_resilience.errors.context import AttemptRecord, ErrorContext, PartialOutput, error_context
from prefect_resilience.errors.exceptions import (
    AttemptTimeout,
    CircuitOpenError,
    ConfigurationError,
    ResilienceError,
    StoreUnavailable,
)
from prefect_resilience.errors.redact import redact, register_secret, register_secret_pattern
from prefect_resilience.errors.taxonomy import ErrorCategory, ErrorKind, FailureReason
from prefect_resilience.events import announce_circuits
from prefect_resilience.fallbacks.model import Fallback
from prefect_resilience.limits.bulkhead import Bulkhead
from prefect_resilience.limits.hedge import Hedge
from prefect_resilience.limits.rate import RateLimit
from prefect_resilience.limits.refusals import BulkheadFullError, LimitRefused, RateLimitedError
from prefect_resilience.limits.timeout import Timeout
from prefect_resilience.retries.backoff import Backoff
from prefect_resilience.retries.budget import RetryBudget
from prefect_resilience.retries.policy import Retry, Verdict
from prefect_resilience.settings import circuit_store_url
from prefect_resilience.stores import open_store
from prefect_resilience.tasks import ResilientTask, resilient_task

__all__ = [
    "AttemptRecord",
    "AttemptTimeout",
    "Backoff",
    "Bulkhead",
    "BulkheadFullError",
    "CircuitBreaker",
    "CircuitOpenError",
    "CircuitPolicy",
    "CircuitSnapshot",
    "ConfigurationError",
    "ErrorCategory",
    "ErrorContext",
    "ErrorInfo",
    "ErrorKind",
    "FailureReason",
    "Fallback",
    "Hedge",
    "LimitRefused",
    "PartialOutput",
    "RateLimit",
    "RateLimitedError",
    "ResilienceError",
    "ResilientTask",
    "Retry",
    "RetryBudget",
    "StoreUnavailable",
    "Timeout",
    "Verdict",
    "classifier",
    "classify",
    "error_context",
    "get_circuits",
    "open_store",
    "redact",
    "register_classifier",
    "register_secret",
    "register_secret_pattern",
    "reset_all_circuits",
    "resilient_task",
]

set_default_store(circuit_store_url)
announce_circuits()
