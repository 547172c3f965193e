"""The attempts of a run as its final event has them, from which `tune` learns. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prefect_resilience.errors.context import AttemptRecord
from prefect_resilience.telemetry.metrics import refused_by

ATTEMPTS_TOLD = 200
"""The most attempts in an event; of more, the first ones."""


def recorded(history: Sequence[AttemptRecord], circuit: str | None) -> dict[str, Any]:
    """The failed attempts of a run, from which `tune` learns, and the name of the circuit around them.

    `at` is in seconds since the epoch; `by` is the guard that rejected the call.
    """
    attempts = [_attempt(one) for one in history[:ATTEMPTS_TOLD]]
    return {"attempts": attempts} if circuit is None else {"attempts": attempts, "circuit": circuit}


def _attempt(one: AttemptRecord) -> dict[str, Any]:
    known: dict[str, Any] = {"at": round(one.started_at.timestamp(), 3), "seconds": round(one.duration, 4)}
    if one.delay is not None:
        known["delay"] = round(one.delay, 3)
    if (error := one.error) is not None:
        about = {"category": error.category.value, "exception_type": error.exception_type}
        told = {"code": error.code, "retry_after": error.retry_after, "by": refused_by(about)}
        known |= {"category": error.category.value, **{k: v for k, v in told.items() if v is not None}}
    return known
