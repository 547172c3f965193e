"""The parts of a circuit in one process: permits, outcomes not merged yet, the link to the store, the view.

The store is opened at its first use. After a failed or slow contact it is not asked for a while (a rest).
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Literal, TypeVar

from prefect_resilience.base.durations import LONGEST
from prefect_resilience.base.process import per_process, start_thread
from prefect_resilience.errors.exceptions import ConfigurationError, StoreUnavailable
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.circuits import machine, window
from prefect_resilience.guards.circuits.document import rate
from prefect_resilience.guards.circuits.listeners import StoreNotice
from prefect_resilience.guards.circuits.machine import PASSING, CircuitDocument, Event, Record, Release
from prefect_resilience.guards.circuits.model import CircuitEntered, CircuitPolicy, CircuitSnapshot
from prefect_resilience.guards.circuits.window import Outcome, Run
from prefect_resilience.stores import Store, open_store

if TYPE_CHECKING:
    from prefect_resilience.guards.circuits.breaker import CircuitBreaker

RUNS_KEPT = 200
PROBES_KEPT = 100


class Epoch:
    """The time between two changes of state, as this process saw them, and its count of successes.

    `next(successes)` counts one success. It is one step of `itertools.count`, which no thread can interrupt.
    A call that began in an older epoch steps that epoch's counter, which is no longer read: that fences it.
    """

    __slots__ = ("_seen", "generation", "successes")

    def __init__(self, generation: int) -> None:
        self.generation: int = generation
        self.successes: itertools.count[int] = itertools.count(1)
        self._seen = 0

    def take(self) -> int:
        """The number of successes since the last take. For one thread at a time."""
        at = next(self.successes)
        number = at - self._seen - 1
        self._seen = at
        return number


class Permit:
    """The right to make one call. All calls of an epoch share one permit, unless they need leases."""

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
        """Count one outcome, after the successes before it."""
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
        """Whether there are outcomes or leases to take."""
        self._append("s", epoch.take())
        return bool(self._runs or self._probes)

    def take(self, epoch: Epoch) -> list[Event]:
        """Remove all outcomes and return them as events for the machine."""
        self._append("s", epoch.take())
        events: list[Event] = []
        if self._runs:
            events.append(Record(epoch.generation, tuple(self._runs), self._error, self._retry_after))
        events.extend(self._probes)
        self._probes = []
        self.drop_runs()
        return events

    def drop_runs(self) -> None:
        """Forget the outcomes, because their epoch is over."""
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
            # The list grows only while the store does not answer. The oldest runs matter least.
            self._runs = [*self._runs[1 - RUNS_KEPT :], (outcome, number)]


class PendingAdmission:
    """One request to the store for a permit. The caller may be cancelled while a thread waits for it."""

    def __init__(self, breaker: CircuitBreaker) -> None:
        self._breaker = breaker
        self._abandoned = False
        self._permit: Permit | None = None

    def ask(self) -> Permit:
        """The permit; it is given back if the caller was cancelled in the meantime."""
        permit = self._permit = self._breaker.ask()
        if self._abandoned:
            self._breaker.release(permit)
            self._breaker.flush()
        return permit

    def abandon(self) -> None:
        """The caller was cancelled: give back the lease if it has arrived already."""
        self._abandoned = True
        if self._permit is not None and self._breaker.release(self._permit):
            flush_aside(self._breaker)


def flush_aside(breaker: CircuitBreaker) -> None:
    """Flush in a thread: a cancelled caller cannot await, but its lease must be released."""
    start_thread("circuit-flush", breaker.flush)


class _Notifying:
    def __init__(self) -> None:
        self.lock = threading.Lock()


_notifying = per_process(_Notifying)

T = TypeVar("T")
N = TypeVar("N")

REST_AFTER_FAILURE = 5.0
SLOW = 3.0
REST_PER_SECOND = 5.0
LONGEST_REST = 30.0


class StoreLink:
    """One store, shared by every circuit of this process that is kept in it.

    `condition` is "ready", "resting" (the store answers slowly and is not asked before the rest is over) or
    "down". A failed contact is followed by a rest of REST_AFTER_FAILURE seconds or longer. A contact that
    took longer than SLOW seconds is followed by a rest REST_PER_SECOND times as long, at most LONGEST_REST
    seconds. So a slow store does not slow down every call.
    """

    def __init__(self, url: str | Callable[[], str], store: Store | None = None) -> None:
        self._url = url
        self.opened: Store | None = store
        self.rest_until: float = -math.inf
        """The end of the rest by `monotonic()`: before it no circuit asks the store."""
        self._down = False
        self._met_at: float | None = None
        self._offset = time.time() - monotonic()
        self._notices: deque[StoreNotice] = deque()

    @property
    def url(self) -> str | None:
        """The store's URL, or None while the function that returns it has not been called."""
        if self.opened is not None:
            return self.opened.url
        return self._url if isinstance(self._url, str) else None

    @property
    def condition(self) -> Literal["ready", "resting", "down"]:
        """Whether to ask the store now, and if not, why."""
        if monotonic() >= self.rest_until:
            return "ready"
        return "down" if self._down else "resting"

    def now(self) -> float:
        """The store's time, estimated without asking the store."""
        return monotonic() + self._offset

    def heard(self, now: float) -> None:
        """Remember the time of the store's clock."""
        self._offset = now - monotonic()

    def store(self) -> Store:
        """The store, opened if necessary. Raises StoreUnavailable when that fails."""
        if self.opened is None:
            try:
                self.opened = open_store(self._url if isinstance(self._url, str) else self._url())
            except ConfigurationError as error:
                raise StoreUnavailable(str(error)) from None
        return self.opened

    def exchange(self, work: Callable[[Store], T]) -> T:
        """Run `work(store)`. Any exception becomes StoreUnavailable, and the store then rests."""
        begun = monotonic()
        try:
            result = work(self.store())
        except Exception as error:
            self._failed(error, monotonic() - begun)
            raise StoreUnavailable(redact(f"{type(error).__name__}: {error}")) from error
        self._answered(begun)
        return result

    def notices(self) -> list[StoreNotice]:
        """The notices about this store since the last call."""
        return drained(self._notices)

    def _failed(self, error: Exception, took: float) -> None:
        with _notifying.lock:
            self.rest_until = monotonic() + max(REST_AFTER_FAILURE, _rest(took))
            if not self._down:
                self._down = True
                self._notices.append(StoreNotice(self._shown(), available=False, reason=redact(str(error))))

    def _answered(self, begun: float) -> None:
        now = monotonic()
        if self._met_at is None:
            self._met_at = now
        took = now - begun
        # Opening a store may be slow: drivers are imported, a schema is created. Contacts that began before
        # the first answer waited for the opening, so their time does not count.
        if took > SLOW and begun > self._met_at:
            self.rest_until = now + _rest(took)
        if not self._down:
            return
        with _notifying.lock:
            if self._down:
                self._down = False
                self._notices.append(
                    StoreNotice(self._shown(), available=True, reason="the store is available again")
                )

    def _shown(self) -> str:
        return redact(self.url or "that is configured")


def drained(queue: deque[N]) -> list[N]:
    """Remove and return the items of a queue. `popleft` is atomic, so each item is taken once."""
    taken: list[N] = []
    with suppress(IndexError):
        while True:
            taken.append(queue.popleft())
    return taken


def _rest(took: float) -> float:
    return min(LONGEST_REST, took * REST_PER_SECOND)


NEVER = -math.inf
GRACE = 5.0
"""Seconds for which a view is used after it expired, while another thread is asking the store."""


@dataclass(frozen=True, slots=True)
class View:
    """The local view of a circuit. Replaced as a whole, so that reading it needs no lock.

    Times are readings of `monotonic()`. Before `until` the store need not be asked; before `grace` a caller
    may use the view while another thread asks. `permit` is None if calls are rejected or need a lease.
    `refused`: calls are rejected until `retry` (None: until an operator changes it). `waiting`: the next
    success ends a row of failures and must be merged.
    """

    document: CircuitDocument
    until: float = NEVER
    grace: float = NEVER
    permit: Permit | None = None
    refused: bool = False
    retry: float | None = None
    waiting: bool = False


def view_of(
    document: CircuitDocument, now: float, at: float, policy: CircuitPolicy, epoch: Epoch, link: StoreLink
) -> View:
    """The view of `document` at `now` by the store's clock, which is `at` by `monotonic()`."""
    condition = link.condition
    horizon = at + policy.sync_interval
    if condition != "ready":
        horizon = max(horizon, link.rest_until)
    if document["state"] in PASSING:
        waiting = document["state"] == "closed" and document["failures_in_row"] > 0
        return View(document, horizon, horizon + GRACE, Permit(epoch), waiting=waiting)
    ask_at = _ask_at(document, now, policy)
    retry = None if ask_at is None else at + max(0.0, ask_at - now)
    if retry is not None and condition == "resting":
        # The store works, though slowly, and only the store can decide which process probes.
        retry = max(retry, link.rest_until)
    if retry is not None and retry <= at:
        return View(document, retry=retry)
    return View(document, horizon if retry is None else min(horizon, retry), refused=True, retry=retry)


def _ask_at(document: CircuitDocument, now: float, policy: CircuitPolicy) -> float | None:
    """When a probe may be admitted, by the store's clock; None if only an operator can end the opening."""
    if document["state"] != "half_open":
        return document["retry_at"]
    ends = [until for _, until in document["leases"].values()]
    return min(ends) if len(ends) >= policy.probes else now


_ANY_POLICY = CircuitPolicy(open_max=LONGEST, probe_lease=LONGEST)
"""Accepts any length of openings and leases in a document: the circuit's own policy is unknown here."""


def snapshot_of(name: str, document: machine.CircuitDocument, now: float) -> CircuitSnapshot:
    """The state that a call would meet at `now`: the document after the time since it was written."""
    # Under every policy, elapsed time changes a valid document in the same way.
    seen, _ = machine.step(document, machine.Tick(), now, _ANY_POLICY)
    counted = window.totals(seen["window"], now)
    return CircuitSnapshot(
        name=name,
        state=seen["state"],
        generation=seen["generation"],
        consecutive_failures=seen["failures_in_row"],
        window_calls=counted.calls,
        window_failures=counted.failures,
        window_slow=counted.slow,
        opened_at=seen["opened_at"],
        retry_at=seen["retry_at"],
        reopenings=max(0, seen["openings"] - 1),
        probes_in_flight=len(seen["leases"]),
        reason=seen["reason"],
        last_error=seen["last_error"],
        updated_at=document["updated_at"],
        usual_failure_rate=rate(seen["baseline"]),
        # From the stored document: no call has met a state that only elapsed time brought about.
        history=tuple(
            CircuitEntered(generation=generation, at=at, state=state, retry_at=retry_at)
            for generation, at, state, retry_at in document["history"]
        ),
    )
