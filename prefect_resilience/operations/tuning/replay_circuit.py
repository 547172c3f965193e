"""The circuit of a replay: the production machine, asked as seldom as a process asks its store. Pure."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections import deque

from prefect_resilience.guards.circuits import machine
from prefect_resilience.guards.circuits.model import CircuitPolicy
from prefect_resilience.guards.circuits.window import BUCKETS
from prefect_resilience.operations.tuning.plain_runs import PlainSuccesses

LONG = 600.0
"""The seconds for which a window of calls, not of time, is taken to remember a failure."""

SOME = 8
"""Of so many of the latest plain runs it is seen whether they succeeded between two failures."""

MOST_AT_ONCE = 1000
NONE = frozenset[int]()

LoggedCalls = tuple[float, int, bool, float | None]
"""When calls ended, their number, whether they failed, and Retry-After."""

Admission = tuple[int, str | None]
"""The generation under which a call began, and the owner of its probe's lease."""


class ReplayedCircuit:
    """One circuit for all tasks behind a service. Times are seconds since the epoch.

    What a closed circuit counts is kept, and given to the machine before the next event that needs it,
    in parts as fine as the window's. A failure needs it if it may open the circuit: if so many failures are
    in the window that they may be too many once enough calls are in it, or so many may be in a row. While
    the window has so many, each call needs it: a success may be the call that fills the window.

    plain: the plain runs that may pass. unguarded: the tasks among them without the circuit.
    """

    def __init__(
        self, policy: CircuitPolicy, plain: PlainSuccesses | None = None, unguarded: frozenset[int] = NONE
    ) -> None:
        self.policy: CircuitPolicy = policy
        self.document: machine.CircuitDocument = machine.new()
        self.opened: int = 0
        self.closed: bool = True
        self._generation: int = self.document["generation"]
        self._asked = 0
        self._plain = plain
        self._unguarded = unguarded
        self._passed: list[tuple[int, int]] = []
        self._successes: list[tuple[float, int]] = []
        self._log: list[LoggedCalls] = []
        size = policy.window_size
        self._size = size
        self._part = size / BUCKETS if isinstance(size, float) else 0.0
        self._remembers = size if isinstance(size, float) else LONG
        least = min(policy.minimum_calls, size) if isinstance(size, int) else policy.minimum_calls
        self._tense_from = 1.0 if policy.adaptive else policy.failure_rate * least
        self._failures: deque[tuple[float, int]] = deque()
        self._failed = 0
        self._row, self._row_from, self._broke_row = 0, 0, False
        self._failed_at = -math.inf

    def calm(self, now: float) -> bool:
        """Whether the circuit is closed, and no success can open it."""
        if self._failed >= self._tense_from:
            self._forget(now)
        return self.closed and self._failed < self._tense_from

    def admit(self, now: float) -> Admission | None:
        """A permit for a call that begins now; None if the circuit rejects it."""
        if self.closed:
            if not self.calm(now):
                self._tell(now)
            if self.closed:
                return self._generation, None
        document = self.document
        if document["state"] == "open" and now < document["retry_at"]:
            return None
        self._asked += 1
        owner = str(self._asked)
        self._step(machine.Acquire(owner), now)
        if owner in self.document["leases"]:
            return self._generation, owner
        return (self._generation, None) if self.closed else None

    def passed(self, first: int, after: int) -> None:
        """The plain runs from the place `first` to the one before `after` began while the circuit was
        calm."""
        self._passed.append((first, after))

    def succeeded(self, now: float, admission: Admission, number: int) -> None:
        """Record successes; without a probe's lease `now` may be later than the event."""
        generation, owner = admission
        if owner is not None:
            self._step(machine.Record(generation, (("s", 1),), owner=owner), now)
        elif generation == self._generation:
            heapq.heappush(self._successes, (now, number))

    def failed(
        self, now: float, admission: Admission, number: int, counted: bool, retry_after: float | None
    ) -> None:
        """Record a failure, or give a probe's lease back if the failure does not count."""
        generation, owner = admission
        if owner is not None:
            lost = machine.Record(generation, (("f", number),), None, retry_after, owner)
            self._step(lost if counted else machine.Release(owner), now)
            return
        if not counted or generation != self._generation:
            return
        if self._succeeded_since(self._failed_at, now):
            self._row, self._row_from, self._broke_row = 0, len(self._log), True
        self._row += number
        self._failed_at = now
        self._log.append((now, number, True, retry_after))
        self._failures.append((now, number))
        self._failed += number
        self._forget(now)
        may_open = self._failed >= self._tense_from or self._row >= self.policy.failure_threshold
        if may_open or not self._part or self.document["openings"]:
            self._tell(now)

    def _forget(self, now: float) -> None:
        """Forget the failures that have left the window."""
        while self._failures and self._failures[0][0] < now - self._remembers:
            self._failed -= self._failures.popleft()[1]

    def _succeeded_since(self, then: float, now: float) -> bool:
        """Whether a call is known to have succeeded between two moments. Logs the successes until now."""
        found, successes = False, self._successes
        while successes and successes[0][0] <= now:
            ended, number = heapq.heappop(successes)
            self._log.append((ended, number, False, None))
            found = found or ended > then
        if not found and self._passed and self._plain is not None:
            first, after = self._passed[-1]
            places = range(after - 1, max(first, after - SOME) - 1, -1)
            found = any(then < self._plain.end(place) <= now for place in places)
        return found

    def _tell(self, now: float) -> None:
        """Tell the machine of all calls that ended until now, as far as they still count."""
        if not self._log and not self._passed and not (self._successes and self._successes[0][0] <= now):
            return
        self._succeeded_since(now, now)
        kept, horizon = self._log, now - self._remembers
        if not self._remembers_all():
            row = kept[self._row_from :]
            kept = [one for one in kept[: self._row_from] if one[0] >= horizon] + row
            horizon = min(horizon, row[0][0]) if row else horizon
            if self._broke_row:
                # The success that ended the machine's row may be older than the window.
                self.document = {**self.document, "failures_in_row": 0, "hold_until": None}
        calls = self._calls_passed(now, horizon) + kept
        calls.sort(key=lambda one: one[0])
        self._log, self._passed, self._row_from, self._broke_row = [], [], 0, False
        at, number = 0.0, 0
        generation = self._generation
        for ended, more, is_failure, retry_after in calls:
            new_part = self._part and int(ended / self._part) != int(at / self._part)
            if number and (is_failure or new_part):
                self._step(machine.Record(generation, (("s", number),)), at)
                number = 0
            if is_failure:
                self._step(machine.Record(generation, (("f", more),), None, retry_after), ended)
            else:
                at, number = ended, number + more
        if number:
            self._step(machine.Record(generation, (("s", number),)), at)
        self._row = self.document["failures_in_row"]

    def _remembers_all(self) -> bool:
        """Whether calls count that are older than the window: for the usual rate, or for a full recovery."""
        return not self._part or self.policy.adaptive or self.document["openings"] > 0

    def _calls_passed(self, now: float, horizon: float) -> list[LoggedCalls]:
        """The successes of plain runs until now; those before the horizon in one, if they still count."""
        plain, found = self._plain, list[LoggedCalls]()
        if plain is None:
            return found
        for first, after in self._passed:
            if isinstance(self._size, int):
                begin = max(first, after - self._size)
            else:
                begin = bisect_left(plain.starts, horizon - plain.longest, first, after)
            if begin > first and self._remembers_all():
                found.append((plain.starts[begin - 1], min(begin - first, MOST_AT_ONCE), False, None))
            for place in range(begin, after):
                if plain.tasks[place] not in self._unguarded:
                    end = plain.end(place)
                    if end <= now:
                        found.append((end, plain.numbers[place], False, None))
                    else:
                        heapq.heappush(self._successes, (end, plain.numbers[place]))
        return found

    def _step(self, event: machine.Event, now: float) -> None:
        self.document, changes = machine.step(self.document, event, now, self.policy)
        if changes:
            self.opened += sum(change.after == "open" for change in changes)
            self.closed = self.document["state"] == "closed"
            self._begin(self.document["generation"])

    def _begin(self, generation: int) -> None:
        """Forget the calls of older generations: the machine does not count them."""
        self._generation = generation
        self._log, self._passed, self._successes = [], [], []
        self._failures.clear()
        self._failed, self._row, self._row_from, self._broke_row = 0, 0, 0, False
        self._failed_at = -math.inf
