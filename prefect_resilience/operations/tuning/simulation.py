"""The replay: a recorded period again, under other options, with the production machines. Pure.

The same runs begin at the same times. Whether and when a call is made is decided by `Retry.decide`,
`Backoff.delay` and the circuit's `machine.step`. What it meets comes from recorded calls:

- the same call of the run, if the service was in the same state then: in the same outage, or up;
- else, in an outage, any call that was recorded in it;
- while the service is up, a recorded first call, or a retry after as many failures. What was never
  tried is not assumed to help: such a retry fails like the call before it.

A call that a shorter timeout ends is as slow when it is repeated. A run that succeeded at once while the
service was up (a plain run) is not replayed while the circuit is closed: it would succeed again.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from random import Random
from typing import NamedTuple

import numpy as np

from prefect_resilience.errors.taxonomy import ErrorCategory, ErrorInfo
from prefect_resilience.guards.circuits import machine
from prefect_resilience.guards.circuits.model import CircuitPolicy
from prefect_resilience.guards.circuits.window import Outcome
from prefect_resilience.operations.tuning.record import TaskPolicy
from prefect_resilience.operations.tuning.service_calls import UP, Floats, Ints, ServiceCalls


class Figure(IntEnum):
    """What is counted. HIT: runs whose first call was not a success. DEAD: failed calls in outages."""

    RUNS, HIT, RECOVERED, FAILED, FALLBACK, SECONDS, WAITED, CALLS, DEAD = range(9)


FEW = 10
"""Retries after so many failures are drawn from at least this many that were recorded."""

LONG = 600.0
"""The seconds for which a window of calls, not of time, remembers successes."""

KNOWN = frozenset(category.value for category in ErrorCategory)
Admission = tuple[int, str | None]
"""The generation under which a call began, and the owner of its probe's lease."""


@lru_cache(maxsize=4096)
def _error(category: str, retry_after: float | None) -> ErrorInfo:
    error_category = ErrorCategory(category) if category in KNOWN else ErrorCategory.UNEXPECTED
    return ErrorInfo.of(error_category, retry_after=retry_after)


class RecordedAnswer(NamedTuple):
    """What a call meets. category: of the failure; "" for a success."""

    seconds: float
    category: str
    retry_after: float | None = None


NOTHING = RecordedAnswer(0.0, "unexpected")


@dataclass(slots=True)
class _Run:
    """A run in a replay. met: its calls so far; up: those that failed while the service was up. slow: the
    success that a timeout ended; last: its last failure."""

    place: int
    policy: TaskPolicy
    began: float
    chance: Random
    attempts: int = 0
    met: int = 0
    up: int = 0
    slow: RecordedAnswer | None = None
    hit: bool = False
    previous: float | None = None
    last: RecordedAnswer = NOTHING
    counters: dict[str, int] = field(default_factory=dict[str, int])


class ReplayedCircuit:
    """One circuit for all tasks behind a service. ends, weights: of the plain runs that it would count.

    The successes of plain runs are given to the machine before the next failure, in a few parts.
    """

    def __init__(self, policy: CircuitPolicy, ends: Floats, weights: Floats) -> None:
        self.policy: CircuitPolicy = policy
        self.document: machine.CircuitDocument = machine.new()
        self._ends: list[float] = ends.tolist()
        self._total: list[float] = [0.0, *np.cumsum(weights).tolist()]
        self._until = 0.0
        self._window = policy.window_size if isinstance(policy.window_size, float) else LONG

    @property
    def is_closed(self) -> bool:
        return self.document["state"] == "closed"

    def admit(self, now: float, owner: str) -> Admission | None:
        """A permit for a call that begins now; None if the circuit rejects it."""
        if self.is_closed:
            return self.document["generation"], None
        if self.document["state"] == "open" and now < (self.document["retry_at"] or 0.0):
            return None
        self._step(machine.Acquire(owner), now)
        return (self.document["generation"], owner) if owner in self.document["leases"] else None

    def record(self, now: float, admission: Admission, category: str, retry_after: float | None) -> None:
        """Record the outcome of a call; `category` is "" for a success."""
        generation, owner = admission
        if category and category not in self.policy.counts:
            if owner is not None:
                self._step(machine.Release(owner), now)
            return
        if self.is_closed:
            self._count_plain(now)
        outcome: Outcome = "f" if category else "s"
        self._step(machine.Record(generation, ((outcome, 1),), None, retry_after, owner), now)

    def _count_plain(self, now: float) -> None:
        since = min(max(self._until, now - self._window), now)
        for at in np.linspace(since, now, 5).tolist():
            number = round(self._weight_until(at) - self._weight_until(self._until))
            if number:
                self._step(machine.Record(self.document["generation"], (("s", number),)), at)
            self._until = max(self._until, at)

    def _weight_until(self, moment: float) -> float:
        return self._total[bisect_right(self._ends, moment)]

    def _step(self, event: machine.Event, now: float) -> None:
        self.document, changes = machine.step(self.document, event, now, self.policy)
        if changes:
            self._until = now


Event = tuple[float, int, Callable[..., None], tuple[object, ...]]


class PeriodReplay:
    """One replay. policies: by task. part: from 0 to 1, where the ends of outages are within their bounds.

    sums: by task and block of time, the figures.
    """

    def __init__(
        self, service: ServiceCalls, policies: Sequence[TaskPolicy], borders: Floats, seed: int, part: float
    ) -> None:
        self.service: ServiceCalls = service
        self.policies: Sequence[TaskPolicy] = policies
        self.seed: int = seed
        blocks = np.searchsorted(borders, service.began, side="right") - 1
        self.blocks: Ints = np.clip(blocks, 0, len(borders) - 2)
        self._begins = [outage.start for outage in service.outages]
        self._ends = [
            outage.low + (outage.high - outage.low) * ((part + 0.618 * place) % 1.0)
            for place, outage in enumerate(service.outages)
        ]
        self._pools: list[list[int]] = [
            np.flatnonzero(service.outage == place).tolist() for place in range(len(service.outages))
        ]
        timeouts = np.array([policy.timeout or np.inf for policy in policies])
        self._plain = service.at_once <= timeouts[service.task_of]
        self.sums: Floats = np.zeros((len(policies), len(borders) - 1, len(Figure)))
        circuits = [policy.circuit for policy in policies if policy.circuit is not None]
        guarded = np.array([policy.circuit is not None for policy in policies])
        plain = self._plain & guarded[service.task_of]
        ends, weights = (service.began + service.at_once)[plain], service.weight_of[plain]
        order = np.argsort(ends)
        circuit = ReplayedCircuit(circuits[0], ends[order], weights[order]) if circuits else None
        self.circuit: ReplayedCircuit | None = circuit
        self._heap: list[Event] = []
        self._planned = 0

    def _count(self, place: int, figure: Figure, number: float = 1.0) -> None:
        service = self.service
        self.sums[service.task_of[place], self.blocks[place], figure] += service.weight_of[place] * number

    def run(self) -> Floats:
        """The whole period."""
        starts: list[float] = self.service.began.tolist()
        plain: list[bool] = self._plain.tolist()
        heap = self._heap
        busy = [*np.flatnonzero(~self._plain).tolist(), len(starts)]
        at = 0
        while at < len(starts) or heap:
            if heap and (at == len(starts) or heap[0][0] <= starts[at]):
                now, _, action, args = heapq.heappop(heap)
                action(now, *args)
            elif plain[at] and (self.circuit is None or self.circuit.is_closed):
                after = busy[bisect_left(busy, at)]
                at = min(after, bisect_left(starts, heap[0][0])) if heap else after
            else:
                self._plain[at] = False
                policy, chance = self.policies[self.service.runs[at][0]], Random(self.seed * 1_000_003 + at)
                self._attempt(starts[at], _Run(at, policy, starts[at], chance))
                at += 1
        service, plain_runs = self.service, self._plain
        for figure, number in ((Figure.RUNS, 1.0), (Figure.CALLS, 1.0), (Figure.SECONDS, service.at_once)):
            places = (service.task_of[plain_runs], self.blocks[plain_runs])
            np.add.at(self.sums[:, :, figure], places, (service.weight_of * number)[plain_runs])
        return self.sums

    def _plan(self, at: float, action: Callable[..., None], *args: object) -> None:
        self._planned += 1
        heapq.heappush(self._heap, (at, self._planned, action, args))

    def _attempt(self, now: float, run: _Run) -> None:
        policy, circuit = run.policy, self.circuit
        run.attempts += 1
        admission: Admission | None = None
        if circuit is not None and policy.circuit is not None:
            admission = circuit.admit(now, f"{run.place}-{run.attempts}")
            if admission is None:
                self._fail(now, run, RecordedAnswer(0.0, "circuit_open"))
                return
        answer, outage = self._answer(run, now, policy.timeout)
        self._count(run.place, Figure.CALLS)
        if answer.category and outage != UP:
            self._count(run.place, Figure.DEAD)
        self._plan(now + answer.seconds, self._finish, run, admission, answer)

    def _finish(self, now: float, run: _Run, admission: Admission | None, answer: RecordedAnswer) -> None:
        if self.circuit is not None and admission is not None:
            self.circuit.record(now, admission, answer.category, answer.retry_after)
        if answer.category:
            self._fail(now, run, answer)
        else:
            self._end(now, run, Figure.RECOVERED)

    def _fail(self, now: float, run: _Run, answer: RecordedAnswer) -> None:
        policy = run.policy
        run.hit = True
        rule = answer.category if answer.category in policy.retry.rules else ""
        run.counters[rule] = run.counters.get(rule, 0) + 1
        verdict = policy.retry.decide(
            _error(answer.category, answer.retry_after),
            run.counters[rule],
            elapsed=now - run.began,
            random=run.chance.random(),
            previous_delay=run.previous,
        )
        if not verdict.retry:
            self._end(now, run, Figure.FALLBACK if policy.falls_back else Figure.FAILED)
            return
        run.previous = verdict.delay
        self._count(run.place, Figure.WAITED, verdict.delay)
        self._plan(now + verdict.delay, self._attempt, run)

    def _end(self, now: float, run: _Run, figure: Figure) -> None:
        self._count(run.place, Figure.RUNS)
        self._count(run.place, Figure.SECONDS, now - run.began)
        if run.hit:
            self._count(run.place, Figure.HIT)
            self._count(run.place, figure)

    # -- what a call meets

    def _answer(self, run: _Run, now: float, timeout: float | None) -> tuple[RecordedAnswer, int]:
        """What a call meets, and the outage in which it begins, or UP."""
        outage = bisect_right(self._begins, now) - 1
        if outage >= 0 and now > self._ends[outage]:
            outage = UP
        answer = self._next_answer(run, outage)
        run.met += 1
        if timeout is not None and answer.seconds > timeout:
            run.slow = None if answer.category else answer
            answer = RecordedAnswer(timeout, "timeout")
        if answer.category:
            run.up += outage == UP
            run.last = answer
        return answer, outage

    def _next_answer(self, run: _Run, outage: int) -> RecordedAnswer:
        service, own, draw = self.service, self.service.calls_of[run.place], run.chance.random()
        if run.slow is not None:
            return run.slow
        if run.met < len(own) and service.outage[own[run.met]] == outage:
            call = own[run.met]
        else:
            retries = (
                service.retries.get(run.up, []) if run.up else service.first[int(service.task_of[run.place])]
            )
            pool = retries if outage == UP else self._pools[outage]
            if len(pool) < (FEW if run.up and outage == UP else 1):
                return run.last
            call = pool[int(draw * len(pool))]
        return RecordedAnswer(
            float(service.seconds[call]), service.categories[call], service.retry_after[call]
        )
