"""The replay: a discrete-event simulation of a recorded period with the production machines. Pure.

The same runs begin at the same times. What each call meets comes from the record and the model of the
service; whether and when it is made is decided by `Retry.decide`, `Backoff.delay` and the circuit's
`machine.step` under the policy that is tried. A limit is a number of places with a line in front of it.
"""

from __future__ import annotations

import heapq
import math
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from prefect_resilience.errors.taxonomy import ErrorCategory, ErrorInfo
from prefect_resilience.operations.tuning.calls import chance_of
from prefect_resilience.operations.tuning.meetings import Meetings, ReplayState
from prefect_resilience.operations.tuning.options import TaskPolicy
from prefect_resilience.operations.tuning.plain_runs import (
    CALLS,
    DEAD,
    FAILED,
    FALLBACK,
    HIT,
    RECOVERED,
    RUNS,
    SECONDS,
    WAITED,
    Sums,
)
from prefect_resilience.operations.tuning.replay_circuit import Admission, ReplayedCircuit
from prefect_resilience.operations.tuning.scenario import Scenario

LONGEST_HANG = 3600.0
"""The seconds that a call without a timeout waits for a service that never answers."""

KNOWN = frozenset(category.value for category in ErrorCategory)


@dataclass
class ReplaySums:
    """What a replay gives: by task and block the sums of RUNS, HIT, ...; by outage the calls at its return.

    durations: by task the seconds and the weight of each run that was replayed one by one, in turn.
    called: the places of the plain runs among them; of the others the recorded durations hold.
    opened: how often the circuit opened. attempts: those that were replayed one by one.
    """

    sums: list[list[Sums]]
    returned: list[float]
    durations: list[array[float]]
    called: array[int]
    opened: int = 0
    attempts: int = 0


@lru_cache(maxsize=4096)
def _info(category: str, retry_after: float | None) -> ErrorInfo:
    known = category in KNOWN
    return ErrorInfo.of(
        ErrorCategory(category) if known else ErrorCategory.UNEXPECTED, retry_after=retry_after
    )


class _Line:
    """The places of one task's limit, and the runs that wait for one."""

    def __init__(self, places: int) -> None:
        self.free = places
        self.waiting: deque[_Waiting] = deque()

    def next(self) -> _Waiting | None:
        """The first that still waits."""
        while self.waiting:
            first = self.waiting.popleft()
            if not first.over:
                return first
        return None


@dataclass(slots=True)
class _Waiting:
    state: ReplayState
    admission: Admission
    over: bool = False


Event = tuple[float, int, Callable[..., None], tuple[object, ...]]


class PeriodReplay:
    """One replay of a scenario. policies: by task. blind, redrawn: as for `Meetings`."""

    def __init__(
        self,
        scenario: Scenario,
        policies: Sequence[TaskPolicy],
        seed: int,
        *,
        blind: bool = False,
        redrawn: bool = False,
    ) -> None:
        self.scenario: Scenario = scenario
        self.policies: Sequence[TaskPolicy] = policies
        self.seed: int = seed
        self.meetings: Meetings = Meetings(scenario, seed, blind=blind, redrawn=redrawn)
        self.circuit: ReplayedCircuit | None = self._circuit()
        self.lines: list[_Line | None] = [
            None if policy.places is None else _Line(policy.places) for policy in policies
        ]
        self.heap: list[Event] = []
        self.planned: int = 0
        self.result: ReplaySums = ReplaySums(
            [[list(sums) for sums in blocks] for blocks in scenario.passed],
            scenario.returned(),
            [array("d") for _ in policies],
            array("l"),
        )

    def _circuit(self) -> ReplayedCircuit | None:
        circuits = [policy.circuit for policy in self.policies if policy.circuit is not None]
        without = frozenset(task for task, policy in enumerate(self.policies) if policy.circuit is None)
        return ReplayedCircuit(circuits[0], self.scenario.plain, without) if circuits else None

    def run(self) -> ReplaySums:
        """The whole period."""
        runs, jumps, heap = self.scenario.runs, self.scenario.jumps, self.heap
        starts, circuit = self.scenario.plain.starts, self.circuit
        at = 0
        while at < len(runs) or heap:
            if heap and (at == len(runs) or heap[0][0] <= starts[at]):
                now, _, what, args = heapq.heappop(heap)
                what(now, *args)
                continue
            jump = jumps[at]
            if jump > at and (circuit is None or circuit.calm(starts[at])):
                after = bisect_left(starts, heap[0][0], at, jump) if heap else jump
                if circuit is not None:
                    circuit.passed(at, after)
                at = after
            else:
                if jump > at:
                    self._take_out(at)
                self._attempt(starts[at], ReplayState(runs[at], starts[at]))
                at += 1
        if circuit is not None:
            self.result.opened = circuit.opened
        return self.result

    def _plan(self, at: float, what: Callable[..., None], *args: object) -> None:
        self.planned += 1
        heapq.heappush(self.heap, (at, self.planned, what, args))

    def _take_out(self, place: int) -> None:
        """Take a plain run out of the sums: it is replayed like the others."""
        scenario, run = self.scenario, self.scenario.runs[place]
        sums = self.result.sums[run.task][run.block]
        sums[RUNS] -= run.weight
        sums[CALLS] -= run.weight
        sums[SECONDS] -= scenario.durations[place] * run.weight
        outage = scenario.return_of.get(place)
        if outage is not None:
            self.result.returned[outage] -= run.weight
        self.result.called.append(place)

    # -- the guards, outside in

    def _attempt(self, now: float, state: ReplayState) -> None:
        task = state.run.task
        state.attempts += 1
        self.result.attempts += 1
        admission: Admission | None = (0, None)
        if self.circuit is not None and self.policies[task].circuit is not None:
            admission = self.circuit.admit(now)
        if admission is None:
            self._failed(now, state, "circuit_open", None)
            return
        line = self.lines[task]
        if line is None:
            self._call(now, state, admission)
        elif line.free:
            line.free -= 1
            self._call(now, state, admission)
        else:
            waiting = _Waiting(state, admission)
            line.waiting.append(waiting)
            most = self.policies[task].max_wait
            if most is not None:
                self._plan(now + most, self._leave_line, waiting)

    def _leave_line(self, now: float, waiting: _Waiting) -> None:
        if not waiting.over:
            waiting.over = True
            if self.circuit is not None:
                self.circuit.failed(now, waiting.admission, 1, False, None)
            self._failed(now, waiting.state, "unavailable", None)

    def _call(self, now: float, state: ReplayState, admission: Admission) -> None:
        run, policy = state.run, self.policies[state.run.task]
        (seconds, category, retry_after), outage = self.meetings.meet(state, now, policy.timeout)
        seconds = min(seconds, LONGEST_HANG)
        sums = self.result.sums[run.task][run.block]
        sums[CALLS] += run.weight
        if outage >= 0 and category:
            sums[DEAD] += run.weight
        self._count_return(now, outage, run.weight)
        end = now + seconds
        line, guarded = self.lines[run.task], self.circuit is not None and policy.circuit is not None
        if line is not None or (guarded and (category or admission[1] is not None)):
            self._plan(end, self._answered, state, admission, category, retry_after)
        elif category:
            self._failed(end, state, category, retry_after)
        else:
            if guarded and self.circuit is not None:
                self.circuit.succeeded(end, admission, max(1, round(run.count)))
            self._over(end, state, True)

    def _count_return(self, now: float, outage: int, weight: float) -> None:
        """Count a call soon after an outage. It also counts if the next outage has begun by then."""
        if outage >= 0:
            return
        scenario = self.scenario
        border = bisect_right(scenario.borders, now)
        if border:
            ended = scenario.states[border - 1]
            if now - scenario.borders[border - 1] < scenario.returns[ended][0]:
                self.result.returned[ended] += weight

    def _answered(
        self, now: float, state: ReplayState, admission: Admission, category: str, retry_after: float | None
    ) -> None:
        policy = self.policies[state.run.task]
        if self.circuit is not None and policy.circuit is not None:
            number = max(1, round(state.run.count))
            if category:
                counted = category in policy.circuit.counts
                self.circuit.failed(now, admission, number, counted, retry_after)
            else:
                self.circuit.succeeded(now, admission, number)
        line = self.lines[state.run.task]
        if line is not None:
            following = line.next()
            if following is None:
                line.free += 1
            else:
                following.over = True
                self._call(now, following.state, following.admission)
        if category:
            self._failed(now, state, category, retry_after)
        else:
            self._over(now, state, True)

    # -- the end of an attempt

    def _failed(self, now: float, state: ReplayState, category: str, retry_after: float | None) -> None:
        """Decide what follows a failure that ends at `now`, which may be later than the event."""
        if state.attempts == 1:
            state.hit = True
        retry = self.policies[state.run.task].retry
        info = _info(category, retry_after)
        rule = retry.rule_name(info)
        state.counters[rule] = counted = state.counters.get(rule, 0) + 1
        verdict = retry.decide(
            info,
            counted,
            elapsed=now - state.began,
            random=chance_of(self.seed, state.run.place, state.attempts, 99),
            previous_delay=state.previous,
        )
        if verdict.retry:
            state.previous = verdict.delay
            state.waited += verdict.delay
            self._plan(now + verdict.delay, self._attempt, state)
        else:
            self._over(now, state, False)

    def _over(self, now: float, state: ReplayState, well: bool) -> None:
        run = state.run
        sums, weight, seconds = self.result.sums[run.task][run.block], run.weight, now - state.began
        sums[RUNS] += weight
        sums[SECONDS] += seconds * weight
        sums[WAITED] += state.waited * weight
        self.result.durations[run.task].extend((seconds, weight))
        if state.hit:
            sums[HIT] += weight
            if well:
                sums[RECOVERED] += weight
        if not well:
            fell = chance_of(self.seed, run.place, 0, 98) < self.scenario.falls_back[run.task]
            sums[FALLBACK if fell else FAILED] += weight


def mean_of(results: Sequence[ReplaySums]) -> ReplaySums:
    """The mean of several replays of one scenario; the durations are those of the first one."""
    number = len(results)
    if number == 1:
        return results[0]
    return ReplaySums(
        sums=[
            [
                [math.fsum(one) / number for one in zip(*same, strict=True)]
                for same in zip(*blocks, strict=True)
            ]
            for blocks in zip(*(result.sums for result in results), strict=True)
        ],
        returned=[
            math.fsum(one) / number for one in zip(*(result.returned for result in results), strict=True)
        ],
        durations=results[0].durations,
        called=results[0].called,
        opened=round(sum(result.opened for result in results) / number),
        attempts=round(sum(result.attempts for result in results) / number),
    )


def load_at_return(scenario: Scenario, result: ReplaySums) -> float | None:
    """The load in the first seconds after an outage over the usual load; the worst of all returns."""
    loads = [
        number / usual
        for number, (span, usual) in zip(result.returned, scenario.returns, strict=True)
        if span and usual
    ]
    return max(loads, default=None)


def percentile(scenario: Scenario, result: ReplaySums, task: int, share: float) -> float | None:
    """A quantile of the durations of a task's runs."""
    seconds, weights = result.durations[task][::2], result.durations[task][1::2]
    weighed = list(zip(seconds, weights, strict=True))
    called = set(result.called)
    for place, run in enumerate(scenario.runs):
        if run.task == task and scenario.jumps[place] > place and place not in called:
            weighed.append((scenario.durations[place], run.weight))
    weighed.sort()
    left = share * math.fsum(weight for _, weight in weighed)
    for one, weight in weighed:
        left -= weight
        if left <= 0:
            return one
    return None
