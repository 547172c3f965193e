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
    NotRecorded,
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
from prefect_resilience.limits.process import ProcessDied, UnpicklableError
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
    from prefect_resilience.agents import (
        AgentChain,
        ChainResult,
        Notice,
        Person,
        PersonNeeded,
        ProviderChain,
        agent,
        provider,
    )
    from prefect_resilience.blocks import ResiliencePolicy
    from prefect_resilience.budgets import BudgetStatus, ErrorBudget, get_budgets
    from prefect_resilience.conditions import Condition, ConditionError, failed, path, succeeded
    from prefect_resilience.decomposition import Decompose, concat, join, split_list, split_text
    from prefect_resilience.effects import (
        AppendResult,
        BatchStatus,
        BatchSummary,
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
    from prefect_resilience.errors.failures import (
        OutputFormatError,
        ResourceExhausted,
        SubtaskError,
        TaskFailure,
    )
    from prefect_resilience.errors.requests import SubtaskRequest, subtask_request
    from prefect_resilience.errors.stops import ensure_complete
    from prefect_resilience.flows import ResilientFlow, resilient_flow
    from prefect_resilience.operations import arun_plan, run_plan
    from prefect_resilience.outputs import Expect
    from prefect_resilience.partials import keep_partial, last_violations, previous_error, previous_partial
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
        ProgressGuard,
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
    "AgentChain",
    "AppendResult",
    "AttemptRecord",
    "AttemptTimeout",
    "Backoff",
    "BatchStatus",
    "BatchSummary",
    "BudgetStatus",
    "Bulkhead",
    "BulkheadFullError",
    "ChainResult",
    "CircuitBreaker",
    "CircuitOpenError",
    "CircuitPolicy",
    "CircuitSnapshot",
    "Compensation",
    "Condition",
    "ConditionError",
    "ConfigurationError",
    "Decompose",
    "Done",
    "Effect",
    "EffectBusy",
    "EffectStatus",
    "ErrorBudget",
    "ErrorCategory",
    "ErrorContext",
    "ErrorInfo",
    "ErrorKind",
    "Expect",
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
    "NotRecorded",
    "NotSent",
    "Notice",
    "OutputFormatError",
    "PartialOutput",
    "Person",
    "PersonNeeded",
    "Plan",
    "PlanError",
    "PlanFailed",
    "PlanResult",
    "ProcessDied",
    "ProgressGuard",
    "ProviderChain",
    "RateLimit",
    "RateLimitedError",
    "RecoveryHint",
    "RecoveryPolicy",
    "RecoveryReport",
    "ResilienceError",
    "ResiliencePolicy",
    "ResilientFlow",
    "ResilientTask",
    "ResourceExhausted",
    "ResultNotKept",
    "Retry",
    "RetryBudget",
    "RollbackReport",
    "RoundsExhausted",
    "StoreUnavailable",
    "SubtaskError",
    "SubtaskRequest",
    "TaskFailure",
    "Timeout",
    "TooManyFailures",
    "Unknown",
    "UnpicklableError",
    "Verdict",
    "action",
    "agather",
    "agent",
    "aiterate",
    "append_once",
    "arollback",
    "arun_plan",
    "batch",
    "batch_status",
    "classifier",
    "classify",
    "concat",
    "dead_letters",
    "ensure_complete",
    "error_context",
    "failed",
    "gather",
    "get_budgets",
    "get_circuits",
    "idempotency_key",
    "iterate",
    "join",
    "keep_partial",
    "last_violations",
    "list_batches",
    "on_error",
    "open_store",
    "otherwise",
    "path",
    "previous_error",
    "previous_partial",
    "provider",
    "quorum",
    "recover",
    "redact",
    "register_classifier",
    "register_secret",
    "register_secret_pattern",
    "reset_all_circuits",
    "resilient_flow",
    "resilient_task",
    "rollback",
    "route",
    "run_plan",
    "savepoint",
    "send_idempotency_key",
    "settle",
    "split_list",
    "split_text",
    "subtask_request",
    "succeeded",
    "when",
]

_LATER: dict[str, tuple[str, ...]] = {
    "agents": (
        "AgentChain",
        "ChainResult",
        "Notice",
        "Person",
        "PersonNeeded",
        "ProviderChain",
        "agent",
        "provider",
    ),
    "budgets": (
        "BudgetStatus",
        "ErrorBudget",
        "get_budgets",
    ),
    "blocks": ("ResiliencePolicy",),
    "conditions": (
        "Condition",
        "ConditionError",
        "failed",
        "path",
        "succeeded",
    ),
    "decomposition": (
        "Decompose",
        "concat",
        "join",
        "split_list",
        "split_text",
    ),
    "errors.failures": (
        "OutputFormatError",
        "ResourceExhausted",
        "SubtaskError",
        "TaskFailure",
    ),
    "errors.requests": (
        "SubtaskRequest",
        "subtask_request",
    ),
    "errors.stops": ("ensure_complete",),
    "outputs": ("Expect",),
    "partials": (
        "keep_partial",
        "last_violations",
        "previous_error",
        "previous_partial",
    ),
    "effects": (
        "AppendResult",
        "BatchStatus",
        "BatchSummary",
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
    "flows": (
        "ResilientFlow",
        "resilient_flow",
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
        "ProgressGuard",
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
