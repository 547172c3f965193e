"""What a caller holds while its call is under way, and how its outcome is counted until it is merged."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Literal

from prefect_resilience.errors.classify.classify import classify
from prefect_resilience.guards.circuits.machine import Event, Record, Release
from prefect_resilience.guards.circuits.model import CircuitPolicy
from prefect_resilience.guards.circuits.window import Outcome, Run
from prefect_resilience.guards.limits.refusals import LimitRefused

if TYPE_CHECKING:
    from prefect_resilience.errors.taxonomy import ErrorInfo
    from prefect_resilience.guards.circuits.breaker import CircuitBreaker

RUNS_KEPT = 200
PROBES_KEPT = 100


class Epoch:
    """The time between two changes of state, as this process saw them, and its count of successes.

    `next(successes)` counts one, in one step of `itertools.count`, which no thread can interrupt. A call
    that began in an older epoch steps a counter that nobody reads any more: that fences it.
    """

    __slots__ = ("_seen", "generation", "successes")

    def __init__(self, generation: int) -> None:
        self.generation: int = generation
        self.successes: itertools.count[int] = itertools.count(1)
        self._seen = 0

    def take(self) -> int:
        """How many successes there were since the last take. For one thread at a time."""
        at = next(self.successes)
        number = at - self._seen - 1
        self._seen = at
        return number


class Permit:
    """Leave to make one call. Without a lease it is shared by every call of its epoch."""

    __slots__ = ("epoch", "lease")

    def __init__(self, epoch: Epoch, lease: str | None = None) -> None:
        self.epoch: Epoch = epoch
        self.lease: str | None = lease


class Pending:
    """Outcomes of one epoch, in their order, and leases to give back. For one thread at a time."""

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self._error: str | None = None
        self._retry_after: float | None = None
        self._probes: list[Event] = []
        self.urgent: bool = False

    def add(self, permit: Permit, outcome: Outcome, error: str | None, retry_after: float | None) -> None:
        """Count one outcome behind the successes before it."""
        if permit.lease is not None:
            record = Record(permit.epoch.generation, ((outcome, 1),), error, retry_after, permit.lease)
            self._probe(record)
            return
        self._append("s", permit.epoch.take())
        self._append(outcome, 1)
        if outcome in "fF":
            self.urgent = True
            self._error = error
            if retry_after is not None:
                self._retry_after = max(retry_after, self._retry_after or 0.0)

    def release(self, lease: str) -> None:
        """Give a lease back without an outcome."""
        self._probe(Release(lease))

    def any(self, epoch: Epoch) -> bool:
        """Whether there is something to take."""
        self._append("s", epoch.take())
        return bool(self._runs or self._probes)

    def take(self, epoch: Epoch) -> list[Event]:
        """Everything that was counted, as events for the machine; nothing is pending afterwards."""
        self._append("s", epoch.take())
        events: list[Event] = []
        if self._runs:
            events.append(Record(epoch.generation, tuple(self._runs), self._error, self._retry_after))
        events.extend(self._probes)
        self._probes = []
        self.drop_runs()
        return events

    def drop_runs(self) -> None:
        """Forget the outcomes: their epoch is over."""
        self._runs, self._error, self._retry_after = [], None, None
        self.urgent = bool(self._probes)

    def _probe(self, event: Event) -> None:
        self._probes = [*self._probes[1 - PROBES_KEPT :], event]
        self.urgent = True

    def _append(self, outcome: Outcome, number: int) -> None:
        if number < 1:
            return
        if self._runs and self._runs[-1][0] == outcome:
            self._runs[-1] = (outcome, self._runs[-1][1] + number)
        else:
            # Only a store that does not answer lets this grow; what is oldest matters least.
            self._runs = [*self._runs[1 - RUNS_KEPT :], (outcome, number)]


class PendingAdmission:
    """One question to the store. Its asker may be cancelled while a thread waits for the answer."""

    def __init__(self, breaker: CircuitBreaker) -> None:
        self._breaker = breaker
        self._abandoned = False
        self._permit: Permit | None = None

    def ask(self) -> Permit:
        """The permit; given back when the asker has gone away meanwhile."""
        permit = self._permit = self._breaker.ask()
        if self._abandoned:
            self._breaker.release(permit)
            self._breaker.flush()
        return permit

    def abandon(self) -> None:
        """The asker has gone away: a lease that has come already is given back."""
        self._abandoned = True
        if self._permit is not None and self._breaker.release(self._permit):
            flush_aside(self._breaker)


def flush_aside(breaker: CircuitBreaker) -> None:
    """Flush in a thread: a caller that was cancelled may await nothing, and its place must become free."""
    threading.Thread(target=breaker.flush, name="circuit-flush", daemon=True).start()


CountsAs = Literal["success", "failure", "neither"]

ANSWERED = frozenset({"auth", "invalid", "not_found", "conflict", "overflow", "validation"})
"""Failures by which the service shows that it is well: it read the request and said no."""


def judge(
    error: BaseException | None, info: ErrorInfo | None, policy: CircuitPolicy
) -> tuple[CountsAs, ErrorInfo | None]:
    """How a call that ended with `error` counts, and the error classified.

    What is no Exception (a cancellation, a KeyboardInterrupt, a generator that was closed) says nothing
    about the service, and neither does a limit of our own or another failure of the caller's.
    """
    if error is None and info is None:
        return "success", None
    if error is not None and (isinstance(error, LimitRefused) or not isinstance(error, Exception)):
        return "neither", None
    if info is None:
        assert error is not None
        info = classify(error)
    category = str(info.category)
    if category in policy.counts:
        return "failure", info
    return ("success" if category in ANSWERED else "neither"), info
