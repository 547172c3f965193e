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
from dataclasses import dataclass, replace
from typing import Any, cast

from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.operations.tuning.calls import ServiceRecord, fill, services_of, tasks_by_service
from prefect_resilience.operations.tuning.candidates import OPENINGS, OptionToTry, options_to_try
from prefect_resilience.operations.tuning.choosing import Choice, choose
from prefect_resilience.operations.tuning.comparing import (
    figures_of,
    gains,
    likely,
    recorded_figures,
    side_by_side,
)
from prefect_resilience.operations.tuning.effort import Effort, efforts_for, once_for_all, screened
from prefect_resilience.operations.tuning.losses import PRICES, timeout_gains
from prefect_resilience.operations.tuning.options import merged, policy_of, value_in, with_values
from prefect_resilience.operations.tuning.record import RecordedPeriod
from prefect_resilience.operations.tuning.replaying import PeriodReplay, mean_of
from prefect_resilience.operations.tuning.report import (
    Comparison,
    NotJudged,
    ReplayFit,
    TuningAdvice,
    TuningGoal,
    TuningReport,
    fit_together,
)
from prefect_resilience.operations.tuning.scenario import MOST_REPLAYED, scenario_of
from prefect_resilience.operations.tuning.sentences import fit_doubts, sentence_of
from prefect_resilience.operations.tuning.trials import SURE, ServiceTrials, trials_of

MOST_CHANGES = 6
RUNS_COMPARED = 200_000
"""The most runs, over all replays of one policy, if only two policies are compared."""

REPLAYS = 3
"""The replays behind the error of a replay."""

FINALISTS = 2
"""So many values of an option, and so many of those that do the least harm, are replayed as often as it
takes to be sure."""

NEARLY_ALL = 0.9
WORSE, GREAT_HARM = 5.0, 0.3
"""Not among them is what loses so many times the gain that is worth a change, or does so much harm."""


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
    services = tasks_by_service(period)
    efforts = efforts_for(services)
    while services:
        # Each service goes when it is done: all of them at once would take too much memory.
        record, effort = services.pop(0), efforts.pop(0)
        if any(task.options is None for task in record.tasks):
            why = "the options with which it ran are not known, so there is nothing to compare with"
            refused += [NotJudged(task=task.name, option="*", why=why) for task in record.tasks]
            continue
        fill(record)
        trials = trials_of(record, period, PRICES[goal], seed, most=effort.most)
        unknown |= {f"{record.name}: {name}": why for name, why in trials.model.unknown.items()}
        fits += (found := _fits(trials, period))
        if fit_together(found).bad:
            why = "the replay of what really ran is too far off to judge other numbers"
            refused += [NotJudged(task=task.name, option="*", why=why) for task in record.tasks]
            continue
        to_try: list[tuple[int, OptionToTry]] = []
        for task, policy in enumerate(trials.policies(trials.options)):
            judged = options_to_try(record, trials.model, task, trials.options[task], policy)
            refused += judged.not_judged
            to_try += [(task, option) for option in judged.to_try]
        to_try = screened(trials, once_for_all(to_try), effort)
        effort.share_out(trials, [option for _, option in to_try])
        advice += _advice(trials, to_try, effort)
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


def _fits(trials: ServiceTrials, period: RecordedPeriod) -> list[ReplayFit]:
    """The recorded period beside its replay from the model alone, under the policies that really ran."""
    policies = trials.policies(trials.options)
    whole = scenario_of(
        trials.record, trials.model, period.since, period.until, none_plain=True, most=MOST_REPLAYED
    )
    result = mean_of(
        [PeriodReplay(whole, policies, trials.seed + at, blind=True).run() for at in range(REPLAYS)]
    )
    return [
        ReplayFit(
            task=task.name,
            recorded=recorded_figures(trials.record, trials.model, place, whole),
            replayed=figures_of(whole, result, place),
        )
        for place, task in enumerate(trials.record.tasks)
    ]


Judged = tuple[int, OptionToTry, "OptionVerdict"]


@dataclass(frozen=True)
class OptionVerdict:
    """The choice of a value, if one is clearly better.

    harmful: some would be better, but do harm. alone: one that the recorded calls speak for, but that does
    harm by itself, because a circuit opens sooner with it.
    """

    choice: Choice | None = None
    harmful: bool = False
    alone: Choice | None = None


def _advice(
    trials: ServiceTrials, to_try: list[tuple[int, OptionToTry]], effort: Effort
) -> list[TuningAdvice]:
    """The best change, then the best on top of it, until nothing is clearly better or the effort is spent."""
    advice: list[TuningAdvice] = []
    while len(advice) < MOST_CHANGES * len(trials.options) and effort.is_left(trials, len(to_try)):
        judged = [(task, option, _judged(trials, task, option)) for task, option in to_try]
        judged += _with_timeouts(trials, judged)
        choices = [(one[2].choice.gain, -at, at) for at, one in enumerate(judged) if one[2].choice]
        if not choices:
            break
        best = max(choices)[-1]
        task, option, verdict = judged.pop(best)
        assert verdict.choice is not None
        advice += _told(trials, task, option, verdict.choice)
        trials.options = _changed(trials, task, option, verdict.choice.place)
        changed = frozenset(option.changes(verdict.choice.place))
        # What brings nothing by itself is not tried again; a harm may be made up for by the others.
        to_try = [
            (other, one)
            for other, one, found in judged
            if (found.choice is not None or found.harmful) and not _again(task, other, one, changed)
        ]
    return advice


def _again(task: int, other: int, option: OptionToTry, changed: frozenset[str]) -> bool:
    """Whether an option changes what has been changed; a circuit's options are those of all its tasks."""
    return any(path in changed and (task == other or path.startswith("circuit")) for path in option.paths)


def _with_timeouts(trials: ServiceTrials, judged: list[Judged]) -> list[Judged]:
    """Each timeout that does harm by itself, together with openings of the circuit that make up for it."""
    found: list[Judged] = []
    for task, timeout, verdict in judged:
        for _, openings, _ in judged:
            if verdict.alone is not None and openings.option == OPENINGS:
                joint = openings.with_timeout(timeout.values[verdict.alone.place])
                place = _best_allowed(trials, task, joint)
                if place is not None:
                    found.append((task, joint, OptionVerdict(replace(verdict.alone, place=place))))
    return found


def _best_allowed(trials: ServiceTrials, task: int, option: OptionToTry) -> int | None:
    """The place of the value that gains the most without harm; None if none gains anything."""
    before = sum(trials.lost(trials.options))
    gained: dict[int, float] = {}
    for place in range(len(option.values)):
        options = _changed(trials, task, option, place)
        if trials.is_allowed(options):
            gained[place] = before - sum(trials.lost(options))
    best = max(gained, key=gained.__getitem__, default=None)
    return best if best is not None and gained[best] > 0 else None


def _changed(trials: ServiceTrials, task: int, option: OptionToTry, place: int) -> list[dict[str, Any]]:
    return trials.with_option(task, option.changes(place))


def _finalists(trials: ServiceTrials, task: int, option: OptionToTry) -> tuple[list[int], bool]:
    """The places of the values that may be the best, by a few replays of each; and whether better ones do
    great harm."""
    places = range(len(option.values))
    if trials.few == trials.sure:
        return list(places), False
    before = sum(trials.lost(trials.options, trials.few))
    gained: dict[int, float] = {}
    harms: dict[int, float] = {}
    for place in places:
        options = _changed(trials, task, option, place)
        gained[place] = before - sum(trials.lost(options, trials.few))
        harms[place] = trials.harm(options, trials.few)
    best = sorted(places, key=gained.__getitem__, reverse=True)
    good = [place for place in best if gained[place] > -WORSE * trials.worth()]
    chosen = [place for place in good if harms[place] <= GREAT_HARM]
    least = sorted(chosen, key=harms.__getitem__)
    harmful = any(gained[place] > 0 and harms[place] > GREAT_HARM for place in places)
    return sorted({*chosen[:FINALISTS], *least[:FINALISTS]}), harmful


def _judged(trials: ServiceTrials, task: int, option: OptionToTry) -> OptionVerdict:
    places, harmful = _finalists(trials, task, option)
    before = trials.lost(trials.options)
    by_value: list[list[float]] = []
    for place in places:
        options = _changed(trials, task, option, place)
        gained = gains(before, trials.lost(options))
        allowed = trials.is_allowed(options)
        harmful = harmful or (not allowed and sum(gained) > 0)
        by_value.append(gained if allowed else [min(0.0, one) for one in gained])
    choice = choose(by_value, trials.worth(), trials.days, trials.seed)
    if choice is not None:
        return OptionVerdict(replace(choice, place=places[choice.place]))
    if option.option == "timeout":
        return _by_recorded_calls(trials, task, option)
    return OptionVerdict(harmful=harmful)


def _by_recorded_calls(trials: ServiceTrials, task: int, option: OptionToTry) -> OptionVerdict:
    """The choice of a timeout by the recorded calls alone, if the replay does not speak against it.

    In a replay another timeout also moves the moments at which a circuit opens, which may hide what it saves.
    The sooner calls fail, the sooner it opens: so of the timeouts that save nearly all the longest is chosen.
    """
    now = policy_of(trials.options[task]).timeout or math.inf
    places = [place for place, value in enumerate(option.values) if value < now]
    direct = [timeout_gains(trials.scenario, task, option.values[place], trials.prices) for place in places]
    choice = choose(direct, trials.worth(), trials.days, trials.seed, nearly=NEARLY_ALL)
    if choice is None:
        return OptionVerdict()
    choice = replace(choice, place=places[choice.place])
    options = _changed(trials, task, option, choice.place)
    if not trials.is_allowed(options, by_chance=False):
        return OptionVerdict(harmful=True, alone=choice)
    return OptionVerdict(choice)


def _told(trials: ServiceTrials, task: int, option: OptionToTry, choice: Choice) -> list[TuningAdvice]:
    """The advice for each option that the chosen value changes."""
    now, then = trials.replay(trials.options), trials.replay(_changed(trials, task, option, choice.place))
    before, after = figures_of(trials.scenario, now, task), figures_of(trials.scenario, then, task)
    name = trials.record.tasks[task].name
    changes = option.changes(choice.place)
    effect = Comparison(
        task=name,
        runs=before.runs,
        options=with_values({}, changes),
        now=before,
        then=after,
        figures=side_by_side(trials.scenario, now, then, task, trials.seed),
    )
    evidence: dict[str, float | None] = {
        "runs": before.runs,
        "hit": before.hit,
        "won": max(0.0, before.failed + before.fallback - after.failed - after.fallback),
        "lost": max(0.0, after.failed + after.fallback - before.failed - before.fallback),
        "seconds": before.seconds - after.seconds,
        "dead_calls": before.dead_calls - after.dead_calls,
        "gain": choice.gain,
        "low": choice.low,
        "high": choice.high,
        "outages": float(len(trials.model.outages)),
        "p999": trials.model.latency[task].at(0.999),
    }
    why = sentence_of(changes, option.now, before, after, trials.model, task)
    first = next(iter(changes.items()))
    return [
        TuningAdvice(
            task=name,
            option=path,
            now=option.now if not option.joint else value_in(trials.options[task], path),
            better=value,
            why=why
            if path == first[0]
            else f"only together with {first[0].rpartition('.')[2]}={first[1]:g}.",
            evidence=evidence,
            effect=effect,
        )
        for path, value in changes.items()
    ]


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
    trials = trials_of(record, period, PRICES[None], seed, most=4 * MOST_REPLAYED, least=timeout)
    trials.sure = max(trials.sure, min(SURE, RUNS_COMPARED // max(1, trials.scenario.busy)))
    changed = list(trials.options)
    changed[task] = merged(changed[task], options)
    now, then = trials.replay(trials.options), trials.replay(changed)
    before, after = figures_of(trials.scenario, now, task), figures_of(trials.scenario, then, task)
    fit = _fits(trials, period)[task]
    return Comparison(
        task=name,
        runs=before.runs,
        options=cast("Any", dict(options)),
        now=before,
        then=after,
        figures=side_by_side(trials.scenario, now, then, task, seed),
        likely=likely(trials.replays(changed), task),
        fit=fit,
        doubts=(*fit_doubts(fit), *trials.model.unknown.values()),
    )
