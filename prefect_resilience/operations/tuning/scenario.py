"""A service's recorded period, prepared for many replays: arrivals, outages, and what each call met. Pure."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from prefect_resilience.operations.tuning.calls import ServiceCall, ServiceRecord, chance_of
from prefect_resilience.operations.tuning.lengths import OutageLengths
from prefect_resilience.operations.tuning.outages import ServiceOutage
from prefect_resilience.operations.tuning.plain_runs import (
    LoadedMoments,
    PlainSuccesses,
    Sums,
    at_returns,
    is_plain,
    passed_sums,
)
from prefect_resilience.operations.tuning.record import RecordedRun
from prefect_resilience.operations.tuning.service import ServiceModel

REPLAYED = frozenset({"succeeded", "fallback", "failed"})
"""The ends of runs that are replayed; a crash or a cancellation has nothing to do with the policy."""

OVERLOADED = -2
"""In place of an outage: the call began above the limit of the service, so another load may answer it."""

MARGIN = 120.0
RETURN_SPAN, LONGEST_RETURN = 5.0, 60.0
CALLS_AT_RETURN = 10.0
BLOCKS_IN_DAY, LEAST_BLOCKS, MOST_BLOCKS = 4, 10, 60
DAY = 86_400.0
MOST_REPLAYED = 10_000
OUTAGES_KEPT = 12
SLICE, SLICES_IN_BLOCK = 60.0, 20
"""The least seconds of a slice, and the most slices of a block, if a part of a long period is replayed."""


@dataclass(frozen=True, slots=True)
class ReplayedRun:
    """One run to replay.

    met: its recorded calls that reached the service, each with the outage in which it began (-1: none).
    weight: the number of runs that it represents in the figures; count: in the circuit and in the load, which
        do not grow when parts of the period are left out.
    """

    at: float
    task: int
    place: int
    weight: float
    count: float
    block: int
    met: tuple[tuple[int, ServiceCall], ...]


@dataclass(frozen=True, eq=False)
class Scenario:
    """What the replays of one service share.

    borders, states: the moments at which the state of the service changes, and the outage that begins there
        (-1: it is up). jumps: for a plain run (see `plain_runs`) the first later run that is not plain, else
        its own place. passed: by task and block what the plain runs add up to.
    returns: by outage, the seconds after it in which its load is counted, and the usual number of calls in
        them. return_of: the plain runs that are counted there, by their places, each with its outage.
    """

    model: ServiceModel
    runs: tuple[ReplayedRun, ...]
    borders: tuple[float, ...]
    states: tuple[int, ...]
    jumps: Sequence[int]
    durations: Sequence[float]
    plain: PlainSuccesses
    passed: Sequence[Sequence[Sums]]
    returns: tuple[tuple[float, float], ...]
    return_of: Mapping[int, int]
    blocks: int
    since: float
    block_seconds: float
    falls_back: tuple[float, ...]

    @property
    def busy(self) -> int:
        """The number of runs that are not plain."""
        return sum(jump == place for place, jump in enumerate(self.jumps))

    def with_ends(self, seed: int, number: int) -> Scenario:
        """The scenario with other ends of its outages, drawn within their bounds.

        number: 0 is the middle between them; each two after it lie on both sides of the middle, equally far.
        """
        if not number:
            return self
        drawn = [chance_of(seed, (number + 1) // 2, place) for place in range(len(self.model.outages))]
        borders = _borders(self.model, drawn if number % 2 else [1 - chance for chance in drawn])
        found = at_returns(self.plain.starts, self.jumps, borders[1::2], (span for span, _ in self.returns))
        return replace(self, borders=tuple(borders), return_of=found)

    def returned(self) -> list[float]:
        """By outage, the calls of the plain runs soon after it."""
        calls = [0.0] * len(self.returns)
        for place, outage in self.return_of.items():
            calls[outage] += self.runs[place].weight
        return calls

    def block_at(self, moment: float) -> int:
        return min(self.blocks - 1, max(0, int((moment - self.since) / self.block_seconds)))


def duration_of(run: RecordedRun) -> float:
    """The seconds from the first attempt's start to the last one's end."""
    last = run.attempts[-1]
    return max(0.0, last.start + last.seconds - run.attempts[0].start)


def scenario_of(
    record: ServiceRecord,
    model: ServiceModel,
    since: float,
    until: float,
    *,
    least_timeouts: Mapping[int, float] | None = None,
    places: Mapping[int, int] | None = None,
    none_plain: bool = False,
    most: int = MOST_REPLAYED,
) -> Scenario:
    """The scenario of a service.

    least_timeouts: by task, what no replay's timeout is shorter than; only quicker runs are plain.
    places: those of the tasks' limits, the fewest of any replay. none_plain: each run is replayed.
    most: if more runs than this are not plain, slices of the period without an outage are left out, and the
    others weigh more.
    """
    blocks = min(MOST_BLOCKS, max(LEAST_BLOCKS, round(BLOCKS_IN_DAY * (until - since) / DAY)))
    length = max(until - since, 1e-9) / blocks
    borders, states = _borders(model), _states(model)

    def met(call: ServiceCall) -> int:
        if call.key in model.overloaded:
            return OVERLOADED
        return states[bisect_right(borders, call.start)]

    runs: list[ReplayedRun] = []
    for place, (task, run) in enumerate(record.runs):
        if run.ended in REPLAYED and run.attempts:
            at = run.attempts[0].start
            block = min(blocks - 1, max(0, int((at - since) / length)))
            runs.append(ReplayedRun(at, task, place, run.weight, run.weight, block, ()))
    runs.sort(key=lambda run: run.at)
    durations = array("d", (duration_of(record.runs[run.place][1]) for run in runs))
    plain = [False] * len(runs)
    if not none_plain:
        plain = _plain(record, runs, durations, model, met, least_timeouts or {}, places or {})
    kept = _sampled(runs, plain, model, most, length)
    # What each call met is written down only for the runs that are kept: a large record has many calls.
    runs = [
        replace(
            (run := runs[place]),
            weight=run.weight * weight,
            met=tuple((met(call), call) for call in record.by_run[run.place]),
        )
        for place, weight in kept
    ]
    durations = array("d", (durations[place] for place, _ in kept))
    plain = [plain[place] for place, _ in kept]
    returns = _returns(model, runs)
    jumps = _jumps(plain)
    starts = array("d", (run.at for run in runs))
    return Scenario(
        model=model,
        runs=tuple(runs),
        borders=tuple(borders),
        states=tuple(states),
        jumps=jumps,
        durations=durations,
        plain=PlainSuccesses(
            starts,
            durations,
            array("h", (run.task for run in runs)),
            array("l", (max(1, round(run.count)) for run in runs)),
            max((d for d, passes in zip(durations, plain, strict=True) if passes), default=0.0),
        ),
        passed=passed_sums(
            ((run.task, run.block, d, run.weight) for run, d in zip(runs, durations, strict=True)),
            plain,
            len(record.tasks),
            blocks,
        ),
        returns=tuple(returns),
        return_of=at_returns(starts, jumps, borders[1::2], (span for span, _ in returns)),
        blocks=blocks,
        since=since,
        block_seconds=length,
        falls_back=tuple(_fallback_shares(record)),
    )


def _borders(model: ServiceModel, ends: Sequence[float] | None = None) -> list[float]:
    """The start and the end of each outage, in turn. ends: which share of the lengths
    within its bounds each is longer than."""
    borders: list[float] = []
    for one, chance in zip(model.outages, ends or [0.5] * len(model.outages), strict=True):
        begins = max(one.start, borders[-1] if borders else one.start)
        borders += [begins, max(begins, _end(one, model.lengths, chance))]
    return borders


def _end(outage: ServiceOutage, lengths: OutageLengths | None, chance: float) -> float:
    low, high = outage.end_low, outage.end_high
    if lengths is None:
        return low + (high - low) * chance
    return outage.start + lengths.within(low - outage.start, high - outage.start, chance)


def _states(model: ServiceModel) -> list[int]:
    """The outage that begins at each border, -1 where one ends and before the first."""
    return [-1, *(state for place in range(len(model.outages)) for state in (place, -1))]


def _plain(
    record: ServiceRecord,
    runs: Sequence[ReplayedRun],
    durations: Sequence[float],
    model: ServiceModel,
    met: Callable[[ServiceCall], int],
    least_timeouts: Mapping[int, float],
    places: Mapping[int, int],
) -> list[bool]:
    loaded = LoadedMoments(record, model, places)
    return [
        is_plain(
            (calls := record.by_run[run.place]),
            met(calls[0]) if calls else 0,
            least_timeouts.get(run.task, math.inf),
        )
        and not loaded.meets(run.task, run.at, run.at + seconds)
        for run, seconds in zip(runs, durations, strict=True)
    ]


def _sampled(
    runs: Sequence[ReplayedRun], plain: Sequence[bool], model: ServiceModel, most: int, block_seconds: float
) -> list[tuple[int, float]]:
    """The places of the runs to replay, with what each stands for: at most about `most` that are not plain.

    Every n-th slice of a block is kept, and each slice with an outage in it. If that is still too much, every
    n-th outage is kept, but not fewer than OUTAGES_KEPT.
    """
    busy = array("l", (place for place, passes in enumerate(plain) if not passes))
    if len(busy) <= most:
        return [(place, 1.0) for place in range(len(runs))]
    length = max(SLICE, block_seconds / SLICES_IN_BLOCK)
    slices = array("l", (int((run.at - runs[0].at) / length) for run in runs))
    spans = [
        range(
            *(
                int((at - runs[0].at) / length)
                for at in (one.start_low - MARGIN, one.end_high + MARGIN + length)
            )
        )
        for one in model.outages
    ]
    troubled = {number for span in spans for number in span}
    always = sum(slices[place] in troubled for place in busy)
    every = max(1, min(-(-always // most), len(spans) // OUTAGES_KEPT))
    needed = {number for span in spans[::every] for number in span}
    share = max(1 / SLICES_IN_BLOCK, (most - always) / max(1, len(busy) - always))
    taken = {number for number in set(slices) if int((number + 1) * share) > int(number * share)} - troubled
    whole, inside = [0.0] * (runs[-1].block + 1), [0.0] * (runs[-1].block + 1)
    in_trouble = in_needed = 0.0
    for run, number in zip(runs, slices, strict=True):
        if number in troubled:
            in_trouble += run.weight
            in_needed += run.weight if number in needed else 0.0
        else:
            whole[run.block] += run.weight
            inside[run.block] += run.weight if number in taken else 0.0
    return [
        (place, in_trouble / in_needed if number in needed else whole[run.block] / inside[run.block])
        for place, (run, number) in enumerate(zip(runs, slices, strict=True))
        if number in needed or number in taken
    ]


def _jumps(plain: Sequence[bool]) -> Sequence[int]:
    """For each plain run the first later one that is not plain, else its own place."""
    jumps = array("l", range(len(plain)))
    for place in range(len(plain) - 1, -1, -1):
        if plain[place]:
            after = place + 1
            jumps[place] = jumps[after] if after < len(plain) and plain[after] else after
    return jumps


def _returns(model: ServiceModel, runs: Sequence[ReplayedRun]) -> list[tuple[float, float]]:
    moments = [run.at for run in runs]
    total = list(accumulate((run.weight for run in runs), initial=0.0))
    found: list[tuple[float, float]] = []
    for one in model.outages:
        around = 1800.0
        number = (
            total[bisect_right(moments, one.end + around)] - total[bisect_right(moments, one.end - around)]
        )
        begins, ends = max(moments[0], one.end - around), min(moments[-1], one.end + around)
        rate = number / max(1.0, ends - begins)
        span = min(LONGEST_RETURN, max(RETURN_SPAN, CALLS_AT_RETURN / rate if rate else LONGEST_RETURN))
        found.append((0.0 if one.censored else span, rate * span))
    return found


def _fallback_shares(record: ServiceRecord) -> list[float]:
    """By task, the share of the runs that were given up on which a fallback answered."""
    found: list[float] = []
    for task in record.tasks:
        fell = sum(run.weight for run in task.runs if run.ended == "fallback")
        failed = sum(run.weight for run in task.runs if run.ended == "failed")
        configured = bool((task.options or {}).get("fallback"))
        found.append(fell / (fell + failed) if fell + failed else float(configured))
    return found
