"""What a call of a replay meets: what the record says it met, or else a draw from the model. Pure.

A recorded call stands for the same call of a replay if the service was in the same state: up, or in the same
outage. Every other call is drawn by its run, its number and the state, so that two policies meet the same.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from prefect_resilience.operations.tuning.calls import ServiceCall, chance_of, quantile
from prefect_resilience.operations.tuning.latencies import Latency
from prefect_resilience.operations.tuning.loads import LoadLimit
from prefect_resilience.operations.tuning.scenario import ReplayedRun, Scenario
from prefect_resilience.operations.tuning.service import ServiceModel

Met = tuple[float, str, float | None]
"""The seconds until the answer (infinite: none comes), the category of a failure or "", and Retry-After."""


@dataclass(slots=True)
class ReplayState:
    """Where a run of a replay is. `nth`: the calls that reached the service; failures: those that failed
    while it was up, the first of them with `category`. slow: its recorded success takes so long."""

    run: ReplayedRun
    began: float
    nth: int = 0
    failures: int = 0
    category: str = ""
    slow: float | None = None
    attempts: int = 0
    hit: bool = False
    waited: float = 0.0
    previous: float | None = None
    counters: dict[str, int] = field(default_factory=dict[str, int])


class Meetings:
    """What the calls of one replay meet. redrawn: nothing is taken from the recorded calls in outages;
    blind: nothing from any recorded call."""

    def __init__(self, scenario: Scenario, seed: int, *, blind: bool = False, redrawn: bool = False) -> None:
        self.scenario: Scenario = scenario
        self.model: ServiceModel = scenario.model
        self.seed: int = seed
        self.blind: bool = blind
        self.redrawn: bool = redrawn
        self.limit: LoadLimit | None = scenario.model.limit
        self._recent: deque[tuple[float, float]] = deque()
        self._load = 0.0
        self._is_overloaded = False

    def meet(self, state: ReplayState, now: float, timeout: float | None) -> tuple[Met, int]:
        """What the next call of a run meets, with its timeout applied; and the outage it is in (-1: none)."""
        outage = self.scenario.states[bisect_right(self.scenario.borders, now)]
        self._is_overloaded = False
        met = self._without_timeout(state, now, outage)
        state.nth += 1
        if timeout is not None and met[0] > timeout:
            if not met[1] and not self.blind:
                state.slow = met[0]
            met = (timeout, "timeout", None)
        if met[1] and outage < 0 and not self._is_overloaded:
            state.failures += 1
            state.category = state.category or met[1]
        return met, outage

    def _without_timeout(self, state: ReplayState, now: float, outage: int) -> Met:
        run, nth, limit = state.run, state.nth, self.limit
        if limit is not None:
            answers = limit.answers(self._load_with(now, run.count))
            self._is_overloaded = outage < 0 and answers < 1
            if self._is_overloaded:
                if chance_of(self.seed, run.place, nth, 1) >= answers:
                    return self._failure(state, outage, self.model.overload)
                return self._success(state)
        if not self.blind and nth < len(run.met) and not (self.redrawn and outage >= 0):
            recorded, call = run.met[nth]
            if recorded == outage and not call.waited_in_line:
                return self._recorded(state, call, outage)
        if outage < 0:
            return self._while_up(state, outage)
        one = self.model.outages[outage]
        if chance_of(self.seed, run.place, nth, 2 + outage) < one.rate:
            return self._failure(state, outage, one.categories, one.retry_after)
        return self._success(state)

    def _load_with(self, now: float, weight: float) -> float:
        """The load in calls a second, this call included."""
        assert self.limit is not None
        recent = self._recent
        recent.append((now, weight))
        self._load += weight
        while recent[0][0] < now - self.limit.span:
            self._load -= recent.popleft()[1]
        return self._load / self.limit.span

    def _recorded(self, state: ReplayState, call: ServiceCall, outage: int) -> Met:
        if not call.cut:
            return call.seconds, call.category, call.retry_after
        latency = self.model.latency[call.task]
        slow = outage < 0 and latency.cut and self._chance(state, 3) < latency.slow / latency.cut
        if not slow:
            return math.inf, "timeout", None
        return call.seconds - latency.tail * math.log(1 - self._chance(state, 4)), "", None

    def _while_up(self, state: ReplayState, outage: int) -> Met:
        if state.slow is not None:
            return state.slow, "", None
        luck = self._chance(state, 5)
        if not state.failures:
            if luck < self.model.usual:
                return self._failure(state, outage, self.model.categories)
            return self._success(state)
        recovering = self.model.recovering.get(state.category)
        good = 1 - self.model.usual if recovering is None else recovering.after(state.failures)
        if luck < good:
            return self._success(state, answers=recovering is not None)
        return self._failure(state, outage, ((state.category, 1.0),))

    def _success(self, state: ReplayState, *, answers: bool = False) -> Met:
        latency = self.model.latency[state.run.task]
        chance = self._chance(state, 6)
        # How often a retry hangs is a part of how often it fails.
        seconds = self._seen(latency, chance) if answers else latency.draw(chance)
        return seconds, "" if seconds < math.inf else "timeout", None

    @staticmethod
    def _seen(latency: Latency, chance: float) -> float:
        return quantile(latency.seen, chance) if latency.seen else latency.draw(chance)

    def _failure(
        self,
        state: ReplayState,
        outage: int,
        categories: Sequence[tuple[str, float]],
        retry_after: float | None = None,
    ) -> Met:
        chance = self._chance(state, 7)
        category = categories[-1][0] if categories else "unexpected"
        for name, share in categories:
            if chance < share:
                category = name
                break
            chance -= share
        if category == "timeout":
            return math.inf, category, None
        seconds = self.model.failing.get(category, (0.0,))
        asked = self.model.retry_after.get(category) if retry_after is None else retry_after
        return quantile(seconds, self._chance(state, 8)), category, asked

    def _chance(self, state: ReplayState, what: int) -> float:
        return chance_of(self.seed, state.run.place, state.nth, -what)
