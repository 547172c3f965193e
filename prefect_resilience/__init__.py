"""Resilience for Prefect 3: retries, circuits, fallbacks, routing, plans, and effects that happen once.

Importing this opens no file, socket or thread; what only some programs use is imported when it is asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

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
    EffectBusy,
    InDoubt,
    NotSent,
    ResilienceError,
    ResultNotKept,
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

if TYPE_CHECKING:
    from prefect_resilience import dead_letters
    from prefect_resilience.conditions import Condition, ConditionError, failed, path, succeeded
    from prefect_resilience.effects import (
        AppendResult,
        BatchStatus,
        Compensation,
        Done,
        Effect,
        EffectStatus,
        NotDone,
        RecoveryHint,
        RecoveryPolicy,
        RecoveryReport,
        RollbackReport,
        Unknown,
        append_once,
        arollback,
        batch,
        batch_status,
        idempotency_key,
        list_batches,
        recover,
        rollback,
        savepoint,
        send_idempotency_key,
        settle,
    )
    from prefect_resilience.operations import arun_plan, run_plan
    from prefect_resilience.plans.actions import action
    from prefect_resilience.plans.failures import PlanFailed
    from prefect_resilience.plans.inject import Inject
    from prefect_resilience.plans.mistakes import PlanError
    from prefect_resilience.plans.model import Plan
    from prefect_resilience.plans.result import NodeResult, PlanResult
    from prefect_resilience.routing import (
        NoProgress,
        NoQuorum,
        NoRoute,
        RoundsExhausted,
        TooManyFailures,
        agather,
        aiterate,
        gather,
        iterate,
        on_error,
        otherwise,
        quorum,
        route,
        when,
    )

__all__ = [
    "AppendResult",
    "AttemptRecord",
    "AttemptTimeout",
    "Backoff",
    "BatchStatus",
    "Bulkhead",
    "BulkheadFullError",
    "CircuitBreaker",
    "CircuitOpenError",
    "CircuitPolicy",
    "CircuitSnapshot",
    "Compensation",
    "Condition",
    "ConditionError",
    "ConfigurationError",
    "Done",
    "Effect",
    "EffectBusy",
    "EffectStatus",
    "ErrorCategory",
    "ErrorContext",
    "ErrorInfo",
    "ErrorKind",
    "FailureReason",
    "Fallback",
    "Hedge",
    "InDoubt",
    "Inject",
    "LimitRefused",
    "NoProgress",
    "NoQuorum",
    "NoRoute",
    "NodeResult",
    "NotDone",
    "NotSent",
    "PartialOutput",
    "Plan",
    "PlanError",
    "PlanFailed",
    "PlanResult",
    "RateLimit",
    "RateLimitedError",
    "RecoveryHint",
    "RecoveryPolicy",
    "RecoveryReport",
    "ResilienceError",
    "ResilientTask",
    "ResultNotKept",
    "Retry",
    "RetryBudget",
    "RollbackReport",
    "RoundsExhausted",
    "StoreUnavailable",
    "Timeout",
    "TooManyFailures",
    "Unknown",
    "Verdict",
    "action",
    "agather",
    "aiterate",
    "append_once",
    "arollback",
    "arun_plan",
    "batch",
    "batch_status",
    "classifier",
    "classify",
    "dead_letters",
    "error_context",
    "failed",
    "gather",
    "get_circuits",
    "idempotency_key",
    "iterate",
    "list_batches",
    "on_error",
    "open_store",
    "otherwise",
    "path",
    "quorum",
    "recover",
    "redact",
    "register_classifier",
    "register_secret",
    "register_secret_pattern",
    "reset_all_circuits",
    "resilient_task",
    "rollback",
    "route",
    "run_plan",
    "savepoint",
    "send_idempotency_key",
    "settle",
    "succeeded",
    "when",
]

_LATER: dict[str, tuple[str, ...]] = {
    "conditions": (
        "Condition",
        "ConditionError",
        "failed",
        "path",
        "succeeded",
    ),
    "effects": (
        "AppendResult",
        "BatchStatus",
        "Compensation",
        "Done",
        "Effect",
        "EffectStatus",
        "NotDone",
        "RecoveryHint",
        "RecoveryPolicy",
        "RecoveryReport",
        "RollbackReport",
        "Unknown",
        "append_once",
        "arollback",
        "batch",
        "batch_status",
        "idempotency_key",
        "list_batches",
        "recover",
        "rollback",
        "savepoint",
        "send_idempotency_key",
        "settle",
    ),
    "operations": (
        "arun_plan",
        "run_plan",
    ),
    "plans.actions": ("action",),
    "plans.failures": ("PlanFailed",),
    "plans.inject": ("Inject",),
    "plans.mistakes": ("PlanError",),
    "plans.model": ("Plan",),
    "plans.result": (
        "NodeResult",
        "PlanResult",
    ),
    "routing": (
        "NoProgress",
        "NoQuorum",
        "NoRoute",
        "RoundsExhausted",
        "TooManyFailures",
        "agather",
        "aiterate",
        "gather",
        "iterate",
        "on_error",
        "otherwise",
        "quorum",
        "route",
        "when",
    ),
}
"""What is imported when it is first asked for, by the module that has it."""


def __getattr__(name: str) -> Any:
    if name == "dead_letters":
        return importlib.import_module("prefect_resilience.dead_letters")
    for module, names in _LATER.items():
        if name in names:
            value = globals()[name] = getattr(importlib.import_module(f"prefect_resilience.{module}"), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


set_default_store(circuit_store_url)
announce_circuits()
