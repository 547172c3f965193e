"""What must not happen twice: a ledger of what tasks did to the world outside, and how to go on from it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from prefect_resilience.effects.append import AppendResult, append_once
from prefect_resilience.effects.batch import batch
from prefect_resilience.effects.current import idempotency_key, send_idempotency_key
from prefect_resilience.effects.policy import Done, Effect, NotDone, Unknown
from prefect_resilience.effects.status import (
    BatchStatus,
    BatchSummary,
    EffectStatus,
    batch_status,
    list_batches,
)
from prefect_resilience.effects.strategies import RecoveryHint, RecoveryPolicy

if TYPE_CHECKING:
    from prefect_resilience.effects.recovery import RecoveryReport, abandon, recover
    from prefect_resilience.effects.retention import prune
    from prefect_resilience.effects.rollback_report import Compensation, RollbackReport
    from prefect_resilience.effects.saga import arollback, rollback, savepoint
    from prefect_resilience.effects.settling import settle

__all__ = [
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
    "abandon",
    "append_once",
    "arollback",
    "batch",
    "batch_status",
    "idempotency_key",
    "list_batches",
    "prune",
    "recover",
    "rollback",
    "savepoint",
    "send_idempotency_key",
    "settle",
]

_LATER = {
    "Compensation": "rollback_report",
    "RecoveryReport": "recovery",
    "RollbackReport": "rollback_report",
    "abandon": "recovery",
    "arollback": "saga",
    "prune": "retention",
    "recover": "recovery",
    "rollback": "saga",
    "savepoint": "saga",
    "settle": "settling",
}
"""What asks Prefect is imported when it is first asked for."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
    globals()[name] = value
    return value
