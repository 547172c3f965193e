"""The circuit of a replay: the production machine, asked as seldom as a process asks its store. Pure."""

from __future__ import annotations

import heapq
from collections import deque

from prefect_resilience.guards.circuits import machine
from prefect_resilience.guards.circuits.model import CircuitPolicy
from prefect_resilience.guards.circuits.window import BUCKETS

LONG = 600.0
"""The seconds for which a window of calls, not of time, is taken to remember a failure."""

Admission = tuple[int, str | None]
"""The generation under which a call began, and the owner of its probe's lease."""


class ReplayedCircuit:
    """One circuit for all tasks behind a service. Times are seconds since the epoch.

    Successes are kept and merged before the next event that needs them, in parts as fine as the window's.
    While so many failures are in the window that they may open the circuit once enough calls are in it, each
    call needs them: a success may be the call that fills the window.
    """

    def __init__(self, policy: CircuitPolicy) -> None:
        self.policy = policy
        self.document: machine.CircuitDocument = machine.new()
        self.opened: int = 0
        self.closed: bool = True
        self._asked = 0
        self._successes: list[tuple[float, int, int]] = []
        size = policy.window_size
        self._part = size / BUCKETS if isinstance(size, float) else 0.0
        self._remembers = size if isinstance(size, float) else LONG
        least = min(policy.minimum_calls, size) if isinstance(size, int) else policy.minimum_calls
        self._tense_from = 1.0 if policy.adaptive else policy.failure_rate * least
        self._failures: deque[tuple[float, int]] = deque()
        self._failed = 0

    def admit(self, now: float) -> Admission | None:
        """A permit for a call that begins now; None if the circuit rejects it."""
        if self._failed >= self._tense_from and self.closed:
            self._forget(now)
            self._merge(now)
        document = self.document
        if self.closed:
            return document["generation"], None
        if document["state"] == "open" and now < document["retry_at"]:
            return None
        self._asked += 1
        owner = str(self._asked)
        self._step(machine.Acquire(owner), now)
        if owner in self.document["leases"]:
            return self.document["generation"], owner
        return (self.document["generation"], None) if self.closed else None

    def succeeded(self, now: float, admission: Admission, number: int) -> None:
        generation, owner = admission
        if owner is not None:
            self._step(machine.Record(generation, (("s", 1),), owner=owner), now)
        elif generation == self.document["generation"]:
            heapq.heappush(self._successes, (now, generation, number))

    def failed(
        self, now: float, admission: Admission, number: int, counted: bool, retry_after: float | None
    ) -> None:
        """Record a failure, or give a probe's lease back if the failure does not count."""
        generation, owner = admission
        if not counted:
            if owner is not None:
                self._step(machine.Release(owner), now)
            return
        self._merge(now)
        self._failures.append((now, number))
        self._failed += number
        self._forget(now)
        record = machine.Record(generation, (("f", number),), None, retry_after, owner)
        self._step(record, now)

    def _forget(self, now: float) -> None:
        """Forget the failures that have left the window."""
        while self._failures and self._failures[0][0] < now - self._remembers:
            self._failed -= self._failures.popleft()[1]

    def _merge(self, now: float) -> None:
        """Record the successes that ended before now, one step for each part of the window."""
        successes, generation = self._successes, self.document["generation"]
        at, number = 0.0, 0
        while successes and successes[0][0] <= now:
            ended, began_under, more = heapq.heappop(successes)
            if began_under != generation:
                continue
            if number and self._part and int(ended / self._part) != int(at / self._part):
                self._step(machine.Record(generation, (("s", number),)), at)
                number = 0
            at, number = ended, number + more
        if number:
            self._step(machine.Record(generation, (("s", number),)), at)

    def _step(self, event: machine.Event, now: float) -> None:
        self.document, changes = machine.step(self.document, event, now, self.policy)
        if changes:
            self.opened += sum(change.after == "open" for change in changes)
            self.closed = self.document["state"] == "closed"
