"""Replays as figures, side by side, with the interval of each difference. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean, stdev

from prefect_resilience.operations.tuning.calls import ServiceRecord
from prefect_resilience.operations.tuning.losses import interval
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
)
from prefect_resilience.operations.tuning.replaying import ReplaySums, load_at_return, percentile
from prefect_resilience.operations.tuning.report import ComparedFigure, TuningFigures
from prefect_resilience.operations.tuning.scenario import REPLAYED, Scenario, duration_of
from prefect_resilience.operations.tuning.service import ServiceModel, in_outages

COMPARED: tuple[tuple[str, str, int, int], ...] = (
    ("runs that failed", "runs", FAILED, -1),
    ("runs answered by a fallback", "runs", FALLBACK, -1),
    ("runs recovered", "runs", RECOVERED, 0),
    ("seconds in runs", "s", SECONDS, -1),
    ("seconds waited", "s", WAITED, -1),
    ("calls", "calls", CALLS, 0),
    ("failed calls in outages", "calls", DEAD, -1),
)
"""Name, unit, figure, and which way is better (0: neither says anything alone)."""

FEW_OF_HIT = 0.1
NINE_IN_TEN = 1.645
"""The quantile of the normal distribution: so many standard deviations on each side of the mean."""

SHARE_OF_HIT = 0.01
"""More failed runs or calls than this share of the runs that were hit are a harm, if they are no chance."""


def figures_of(scenario: Scenario, result: ReplaySums, task: int) -> TuningFigures:
    """The figures of one task in a replay; the load at return is that of its service."""
    sums = [sum(block[place] for block in result.sums[task]) for place in range(9)]
    return TuningFigures(
        runs=sums[RUNS],
        hit=sums[HIT],
        recovered=sums[RECOVERED],
        failed=sums[FAILED],
        fallback=sums[FALLBACK],
        seconds=sums[SECONDS],
        waited=sums[WAITED],
        calls=sums[CALLS],
        dead_calls=sums[DEAD],
        load_at_return=load_at_return(scenario, result),
        p95=percentile(scenario, result, task, 0.95),
    )


def recorded_figures(
    record: ServiceRecord, model: ServiceModel, task: int, scenario: Scenario | None = None
) -> TuningFigures:
    """The figures of one task as they were recorded: of all its runs, or of those that a scenario replays,
    with their weights there."""
    replayed = None if scenario is None else {run.place: run.weight for run in scenario.runs}
    inside = in_outages(record.calls, model.outages)
    sums = dict.fromkeys(("runs", "hit", "recovered", "failed", "fallback", "seconds", "waited"), 0.0)
    calls = dead = 0.0
    durations: list[float] = []
    for place, (number, run) in enumerate(record.runs):
        if number != task or run.ended not in REPLAYED or not run.attempts:
            continue
        weight = run.weight if replayed is None else replayed.get(place, 0.0)
        if not weight:
            continue
        hit = not run.attempts[0].succeeded
        sums["runs"] += weight
        sums["hit"] += weight * hit
        sums["recovered"] += weight * (hit and run.ended == "succeeded")
        sums["failed"] += weight * (run.ended == "failed")
        sums["fallback"] += weight * (run.ended == "fallback")
        sums["seconds"] += weight * duration_of(run)
        sums["waited"] += weight * sum(attempt.delay or 0.0 for attempt in run.attempts)
        durations.append(duration_of(run))
        for call in record.by_run[place]:
            calls += weight
            dead += weight * (not call.succeeded and call.key in inside)
    durations.sort()
    p95 = durations[int(0.95 * (len(durations) - 1))] if durations else None
    return TuningFigures(**sums, calls=calls, dead_calls=dead, p95=p95)


def side_by_side(
    scenario: Scenario, now: ReplaySums, then: ReplaySums, task: int, seed: int
) -> tuple[ComparedFigure, ...]:
    """The compared figures of one task, and those of the whole service that have no interval."""
    rows: list[ComparedFigure] = []
    for name, unit, place, better in COMPARED:
        before = [block[place] for block in now.sums[task]]
        after = [block[place] for block in then.sums[task]]
        low, high = interval([b - a for a, b in zip(before, after, strict=True)], seed)
        clear = better and (low > 0 or high < 0)
        rows.append(
            ComparedFigure(
                name=name,
                unit=unit,
                now=sum(before),
                then=sum(after),
                low=low,
                high=high,
                better=(high < 0 if better < 0 else low > 0) if clear else None,
            )
        )
    rows.append(_plain("load at return", "times the usual load", scenario, now, then, load_at_return))
    rows.append(_plain("p95 of a run", "s", scenario, now, then, lambda s, r: percentile(s, r, task, 0.95)))
    return tuple(rows)


def likely(results: Sequence[ReplaySums], task: int) -> dict[str, tuple[float, float]]:
    """Bounds of a task's share of recovered runs and of its seconds waited, from replays of one policy."""
    figures: dict[str, list[float]] = {"share_recovered": [], "waited": []}
    for result in results:
        hit, recovered, waited = (
            sum(block[place] for block in result.sums[task]) for place in (HIT, RECOVERED, WAITED)
        )
        if hit:
            figures["share_recovered"].append(recovered / hit)
        figures["waited"].append(waited)
    found = {name: _bounds(values) for name, values in figures.items() if len(values) > 1}
    if "share_recovered" in found:
        low, high = found["share_recovered"]
        found["share_recovered"] = low, min(1.0, high)
    return found


def _bounds(values: Sequence[float]) -> tuple[float, float]:
    """What one more value lies between, nine times in ten.

    The quantile of Student's t is that of the normal distribution with its first correction.
    """
    degrees = len(values) - 1
    quantile = NINE_IN_TEN * (1 + (NINE_IN_TEN**2 + 1) / (4 * degrees))
    middle, width = fmean(values), quantile * stdev(values) * math.sqrt(1 + 1 / len(values))
    return max(0.0, middle - width), middle + width


def _plain(
    name: str,
    unit: str,
    scenario: Scenario,
    now: ReplaySums,
    then: ReplaySums,
    figure: Callable[[Scenario, ReplaySums], float | None],
) -> ComparedFigure:
    return ComparedFigure(name=name, unit=unit, now=figure(scenario, now), then=figure(scenario, then))


def gains(before: Sequence[float], after: Sequence[float]) -> list[float]:
    """By block, by how much the loss is lower after."""
    return [b - a for b, a in zip(before, after, strict=True)]


def does_no_harm(now: ReplaySums, then: ReplaySums, seed: int, *, by_chance: bool = True) -> bool:
    """Whether there are not clearly more failed runs, and not clearly more failed calls in outages.

    by_chance: more of them count only if that is hardly chance.
    """
    hit = _total(now, HIT)
    return not any(
        _grows(now, then, place, seed if by_chance else None, SHARE_OF_HIT * hit) for place in (FAILED, DEAD)
    )


def harm(now: ReplaySums, then: ReplaySums) -> float:
    """By how much `then` is worse, as a share; the worst of three.

    More failed runs count as a share of the runs that are hit, more failed calls in outages as a share of
    those that fail now (of a tenth of the runs that are hit, if that is more), and more seconds in runs as a
    tenth of their share: runs that are saved take longer.
    """
    hit, dead, seconds = (max(1.0, _total(now, place)) for place in (HIT, DEAD, SECONDS))
    return max(
        sum(_more(now, then, FAILED)) / hit,
        sum(_more(now, then, DEAD)) / max(dead, FEW_OF_HIT * hit),
        0.1 * sum(_more(now, then, SECONDS)) / seconds,
    )


def _total(result: ReplaySums, place: int) -> float:
    return sum(block[place] for blocks in result.sums for block in blocks)


def _more(now: ReplaySums, then: ReplaySums, place: int) -> list[float]:
    """By block."""
    return [
        sum(task[place] for task in after) - sum(task[place] for task in before)
        for before, after in zip(zip(*now.sums, strict=True), zip(*then.sums, strict=True), strict=True)
    ]


def _grows(now: ReplaySums, then: ReplaySums, place: int, seed: int | None, few: float) -> bool:
    more = _more(now, then, place)
    return sum(more) > few and (seed is None or interval(more, seed)[0] > 0)
