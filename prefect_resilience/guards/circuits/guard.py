"""The one sequence of a guarded call."""

from __future__ import annotations

import inspect
import threading
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

from prefect_resilience.base.drive import Blocking, Invoke, Sequence
from prefect_resilience.errors.classify.classify import classify
from prefect_resilience.guards import faults
from prefect_resilience.guards.circuits.model import CircuitPolicy

if TYPE_CHECKING:
    from prefect_resilience.errors.taxonomy import ErrorInfo
    from prefect_resilience.guards.circuits.breaker import CircuitBreaker
    from prefect_resilience.guards.circuits.permits import Permit


def entering(breaker: CircuitBreaker) -> Sequence[Permit]:
    """Leave to make one call; raises CircuitOpenError.

    A caller that is cancelled while the store is asked in a thread leaves nothing behind: whatever lease
    that thread still gets is given back by it.
    """
    permit = breaker.admit()
    if permit is not None:
        return permit
    question = Question(breaker)
    try:
        return (yield Blocking(question.ask))
    except BaseException:
        question.abandon()
        raise


class Question:
    """One asking of the store whose asker may go away."""

    def __init__(self, breaker: CircuitBreaker) -> None:
        self._breaker = breaker
        self._abandoned = False
        self._permit: Permit | None = None

    def ask(self) -> Permit:
        """The permit; given back when nobody waits for it any more."""
        permit = self._permit = self._breaker.ask()
        if self._abandoned:
            self._breaker.release(permit)
            self._breaker.flush()
        return permit

    def abandon(self) -> None:
        """Nobody waits for the answer any more: a lease that has come with it is given back."""
        self._abandoned = True
        if self._permit is not None and self._breaker.release(self._permit):
            _flush_aside(self._breaker)


def leaving(
    breaker: CircuitBreaker,
    permit: Permit,
    error: BaseException | None,
    began: float,
    info: ErrorInfo | None = None,
) -> Sequence[None]:
    """Count how the call ended that began at `began` by `monotonic()`; `info` is the error, if classified."""
    due = breaker.settle(permit, error, info, monotonic() - began)
    if due and (error is None or isinstance(error, Exception)):
        yield Blocking(breaker.flush)
    elif due:
        _flush_aside(breaker)


def _flush_aside(breaker: CircuitBreaker) -> None:
    # A caller that was cancelled may await nothing any more, and its place must be free all the same.
    threading.Thread(target=breaker.flush, name="circuit-flush", daemon=True).start()


def guarded(breaker: CircuitBreaker, invoke: Invoke) -> Sequence[Any]:
    """One call with everything around it; returns or raises what the call did."""
    permit = yield from entering(breaker)
    began = monotonic()
    try:
        result = yield with_faults(breaker, invoke) if faults.active else invoke
    except BaseException as error:
        yield from leaving(breaker, permit, error, began)
        raise
    yield from leaving(breaker, permit, None, began)
    return result


def with_faults(breaker: CircuitBreaker, invoke: Invoke) -> Invoke:
    """The call with what `testing.inject` does to the calls of this circuit."""
    fn = faults.with_faults(invoke.fn, inspect.iscoroutinefunction(invoke.fn), breaker.name)
    return Invoke(fn, invoke.args, invoke.kwargs)


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
