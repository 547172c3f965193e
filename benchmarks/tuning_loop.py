"""The closed loop: a bad day with default policies, the advice of its record, the same kind of day again.

    python -m benchmarks.tuning_loop [--pairs 10] [--first 1]

The day is the script of `benchmarks.bad_day`, stretched to five hours and simulated. Of its five services
one fails a share of its calls, one limits its callers, one is slow, one has outages, and one goes down again
and again. Each pair of seeds is two such days, with other times, lengths and luck. The first day runs under
the default policies and a timeout of 30 s. Its record is all that the advice sees. The second day is lived
four times: under the default policies, under the advised ones, under a random choice that changes as many
options, and under the best of a grid that sees only the totals of the first day.

A column is better or worse if the mean of the paired differences is more than two standard errors from 0.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import mean, stdev
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.bad_day_script import DAY_SECONDS, SERVICES, TROUBLES
from prefect_resilience.operations.tuning.advice import advise
from prefect_resilience.operations.tuning.record import RecordedPeriod, with_value
from tests.operations.tuning.worlds import Kind, Trouble, TrueService, Truth, World, live

SECONDS = 5 * 3600.0
RUNS = 4000
USUAL = RUNS / SECONDS
KINDS: Mapping[str, tuple[Kind, float]] = {
    "503": ("503", 0.65),
    "limit": ("limit", 1.0),
    "slow": ("hang", 0.4),
    "cut": ("503", 0.4),
    "outage": ("half-hang", 1.0),
    "down": ("503", 1.0),
}
DEFAULTS: Mapping[str, Any] = {"retry": {"attempts": 3}, "timeout": 30.0}
GRID: Mapping[str, tuple[Any, ...]] = {
    "retry.attempts": (1, 2, 4, 5, 6, 8, 10),
    "retry.backoff": tuple({"initial": initial} for initial in (0.25, 0.5, 2.0, 4.0, 8.0, 15.0, 30.0)),
    "timeout": (1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0),
    "circuit.failure_threshold": (2, 3, 4, 7, 10, 15, 20, 30),
    "circuit.failure_rate": (0.2, 0.3, 0.4, 0.65, 0.8, 0.95),
    "circuit.open_for": (5.0, 10.0, 20.0, 45.0, 60.0, 90.0, 120.0),
}
"""The values of the random choice."""

Policies = dict[str, dict[str, Any]]


def defaults() -> Policies:
    return {name: {**DEFAULTS, "circuit": {"name": name}} for name in SERVICES}


def services(seed: int) -> dict[str, TrueService]:
    """The five services of one bad day."""
    stretch = SECONDS / DAY_SECONDS
    found: dict[str, TrueService] = {}
    for name in SERVICES:
        chance = Random(f"bad-day-{name}-{seed}")
        troubles: list[Trouble] = []
        for one in TROUBLES:
            if one.service == name:
                kind, share = KINDS[one.kind]
                begins = (one.begins + chance.uniform(-2, 2)) * stretch
                ends = begins + (one.ends - one.begins) * stretch * chance.uniform(0.6, 1.4)
                asked = 10.0 if one.kind == "limit" else None
                troubles.append(Trouble(begins, ends, kind, share, 0.6 * USUAL, asked))
        found[name] = TrueService(blip=0.005, stuck=0.002, troubles=tuple(troubles))
    return found


def lived(seed: int, policies: Policies) -> tuple[RecordedPeriod, dict[str, Truth]]:
    """One bad day under some policies: its record, and the truth by service."""
    periods: list[RecordedPeriod] = []
    truths: dict[str, Truth] = {}
    for name, service in services(seed).items():
        world = World(name, service, policies[name], RUNS, SECONDS, name)
        period, truths[name] = live(world, seed)
        periods.append(period)
    whole = RecordedPeriod(
        since=periods[0].since,
        until=max(period.until for period in periods),
        tasks=tuple(task for period in periods for task in period.tasks),
    )
    return whole, truths


@dataclass(frozen=True)
class Column:
    """A figure of a day, over all services; `better`: 1 if more is better, -1 if less is."""

    title: str
    better: int
    figure: Callable[[Sequence[Truth]], float]


def _recovery(truths: Sequence[Truth]) -> float:
    """The 95th percentile of the time from the start of a run whose first call failed to its success."""
    seconds = sorted(one for truth in truths for one in truth.recoveries)
    return seconds[int(0.95 * len(seconds))]


def _peak(truths: Sequence[Truth]) -> float:
    """The busiest 10 seconds of a service over its usual load."""
    return max(
        sum(truth.loads.get(at + more, 0) for more in range(10)) / (10 * USUAL)
        for truth in truths
        for at in truth.loads
    )


COLUMNS = (
    Column("success %", 1, lambda day: 100 - 100 * sum(t.failed for t in day) / sum(t.runs for t in day)),
    Column(
        "recovered %", 1, lambda day: 100 * sum(t.recovered for t in day) / max(1, sum(t.hit for t in day))
    ),
    Column("failed calls in trouble", -1, lambda day: float(sum(t.dead_calls for t in day))),
    Column("wasted s", -1, lambda day: sum(t.wasted for t in day)),
    Column("seconds in runs", -1, lambda day: sum(t.seconds for t in day)),
    Column("p95 recovery s", -1, _recovery),
    Column("busiest 10 s", -1, _peak),
)


def advised(period: RecordedPeriod) -> tuple[Policies, list[str]]:
    """The default policies with all advice applied, and the advice."""
    policies = defaults()
    told: list[str] = []
    for one in advise(period).advice:
        policies[one.task] = with_value(policies[one.task], one.option, one.better)
        told.append(f"{one.task}: {one.why}")
    return policies, told


def at_random(changes: int, seed: int) -> Policies:
    """As many changes, each of a random option of a random task to a random value of a grid."""
    chance = Random(f"random-{seed}")
    policies = defaults()
    for _ in range(changes):
        name, option = chance.choice(list(SERVICES)), chance.choice(list(GRID))
        policies[name] = with_value(policies[name], option, chance.choice(GRID[option]))
    return policies


def by_totals(period: RecordedPeriod) -> Policies:
    """The best attempts and timeout of a grid, by the totals of each task: the share of calls that failed and
    the mean time of calls, as if every call failed by chance."""
    policies = defaults()
    for task in period.tasks:
        calls = [one for run in task.runs for one in run.attempts if not one.rejected]
        failed = [one for one in calls if not one.succeeded]
        share = len(failed) / len(calls)
        good = mean(one.seconds for one in calls if one.succeeded)
        grid: list[tuple[float, int, float]] = []
        for attempts in (1, 2, 3, 4, 5, 6, 8, 10):
            for timeout in (5.0, 10.0, 15.0, 30.0, 60.0):
                bad = mean(min(timeout, one.seconds) for one in failed) if failed else 0.0
                retries = sum(share**n * (bad + min(30.0, 2.0 ** (n - 1))) for n in range(1, attempts))
                lost = good + retries + share**attempts * (bad + 300.0)
                grid.append((lost, attempts, timeout))
        _, attempts, timeout = min(grid)
        policies[task.name] = with_value(
            with_value(policies[task.name], "retry.attempts", attempts), "timeout", timeout
        )
    return policies


Ways = dict[str, list[float]]


def pair(number: int) -> tuple[dict[str, list[float]], list[str]]:
    """The columns of the second day of one pair, by the way its policies were found, and the advice."""
    period, _ = lived(2 * number, defaults())
    better, told = advised(period)
    ways = {
        "default": defaults(),
        "advised": better,
        "random": at_random(len(told), number),
        "grid of totals": by_totals(period),
    }
    days = {way: list(lived(2 * number + 1, policies)[1].values()) for way, policies in ways.items()}
    return {way: [column.figure(day) for column in COLUMNS] for way, day in days.items()}, told


def table_of(pairs: Sequence[Mapping[str, list[float]]]) -> tuple[Table, dict[str, tuple[int, int]]]:
    """The means with the paired difference to the default and its standard error; by way (better, worse)."""
    table = Table("policies", *(column.title for column in COLUMNS), "better", "worse")
    counts: dict[str, tuple[int, int]] = {}
    for way in pairs[0]:
        cells: list[str] = []
        better = worse = 0
        for at, column in enumerate(COLUMNS):
            differences = [one[way][at] - one["default"][at] for one in pairs]
            error = stdev(differences) / len(pairs) ** 0.5 if len(pairs) > 1 else 0.0
            change = mean(differences)
            better += change * column.better > 2 * error
            worse += -change * column.better > 2 * error
            text = f"{mean(one[way][at] for one in pairs):,.1f}"
            cells.append(text if way == "default" else f"{text} ({change:+,.1f} ± {2 * error:,.1f})")
        counts[way] = better, worse
        table.add_row(way, *cells, str(better), str(worse))
    return table, counts


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--first", type=int, default=1)
    options = parser.parse_args(arguments)
    results: list[tuple[dict[str, list[float]], list[str]]] = []
    for number in range(options.first, options.first + options.pairs):
        results.append(pair(number))
        print(f"pair {number}:", *results[-1][1], sep="\n  ", flush=True)
    Console(width=220).print(table_of([columns for columns, _ in results])[0])


if __name__ == "__main__":
    main()
