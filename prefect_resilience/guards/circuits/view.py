"""What a process knows about a circuit: its view and the calls that it permits, and the outcomes that are not
merged yet."""

from __future__ import annotations

import itertools
import math
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic

from prefect_resilience.base.drive import Signal, Steps
from prefect_resilience.base.durations import LONGEST
from prefect_resilience.guards.circuits import machine, window
from prefect_resilience.guards.circuits.document import rate
from prefect_resilience.guards.circuits.machine import PASSING, CircuitDocument, Event, Record, Release
from prefect_resilience.guards.circuits.model import CircuitEntered, CircuitPolicy, CircuitSnapshot
from prefect_resilience.guards.circuits.window import Outcome, Run
from prefect_resilience.guards.timeouts.threads import is_abandoned

NEVER = -math.inf
GRACE = 5.0
"""Seconds for which a view is used after it expired, while another thread is asking the store."""

JITTER = 0.05
"""Seconds within which the callers that wait for a probe look at the store."""

UNSEEN = 0
"""The generation of outcomes that were counted before this process first read the store's document."""


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

    def __init__(self, generation: int) -> None:
        self.epoch: Epoch = Epoch(generation)
        self._runs: list[Run] = []
        self._error: str | None = None
        self._retry_after: float | None = None
        self.probes: list[Event] = []
        self.urgent: bool = False

    def add(self, permit: Permit, outcome: Outcome, error: str | None, retry_after: float | None) -> None:
        """Count one outcome, after the successes before it; not that of another epoch."""
        is_current = permit.epoch is self.epoch
        if permit.lease is not None:
            record = Record(permit.epoch.generation, ((outcome, 1),), error, retry_after, permit.lease)
            self.add_probe(record if is_current else Release(permit.lease))
        elif is_current:
            self._count(outcome, error, retry_after)

    def _count(self, outcome: Outcome, error: str | None, retry_after: float | None) -> None:
        self._append("s", self.epoch.take())
        self._append(outcome, 1)
        if outcome in "fF":
            self.urgent = True
            self._error = error
            if retry_after is not None:
                self._retry_after = max(retry_after, self._retry_after or 0.0)

    def record(self) -> Record:
        """The outcomes as an event for the machine, without taking them."""
        self._append("s", self.epoch.take())
        return Record(self.epoch.generation, tuple(self._runs), self._error, self._retry_after)

    def any(self) -> bool:
        """Whether there are outcomes or leases to take."""
        return bool(self.record().runs or self.probes)

    def take(self) -> list[Event]:
        """Remove all outcomes and return them as events for the machine."""
        record = self.record()
        events: list[Event] = [record, *self.probes] if record.runs else self.probes
        self.probes = []
        self._clear()
        return events

    def begin(self, generation: int) -> None:
        """Begin a new epoch. Outcomes of the last one do not count."""
        self.epoch = Epoch(generation)
        self._clear()

    def drop(self) -> None:
        """Forget the outcomes, but no lease."""
        self.epoch.take()
        self._clear()

    def _clear(self) -> None:
        self._runs, self._error, self._retry_after = [], None, None
        self.urgent = bool(self.probes)

    def add_probe(self, event: Event) -> None:
        """Add the outcome of a probe, or a lease that is given back."""
        self.probes = [*self.probes[1 - PROBES_KEPT :], event]
        self.urgent = True

    def _append(self, outcome: Outcome, number: int) -> None:
        if number < 1:
            return
        if self._runs and self._runs[-1][0] == outcome:
            self._runs[-1] = (outcome, self._runs[-1][1] + number)
        else:
            # The list grows only while the store does not answer. The oldest runs matter least.
            self._runs = [*self._runs[1 - RUNS_KEPT :], (outcome, number)]


@dataclass(frozen=True, slots=True)
class View:
    """The local view of a circuit. Replaced as a whole, so that reading it needs no lock.

    Times are readings of `monotonic()`. Before `until` the store need not be asked; before `grace` a caller
    may use the view while another thread asks. `permit` is None if calls are rejected or need a lease.
    `refused`: calls are rejected until `retry` (None: until an operator changes it). `waiting`: the next
    success ends a row of failures and must be merged. `fleet` is the number of busy processes.
    """

    document: CircuitDocument
    fleet: float = 0.0
    until: float = NEVER
    grace: float = NEVER
    permit: Permit | None = None
    refused: bool = False
    retry: float | None = None
    waiting: bool = False


Fresh = tuple[float, Iterator[int], Permit]


class CurrentView:
    """The view that a circuit has now, and the callers that wait for the next one.

    `fresh` is all that a call of a closed circuit reads: the view's expiry by `monotonic()`, the counter of
    successes, and the permit. It has expired if `is_timed`, because then each call's duration is needed.
    """

    def __init__(self, is_timed: bool) -> None:
        self._is_timed = is_timed
        self.retired: bool = False
        self.begin()

    def begin(self) -> None:
        """Set the initial state. Also called in a forked child."""
        nothing = Permit(Epoch(UNSEEN))
        self.view: View = View(machine.new())
        self.fresh: Fresh = (NEVER, nothing.epoch.successes, nothing)
        self._lock = threading.Lock()
        self._waiting: set[Signal] = set()

    def show(self, view: View | None = None, retire: bool = False) -> None:
        """Take a new view, and wake the callers that wait. A retired one is never fresh again."""
        with self._lock:
            self.view = view = view or self.view
            self.retired, permit = self.retired or retire, view.permit
            if permit is None or view.waiting or self.retired or self._is_timed:
                self.fresh = (NEVER, *self.fresh[1:])
            else:
                self.fresh = (view.until, permit.epoch.successes, permit)
            for signal in self._waiting:
                signal.wake()

    def is_changing(self, until: float) -> bool:
        """Whether a probe is on its way, and the time of `monotonic()` is before `until`."""
        changing = self.view.document["state"] in {"half_open", *PASSING}
        return changing and monotonic() < until and not is_abandoned()

    def wait_for_change(self, until: float) -> Steps[None]:
        """Wait for the next view, or until the present one is too old, but not beyond `until`."""
        view, signal = self.view, Signal()
        # Not all at once: the first one to ask the store has the answer for the others.
        until = min(until, view.until + random.uniform(0, JITTER))
        with self._lock:
            self._waiting.add(signal)
        try:
            if self.view is view:
                yield from signal.wait(until - monotonic(), is_abandoned)
        finally:
            with self._lock:
                self._waiting.discard(signal)


def ask_at(document: CircuitDocument, now: float, policy: CircuitPolicy) -> float | None:
    """When a probe may be admitted, by the store's clock; None if only an operator can end the opening."""
    if document["state"] != "half_open":
        return document["retry_at"]
    ends = [until for _, until in document["leases"].values()]
    return min(ends) if len(ends) >= policy.probes else min(now, document["updated_at"])


SAME_FIELDS = ("state", "generation", "opened_at", "retry_at", "reason", "last_error")
_ANY_POLICY = CircuitPolicy.model_construct(open_max=LONGEST, probe_lease=LONGEST)
"""Accepts any length of openings and leases in a document: the circuit's own policy is unknown here."""


def snapshot_of(name: str, document: machine.CircuitDocument, now: float) -> CircuitSnapshot:
    """The state that a call would meet at `now`: the document after the time since it was written."""
    # Under every policy, elapsed time changes a valid document in the same way.
    current, _ = machine.step(document, machine.Tick(), now, _ANY_POLICY)
    counted = window.totals(current["window"], now)
    # From a checked document: not validated again, which a process's first circuit would pay for.
    return CircuitSnapshot.model_construct(
        name=name,
        consecutive_failures=current["failures_in_row"],
        window_calls=counted.calls,
        window_failures=counted.failures,
        window_slow=counted.slow,
        reopenings=max(0, current["openings"] - 1),
        probes_in_flight=len(current["leases"]),
        updated_at=document["updated_at"],
        usual_failure_rate=rate(current["baseline"]),
        # From the stored document: no call has met a state that only elapsed time brought about.
        history=tuple(
            CircuitEntered.model_construct(**dict(zip(CircuitEntered.model_fields, entry, strict=True)))
            for entry in document["history"]
        ),
        share_counted=document["share"],
        **{field: current[field] for field in SAME_FIELDS},
    )
