"""What an error says about the service behind a circuit: it failed, it answered, or nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from prefect_resilience.errors.classify.classify import classify
from prefect_resilience.guards.circuits.model import CircuitPolicy

if TYPE_CHECKING:
    from prefect_resilience.errors.info import ErrorInfo

Verdict = Literal["success", "failure", "neither"]

ANSWERED = frozenset({"auth", "invalid", "not_found", "conflict", "overflow", "validation"})
"""Failures by which the service shows that it is well: it read the request and said no."""


def judge(
    error: BaseException | None, info: ErrorInfo | None, policy: CircuitPolicy
) -> tuple[Verdict, ErrorInfo | None]:
    """How a call that ended with `error` counts, and the error classified.

    What is no Exception (a cancellation, a KeyboardInterrupt, a generator that was closed) says nothing
    about the service, and neither does a failure of the caller's own.
    """
    if error is None and info is None:
        return "success", None
    if error is not None and not isinstance(error, Exception):
        return "neither", None
    if info is None:
        assert error is not None
        info = classify(error)
    category = str(info.category)
    if category in policy.counts:
        return "failure", info
    return ("success" if category in ANSWERED else "neither"), info
