"""One service on which policies are tried: its record, its model, and the replays made so far. Pure."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from prefect_resilience.operations.tuning.calls import ServiceRecord
from prefect_resilience.operations.tuning.comparing import does_no_harm, harm
from prefect_resilience.operations.tuning.losses import PRICES, Prices, losses
from prefect_resilience.operations.tuning.options import TaskPolicy, policy_of, with_value
from prefect_resilience.operations.tuning.plain_runs import RUNS
from prefect_resilience.operations.tuning.record import RecordedPeriod
from prefect_resilience.operations.tuning.replaying import PeriodReplay, ReplaySums, mean_of
from prefect_resilience.operations.tuning.scenario import DAY, MOST_REPLAYED, Scenario, scenario_of
from prefect_resilience.operations.tuning.service import ServiceModel, fitted

SURE = 13
"""The replays of a policy, if small differences of luck change what follows, as behind a circuit."""

FEW = 3
"""The replays of a value that only show whether it may be among the best."""

SURE_WITHOUT_CIRCUIT = 3
RUNS_OF_ALL = 60_000
"""The most runs, over all replays of one policy behind a circuit."""

HARMLESS = 0.02
"""So much harm may be the luck of the replays."""

SHARE_OF_LOSS, SHARE_OF_SMOOTH = 0.01, 0.05
QUICK, MARGIN_OF_ROUNDING = 0.995, 0.94
"""No timeout is tried that is shorter than this share of the calls takes, but it may be rounded."""

MOST_KEPT = 40
"""The most options whose replays are kept."""


@dataclass(slots=True)
class _Replayed:
    """The replays of the same options, and the means of the first so many of them."""

    done: list[ReplaySums] = field(default_factory=list[ReplaySums])
    means: dict[int, ReplaySums] = field(default_factory=dict[int, ReplaySums])


@dataclass
class ServiceTrials:
    """One service on which policies are tried, with the options that its tasks have by now.

    Behind a circuit one call more or less that fails moves all that follows. There the luck of calls in
    outages is drawn anew (`redrawn`), and policies are compared by the mean of several replays.
    """

    record: ServiceRecord
    model: ServiceModel
    scenario: Scenario
    options: list[dict[str, Any]]
    prices: Prices
    days: float
    seed: int
    redrawn: bool
    sure: int
    few: int
    recorded: list[dict[str, Any]] = field(init=False)
    spent: int = 0
    """The attempts in all replays so far."""

    _kept: OrderedDict[str, _Replayed] = field(default_factory=OrderedDict[str, "_Replayed"])

    def __post_init__(self) -> None:
        self.recorded = self.options

    def policies(self, options: list[dict[str, Any]]) -> list[TaskPolicy]:
        return [policy_of(one) for one in options]

    def replay(self, options: list[dict[str, Any]], number: int | None = None) -> ReplaySums:
        """The mean of so many replays of these options; None: of as many as it takes to be sure."""
        number = self.sure if number is None else number
        known = repr(options)
        kept = self._kept.setdefault(known, _Replayed())
        self._kept.move_to_end(known)
        if len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        if number not in kept.means:
            policies = self.policies(options)
            for at in range(len(kept.done), number):
                scenario = self.scenario.with_ends(self.seed, at)
                replay = PeriodReplay(scenario, policies, self.seed + at, redrawn=self.redrawn)
                kept.done.append(replay.run())
                self.spent += kept.done[-1].attempts
            kept.means[number] = mean_of(kept.done[:number])
        return kept.means[number]

    def replays(self, options: list[dict[str, Any]]) -> list[ReplaySums]:
        """As many replays of these options as it takes to be sure."""
        self.replay(options)
        return self._kept[repr(options)].done[: self.sure]

    def lost(self, options: list[dict[str, Any]], number: int | None = None) -> list[float]:
        """The loss of each block under these options."""
        return losses(self.scenario, self.replay(options, number), self.prices)

    def with_option(self, task: int, changes: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The options of all tasks with other values; a circuit's options are those of all its tasks."""
        changed = list(self.options)
        for option, value in changes.items():
            shared = option.startswith("circuit")
            for place, one in enumerate(changed):
                if place == task or (shared and one.get("circuit")):
                    changed[place] = with_value(one, option, value)
        return changed

    def harm(self, options: list[dict[str, Any]], number: int | None = None) -> float:
        """By how much more runs, or calls in outages, fail than under the recorded options, as a share."""
        return harm(self.replay(self.recorded, number), self.replay(options, number))

    def is_allowed(self, options: list[dict[str, Any]], *, by_chance: bool = True) -> bool:
        """Without a goal nothing is bought with more failed runs or with more calls to a service in trouble
        than under the recorded options. by_chance: more of them count only if that is hardly chance."""
        if self.prices != PRICES[None]:
            return True
        if self.redrawn:
            return self.harm(options) <= HARMLESS
        now, then = self.replay(self.recorded), self.replay(options)
        return does_no_harm(now, then, self.seed, by_chance=by_chance)

    def worth(self, number: int | None = None) -> float:
        """The gain that makes a change worthwhile: a share of the loss, and of the time of runs that
        all succeed at once."""
        result = self.replay(self.options, number)
        smooth = 0.0
        for task, blocks in enumerate(result.sums):
            seen = self.model.latency[task].seen
            smooth += sum(block[RUNS] for block in blocks) * (math.fsum(seen) / len(seen) if seen else 0.0)
        return max(SHARE_OF_LOSS * sum(self.lost(self.options, number)), SHARE_OF_SMOOTH * smooth)


def trials_of(
    record: ServiceRecord,
    period: RecordedPeriod,
    prices: Prices,
    seed: int,
    most: int,
    least: float | None = None,
) -> ServiceTrials:
    """The trials of a service. most: about so many runs are replayed. least: the shortest timeout to try."""
    model = fitted(record, period.until)
    options = [dict(cast("Mapping[str, Any]", task.options or {})) for task in record.tasks]
    policies = [policy_of(one) for one in options]
    circuit = next((policy.circuit for policy in policies if policy.circuit is not None), None)
    quick = {
        task: MARGIN_OF_ROUNDING * (latency.at(QUICK) or math.inf) for task, latency in model.latency.items()
    }
    scenario = scenario_of(
        record,
        model,
        period.since,
        period.until,
        least_timeouts={task: min(one, least or math.inf) for task, one in quick.items()},
        places={task: one.places for task, one in enumerate(policies) if one.places is not None},
        most=most,
    )
    redrawn = circuit is not None and bool(model.outages)
    replays, runs = (SURE, RUNS_OF_ALL) if redrawn else (SURE_WITHOUT_CIRCUIT, MOST_REPLAYED)
    sure = max(1, min(replays, runs // max(1, scenario.busy)))
    few = min(sure, FEW)
    days = (period.until - period.since) / DAY
    return ServiceTrials(record, model, scenario, options, prices, days, seed, redrawn, sure, few)
