"""Worlds whose truth is known: a small true simulator of services and of the tasks that call them.

It shares the production machines with the replay, and nothing else: no fitted model, no sampling. A world
says what its service does at each moment; `live` lets the tasks live through its days under given options and
returns the record that Prefect would have, and what really happened.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

from prefect_resilience.errors.taxonomy import ErrorCategory, ErrorInfo
from prefect_resilience.guards.circuits import machine
from prefect_resilience.operations.tuning.record import (
    RecordedAttempt,
    RecordedPeriod,
    RecordedRun,
    RecordedTask,
    policy_of,
)

BEGINS = 1_700_000_000.0
DAY = 86_400.0
HOUR = 3600.0
GOOD_RETRY = {"attempts": 3, "backoff": {"kind": "exponential", "initial": 1.0}}
FAST_FAILURE = 0.05
LATE = 1e9

Kind = Literal["503", "hang", "half-hang", "limit"]


@dataclass(frozen=True)
class Trouble:
    """Between two moments (seconds since the world began) a `share` of the calls fails.

    limit: the service lets `per_second` calls through and answers the others with 429.
    """

    begins: float
    ends: float
    kind: Kind = "503"
    share: float = 1.0
    per_second: float = 0.0
    retry_after: float | None = None


@dataclass(frozen=True)
class TrueService:
    """What is true of a service. median, sigma: of the log-normal latency in seconds.

    hang: the share of calls that never answer. blip: the share of calls that fail by chance, each for itself.
    stuck: the share of runs that fail whatever is done. capacity: the calls a second that it answers; more
    calls than that fail, and cost capacity.
    """

    median: float = 0.3
    sigma: float = 0.35
    hang: float = 0.0
    blip: float = 0.0
    stuck: float = 0.0
    capacity: float | None = None
    troubles: tuple[Trouble, ...] = ()


@dataclass(frozen=True)
class World:
    """A service, who calls it how often, and under which options."""

    name: str
    service: TrueService
    options: Mapping[str, Any]
    runs: int = 5000
    seconds: float = 7 * DAY
    task: str = "ask"


@dataclass
class Truth:
    """What really happened; `loads` are the calls that arrived, by whole seconds; `wasted` is the time
    of the calls that failed; `recoveries` are the seconds until the success of runs whose first call
    failed."""

    runs: int = 0
    hit: int = 0
    recovered: int = 0
    failed: int = 0
    fallback: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    calls: int = 0
    dead_calls: int = 0
    wasted: float = 0.0
    durations: list[float] = field(default_factory=list[float])
    recoveries: list[float] = field(default_factory=list[float])
    loads: dict[int, int] = field(default_factory=dict[int, int])


@dataclass
class _Run:
    number: int
    began: float
    chance: Random
    stuck: bool
    attempts: list[RecordedAttempt] = field(default_factory=list[RecordedAttempt])
    counters: dict[str, int] = field(default_factory=dict[str, int])
    previous: float | None = None
    waiting_since: float = 0.0
    queued: int = 0


class _Day:
    """The discrete events of one world."""

    def __init__(self, world: World, lived: Mapping[str, Any], seed: int, luck: int) -> None:
        policy = policy_of(lived)
        self.world, self.policy, self.seed, self.luck = world, policy, seed, luck
        self.heap: list[tuple[float, int, Callable[[float], None]]] = []
        self.planned = 0
        self.document = machine.new()
        limits: Mapping[str, Any] = lived.get("limits") or {}
        self.places: int | None = limits.get("max_concurrent")
        self.max_wait: float | None = limits.get("max_wait")
        self.circuit = None if policy.circuit is None else str(lived["circuit"].get("name", world.task))
        self.busy = 0
        self.line: deque[_Run] = deque()
        self.truth = Truth()
        self.runs: list[RecordedRun] = []
        self.recent: deque[float] = deque()
        self.tokens, self.filled_at = 1.0, 0.0

    def at(self, when: float, what: Callable[[float], None]) -> None:
        self.planned += 1
        heapq.heappush(self.heap, (when, self.planned, what))

    def live(self) -> None:
        arrivals = Random(f"arrivals-{self.world.name}-{self.seed}")
        moments = sorted(arrivals.random() * self.world.seconds for _ in range(self.world.runs))
        for number, moment in enumerate(moments):
            chance = Random(f"{self.world.name}-{self.luck}-{number}")
            run = _Run(number, moment, chance, chance.random() < self.world.service.stuck)
            self.at(moment, lambda now, run=run: self.attempt(run, now))
        while self.heap:
            now, _, what = heapq.heappop(self.heap)
            what(now)

    # -- the guards, outside in

    def attempt(self, run: _Run, now: float) -> None:
        permit: tuple[int, str | None] | None = (0, None)
        if self.policy.circuit is not None:
            permit = self.ask_circuit(run, now)
        if permit is None:
            self.ended(run, now, now, ErrorCategory.CIRCUIT_OPEN, None, rejected=True)
        elif self.places is None or self.busy < self.places:
            self.busy += 1
            self.call(run, now, now, permit)
        else:
            self.stand_in_line(run, now, permit)

    def stand_in_line(self, run: _Run, now: float, permit: tuple[int, str | None]) -> None:
        run.waiting_since = now
        run.queued += 1
        ticket = run.queued
        self.line.append(run)
        self.permits[run.number] = permit

        def gives_up(later: float) -> None:
            if run in self.line and run.queued == ticket:
                self.line.remove(run)
                if permit[1] is not None:
                    self.step(machine.Release(permit[1]), later)
                self.ended(run, now, later, ErrorCategory.UNAVAILABLE, None, rejected=True)

        if self.max_wait is not None:
            self.at(now + self.max_wait, gives_up)

    permits: dict[int, tuple[int, str | None]] = {}  # noqa: RUF012 - replaced for each day by `live`

    def ask_circuit(self, run: _Run, now: float) -> tuple[int, str | None] | None:
        owner = f"{run.number}-{len(run.attempts)}"
        self.step(machine.Acquire(owner), now)
        if self.document["state"] == "closed":
            return self.document["generation"], None
        return (self.document["generation"], owner) if owner in self.document["leases"] else None

    def step(self, event: machine.Event, now: float) -> None:
        assert self.policy.circuit is not None
        self.document, _ = machine.step(self.document, event, BEGINS + now, self.policy.circuit)

    def call(self, run: _Run, asked: float, now: float, permit: tuple[int, str | None]) -> None:
        seconds, category, retry_after = self.answer(run, now)
        if self.policy.timeout is not None and seconds > self.policy.timeout:
            seconds, category, retry_after = self.policy.timeout, ErrorCategory.TIMEOUT, None
        seconds = min(seconds, 3600.0)

        def answered(end: float) -> None:
            self.busy -= 1
            self.truth.wasted += 0.0 if category is None else end - asked
            if self.line and self.places is not None and self.busy < self.places:
                following = self.line.popleft()
                self.busy += 1
                self.call(following, following.waiting_since, end, self.permits[following.number])
            if self.policy.circuit is not None:
                generation, owner = permit
                outcome = "s" if category is None else "f"
                self.step(machine.Record(generation, ((outcome, 1),), None, retry_after, owner), end)
            self.ended(run, asked, end, category, retry_after)

        self.at(now + seconds, answered)

    # -- the service

    def answer(self, run: _Run, now: float) -> tuple[float, ErrorCategory | None, float | None]:
        """Seconds until the answer, the category of the failure, and Retry-After."""
        service, chance = self.world.service, run.chance
        self.truth.calls += 1
        self.truth.loads[int(now)] = self.truth.loads.get(int(now), 0) + 1
        latency = service.median * math.exp(service.sigma * chance.gauss(0, 1))
        luck, other = chance.random(), chance.random()
        for trouble in service.troubles:
            if trouble.begins <= now < trouble.ends:
                failure = self.in_trouble(trouble, luck, other, now)
                if failure is not None:
                    self.truth.dead_calls += 1
                    return failure
        if service.capacity is not None and self.is_overloaded(service.capacity, now, luck):
            return FAST_FAILURE, ErrorCategory.UNAVAILABLE, None
        if run.stuck or luck < service.blip:
            return latency, ErrorCategory.SERVER_ERROR, None
        return (LATE if other < service.hang else latency), None, None

    def in_trouble(
        self, trouble: Trouble, luck: float, other: float, now: float
    ) -> tuple[float, ErrorCategory, float | None] | None:
        if trouble.kind == "limit":
            self.tokens = min(2.0, self.tokens + (now - self.filled_at) * trouble.per_second)
            self.filled_at = now
            if self.tokens >= 1:
                self.tokens -= 1
                return None
            return FAST_FAILURE, ErrorCategory.RATE_LIMIT, trouble.retry_after
        if luck >= trouble.share:
            return None
        if trouble.kind == "hang" or (trouble.kind == "half-hang" and other < 0.5):
            return LATE, ErrorCategory.TIMEOUT, None
        return FAST_FAILURE, ErrorCategory.UNAVAILABLE, trouble.retry_after

    def is_overloaded(self, capacity: float, now: float, luck: float) -> bool:
        """Above its capacity, the calls that it cannot answer cost it as much as those that it can."""
        self.recent.append(now)
        while self.recent[0] < now - 2.0:
            self.recent.popleft()
        load = len(self.recent) / 2.0
        return luck >= min(1.0, (capacity / load) ** 2) if load else False

    # -- the end of an attempt

    def ended(
        self,
        run: _Run,
        asked: float,
        now: float,
        category: ErrorCategory | None,
        retry_after: float | None,
        rejected: bool = False,
    ) -> None:
        delay = None if category is None else self.delay(run, category, retry_after, now)
        run.attempts.append(
            RecordedAttempt(
                start=BEGINS + asked,
                seconds=now - asked,
                succeeded=category is None,
                category=None if category is None else category.value,
                retry_after=retry_after,
                rejected=rejected,
                circuit=self.circuit,
            )
        )
        if delay is not None:
            self.truth.waited += delay
            run.previous = delay
            self.at(now + delay, lambda later: self.attempt(run, later))
        else:
            self.over(run, now, category is None)

    def delay(
        self, run: _Run, category: ErrorCategory, retry_after: float | None, now: float
    ) -> float | None:
        retry = self.policy.retry
        rule = category.value if category in retry.rules else ""
        run.counters[rule] = run.counters.get(rule, 0) + 1
        verdict = retry.decide(
            ErrorInfo.of(category, retry_after=retry_after),
            run.counters[rule],
            elapsed=now - run.began,
            random=run.chance.random(),
            previous_delay=run.previous,
        )
        return verdict.delay if verdict.retry else None

    def over(self, run: _Run, now: float, well: bool) -> None:
        truth = self.truth
        truth.runs += 1
        truth.seconds += now - run.began
        truth.durations.append(now - run.began)
        hit = not run.attempts[0].succeeded
        truth.hit += hit
        truth.recovered += hit and well
        truth.recoveries += [now - run.began] if hit and well and not run.attempts[0].rejected else []
        ended = "succeeded" if well else "fallback" if self.policy.falls_back else "failed"
        truth.fallback += ended == "fallback"
        truth.failed += ended == "failed"
        self.runs.append(
            RecordedRun(
                run_id=f"{run.number}",
                start=BEGINS + run.began,
                end=BEGINS + now,
                ended=ended,
                attempts=tuple(run.attempts),
            )
        )


def live(
    world: World, seed: int, options: Mapping[str, Any] | None = None, luck: int | None = None
) -> tuple[RecordedPeriod, Truth]:
    """The record of the world's days under its options, or others, and what really happened.

    seed: of the arrivals. luck: the seed of what each call meets, that of the arrivals unless given.
    """
    lived = world.options if options is None else options
    day = _Day(world, lived, seed, seed if luck is None else luck)
    day.permits = {}
    day.live()
    runs = tuple(sorted(day.runs, key=lambda run: run.start))
    until = max([BEGINS + world.seconds, *(run.end for run in runs)])
    task = RecordedTask(name=world.task, runs=runs, options=dict(lived), block="policy")
    return RecordedPeriod(since=BEGINS, until=until, tasks=(task,)), day.truth


def outages(hours: Sequence[float], seconds: float, kind: Kind = "503") -> tuple[Trouble, ...]:
    return tuple(
        Trouble(hour * HOUR, hour * HOUR + seconds * (0.7 + 0.1 * (at % 7)), kind)
        for at, hour in enumerate(hours)
    )
