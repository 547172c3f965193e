"""The advice for a period, and the comparison of a task's options with others. Pure.

    advise(period).advice
    what_if(period, "label", {"retry": {"attempts": 5}, "timeout": 3}).figures

Every value of an option is replayed on the same days. A change is advised only if it is clearly better in
parts of the period that its choice did not see; then the other options
are judged once more on top of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.operations.tuning.calls import ServiceRecord, services_of
from prefect_resilience.operations.tuning.candidates import OptionToTry, options_to_try
from prefect_resilience.operations.tuning.choosing import Choice, choose
from prefect_resilience.operations.tuning.comparing import (
    does_no_harm,
    figures_of,
    gains,
    recorded_figures,
    side_by_side,
)
from prefect_resilience.operations.tuning.losses import PRICES, Prices, interval, losses, timeout_gains
from prefect_resilience.operations.tuning.options import TaskPolicy, merged, policy_of, with_value
from prefect_resilience.operations.tuning.record import RecordedPeriod
from prefect_resilience.operations.tuning.replaying import RUNS, PeriodReplay, ReplaySums, mean_of
from prefect_resilience.operations.tuning.report import (
    Comparison,
    NotJudged,
    ReplayFit,
    TuningAdvice,
    TuningGoal,
    TuningReport,
)
from prefect_resilience.operations.tuning.scenario import DAY, MOST_REPLAYED, Scenario, scenario_of
from prefect_resilience.operations.tuning.sentences import fit_doubts, sentence_of
from prefect_resilience.operations.tuning.service import ServiceModel, fitted

MOST_CHANGES = 6
REPLAYS = 3
"""Of so many replays the mean is compared; for advice one is enough, because it compares parts of the
period."""

SHARE_OF_LOSS, SHARE_OF_SMOOTH = 0.01, 0.05
QUICK = 0.98
"""Runs that are quicker than this share of all, and nothing else, are the same under every policy."""


@dataclass
class _Bench:
    """One service on which policies are tried, with the options that its tasks have by now."""

    record: ServiceRecord
    model: ServiceModel
    scenario: Scenario
    options: list[dict[str, Any]]
    prices: Prices
    days: float
    seed: int
    replays: int = 1
    _kept: dict[str, ReplaySums] = field(default_factory=dict[str, ReplaySums])

    def policies(self, options: list[dict[str, Any]]) -> list[TaskPolicy]:
        return [policy_of(one) for one in options]

    def replay(self, options: list[dict[str, Any]]) -> ReplaySums:
        known = repr(options)
        if known not in self._kept:
            policies = self.policies(options)
            seeds = range(self.seed, self.seed + self.replays)
            self._kept[known] = mean_of([PeriodReplay(self.scenario, policies, seed).run() for seed in seeds])
        return self._kept[known]

    def with_option(self, task: int, option: str, value: Any) -> list[dict[str, Any]]:
        """The options of all tasks with another value; a circuit's options are those of all its tasks."""
        shared = option.startswith("circuit")
        return [
            with_value(one, option, value) if place == task or (shared and one.get("circuit")) else one
            for place, one in enumerate(self.options)
        ]

    def worth(self) -> float:
        """The gain that makes a change worthwhile: a share of the loss, and of the time of runs that
        all succeed at once."""
        result = self.replay(self.options)
        smooth = 0.0
        for task, blocks in enumerate(result.sums):
            seen = self.model.latency[task].seen
            smooth += sum(block[RUNS] for block in blocks) * (math.fsum(seen) / len(seen) if seen else 0.0)
        return max(SHARE_OF_LOSS * sum(losses(self.scenario, result, self.prices)), SHARE_OF_SMOOTH * smooth)


def advise(period: RecordedPeriod, *, goal: TuningGoal | None = None, seed: int = 0) -> TuningReport:
    """What to change, with the evidence. `goal`: what matters more than usual.

    Example:
        >>> advise(RecordedPeriod(since=0, until=86_400, tasks=())).advice
        ()
    """
    advice: list[TuningAdvice] = []
    refused: list[NotJudged] = []
    fits: list[ReplayFit] = []
    unknown = dict(period.unknown)
    services = services_of(period)
    for record in services:
        if any(task.options is None for task in record.tasks):
            why = "the options with which it ran are not known, so there is nothing to compare with"
            refused += [NotJudged(task=task.name, option="*", why=why) for task in record.tasks]
            continue
        bench = _bench(record, period, PRICES[goal], seed, most=max(2000, 2 * MOST_REPLAYED // len(services)))
        unknown |= {f"{record.name}: {name}": why for name, why in bench.model.unknown.items()}
        fits += (found := _fits(bench, period))
        if any(fit.bad for fit in found):
            why = "the replay of what really ran is too far off to judge other numbers"
            refused += [NotJudged(task=task.name, option="*", why=why) for task in record.tasks]
            continue
        to_try: list[tuple[int, OptionToTry]] = []
        for task, policy in enumerate(bench.policies(bench.options)):
            judged = options_to_try(record, bench.model, task, bench.options[task], policy)
            refused += judged.not_judged
            to_try += [(task, option) for option in judged.to_try]
        advice += _advice(bench, to_try)
    return TuningReport(
        since=period.since,
        until=period.until,
        runs=sum(len(task.runs) for task in period.tasks),
        goal=goal,
        advice=tuple(advice),
        not_judged=tuple(refused),
        fits=tuple(fits),
        unknown=unknown,
    )


def _bench(
    record: ServiceRecord,
    period: RecordedPeriod,
    prices: Prices,
    seed: int,
    most: int,
    least: float | None = None,
) -> _Bench:
    model = fitted(record, period.until)
    options = [dict(cast("Mapping[str, Any]", task.options or {})) for task in record.tasks]
    policies = [policy_of(one) for one in options]
    quick = [latency.at(QUICK) or math.inf for latency in model.latency.values()]
    scenario = scenario_of(
        record,
        model,
        period.since,
        period.until,
        least_timeout=min(quick) if least is None else min(least, *quick),
        circuit=next((policy.circuit for policy in policies if policy.circuit is not None), None),
        limited=any(policy.places is not None for policy in policies),
        most=most,
    )
    busy = sum(jump == place for place, jump in enumerate(scenario.jumps))
    replays = max(1, min(REPLAYS, MOST_REPLAYED // max(1, busy)))
    return _Bench(
        record, model, scenario, options, prices, (period.until - period.since) / DAY, seed, replays
    )


def _fits(bench: _Bench, period: RecordedPeriod) -> list[ReplayFit]:
    """The recorded period beside its replay from the model alone, under the policies that really ran."""
    policies = bench.policies(bench.options)
    whole = scenario_of(
        bench.record, bench.model, period.since, period.until, limited=True, most=MOST_REPLAYED
    )
    result = mean_of(
        [PeriodReplay(whole, policies, bench.seed + at, blind=True).run() for at in range(REPLAYS)]
    )
    return [
        ReplayFit(
            task=task.name,
            recorded=recorded_figures(bench.record, bench.model, place),
            replayed=figures_of(whole, result, place),
        )
        for place, task in enumerate(bench.record.tasks)
    ]


def _advice(bench: _Bench, to_try: list[tuple[int, OptionToTry]]) -> list[TuningAdvice]:
    """The best change, then the best on top of it, until nothing is clearly better."""
    advice: list[TuningAdvice] = []
    tried: set[tuple[int, str]] = set()
    while len(advice) < MOST_CHANGES * len(bench.options):
        choices: list[tuple[float, int, int, OptionToTry, Choice]] = []
        for number, (task, option) in enumerate(to_try):
            choice = None if (task, option.option) in tried else _choice(bench, task, option)
            if choice is not None:
                choices.append((choice.gain, -number, task, option, choice))
        if not choices:
            break
        _, _, task, option, choice = max(choices, key=lambda one: one[:2])
        # What is not clearly better by itself is not tried again on top of others.
        to_try = [(one[2], one[3]) for one in sorted(choices, key=lambda one: -one[1])]
        tried.add((task, option.option))
        if option.option.startswith("circuit"):
            tried |= {(other, option.option) for other in range(len(bench.options))}
        advice.append(_told(bench, task, option, choice))
        bench.options = bench.with_option(task, option.option, option.values[choice.place])
    return advice


def _choice(bench: _Bench, task: int, option: OptionToTry) -> Choice | None:
    before = losses(bench.scenario, bench.replay(bench.options), bench.prices)
    now = bench.replay(bench.options)
    by_value: list[list[float]] = []
    for value in option.values:
        then = bench.replay(bench.with_option(task, option.option, value))
        gained = gains(before, losses(bench.scenario, then, bench.prices))
        # Without a goal nothing is bought with more failed runs or with more calls to a service in trouble.
        allowed = bench.prices != PRICES[None] or does_no_harm(now, then, bench.seed)
        by_value.append(gained if allowed else [min(0.0, one) for one in gained])
    choice = choose(by_value, bench.worth(), bench.days, bench.seed)
    if choice is None and option.option == "timeout":
        return _by_recorded_calls(bench, task, option, by_value)
    return choice


def _by_recorded_calls(
    bench: _Bench, task: int, option: OptionToTry, by_value: list[list[float]]
) -> Choice | None:
    """The choice of a timeout by the recorded calls alone, if the replay does not speak against it.

    In a replay another timeout also moves the moments at which a circuit opens, which may hide what it saves.
    """
    now = policy_of(bench.options[task]).timeout or math.inf
    before = bench.replay(bench.options)
    values = [
        place
        for place, value in enumerate(option.values)
        if value < now
        and does_no_harm(
            before,
            bench.replay(bench.with_option(task, option.option, value)),
            bench.seed,
            by_chance=False,
        )
    ]
    direct = [timeout_gains(bench.scenario, task, option.values[place], bench.prices) for place in values]
    choice = choose(direct, bench.worth(), bench.days, bench.seed)
    if choice is None or interval(by_value[values[choice.place]], bench.seed)[1] <= 0:
        return None
    return replace(choice, place=values[choice.place])


def _told(bench: _Bench, task: int, option: OptionToTry, choice: Choice) -> TuningAdvice:
    better = option.values[choice.place]
    now, then = bench.replay(bench.options), bench.replay(bench.with_option(task, option.option, better))
    before, after = figures_of(bench.scenario, now, task), figures_of(bench.scenario, then, task)
    name = bench.record.tasks[task].name
    return TuningAdvice(
        task=name,
        option=option.option,
        now=option.now,
        better=better,
        why=sentence_of(option.option, option.now, better, before, after, bench.model, task),
        evidence={
            "runs": before.runs,
            "hit": before.hit,
            "won": max(0.0, before.failed + before.fallback - after.failed - after.fallback),
            "lost": max(0.0, after.failed + after.fallback - before.failed - before.fallback),
            "seconds": before.seconds - after.seconds,
            "dead_calls": before.dead_calls - after.dead_calls,
            "gain": choice.gain,
            "low": choice.low,
            "high": choice.high,
            "outages": float(len(bench.model.outages)),
            "p999": bench.model.latency[task].at(0.999),
        },
        effect=Comparison(
            task=name,
            runs=before.runs,
            options=with_value({}, option.option, better),
            now=before,
            then=after,
            figures=side_by_side(bench.scenario, now, then, task, bench.seed),
        ),
    )


def what_if(period: RecordedPeriod, task: str, options: Mapping[str, object], *, seed: int = 0) -> Comparison:
    """The period again with other options of one task, side by side with its own options.

    options: in the form of a `ResiliencePolicy` block; what is left out stays. Raises ConfigurationError for
    an unknown task, for unknown options of the task, and for invalid options.
    """
    for record in services_of(period):
        for place, one in enumerate(record.tasks):
            if one.name == task:
                return _compared(period, record, place, options, seed)
    names = ", ".join(sorted(one.name for one in period.tasks if one.runs)) or "none"
    raise ConfigurationError(f"task {task!r} has no runs in this period; tasks with runs: {names}")


def _compared(
    period: RecordedPeriod, record: ServiceRecord, task: int, options: Mapping[str, object], seed: int
) -> Comparison:
    name = record.tasks[task].name
    if record.tasks[task].options is None:
        raise ConfigurationError(f"the options of task {name!r} are not known: its block must be readable")
    timeout = policy_of(merged({}, options)).timeout
    bench = _bench(record, period, PRICES[None], seed, most=4 * MOST_REPLAYED, least=timeout)
    bench.replays = REPLAYS
    changed = list(bench.options)
    changed[task] = merged(changed[task], options)
    now, then = bench.replay(bench.options), bench.replay(changed)
    before, after = figures_of(bench.scenario, now, task), figures_of(bench.scenario, then, task)
    fit = _fits(bench, period)[task]
    return Comparison(
        task=name,
        runs=before.runs,
        options=cast("Any", dict(options)),
        now=before,
        then=after,
        figures=side_by_side(bench.scenario, now, then, task, seed),
        fit=fit,
        doubts=(*fit_doubts(fit), *bench.model.unknown.values()),
    )
