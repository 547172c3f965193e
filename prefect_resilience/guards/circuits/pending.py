"""The outcomes of one process that are not merged yet, and the permits of its calls."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from prefect_resilience.base.drive import Blocking, Steps
from prefect_resilience.base.process import start_thread
from prefect_resilience.guards.circuits.machine import Event, Record, Release
from prefect_resilience.guards.circuits.window import Outcome, Run

if TYPE_CHECKING:
    from prefect_resilience.guards.circuits.circuit import Circuit

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
            self._probe(record if is_current else Release(permit.lease))
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

    def release(self, lease: str) -> None:
        """Give a lease back without an outcome."""
        self._probe(Release(lease))

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

    def _probe(self, event: Event) -> None:
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


class PendingAdmission:
    """One request to the store for a permit. The caller may be cancelled while a thread waits for it."""

    def __init__(self, circuit: Circuit) -> None:
        self._circuit = circuit
        self._abandoned = False
        self._permit: Permit | None = None

    def ask(self) -> Permit:
        """The permit; it is given back if the caller was cancelled in the meantime."""
        permit = self._permit = self._circuit.ask()
        if self._abandoned:
            self._circuit.release(permit)
            self._circuit.flush()
        return permit

    def abandon(self) -> None:
        """The caller was cancelled: give back the lease if it has arrived already."""
        self._abandoned = True
        if self._permit is not None and self._circuit.release(self._permit):
            flush_aside(self._circuit)


def flush_after(circuit: Circuit, error: BaseException | None) -> Steps[None]:
    """Flush after a call that raised `error`; in a thread if the caller is cancelled, now or meanwhile."""
    if error is not None and not isinstance(error, Exception):
        flush_aside(circuit)
        return
    try:
        yield Blocking(circuit.flush)
    except BaseException:
        flush_aside(circuit)
        raise


def flush_aside(circuit: Circuit) -> None:
    """Flush in a thread: a cancelled caller cannot await, but its lease must be released."""
    start_thread("circuit-flush", circuit.flush)
