"""The replay against the truth: what a recorded day would have been under another policy, and what it was.

    python -m benchmarks.tuning_replay [--days 10] [--first 1] [--runs 10000] [--json]

Each day has its own service, drawn by the day's number: chance failures, runs that always fail, calls that
never answer, and outages of three kinds. It is lived under one policy; the record of it predicts the same
day under another one; then the day is lived under that one too, with the same arrivals, outages and luck of
first calls. `share off` is the difference of the shares of recovered runs in points, `waits off` that of the
seconds waited in percent. Both policies are drawn as well.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, get_args

from rich.console import Console
from rich.table import Table

from prefect_resilience.operations.tuning.advising import what_if
from prefect_resilience.operations.tuning.report import Comparison
from tests.operations.tuning.worlds import DAY, Kind, Trouble, TrueService, Truth, World, live

SHARE_OFF_AT_MOST = 2.0
WAITS_OFF_AT_MOST = 15.0
Options = dict[str, Any]


@dataclass(frozen=True)
class Day:
    """A day, what was predicted for the policy `then`, and what was true."""

    number: int
    ran: Options
    then: Options
    before: Truth
    predicted: Comparison
    truth: Truth

    @property
    def share_off(self) -> float:
        return 100 * abs((self.predicted.then.share_recovered or 0.0) - self.truth.share_recovered)

    @property
    def waits_off(self) -> float:
        return 100 * abs(self.predicted.then.waited - self.truth.waited) / max(1.0, self.truth.waited)

    @property
    def fit_share_off(self) -> float:
        """The error of the replay with the policy that really ran."""
        fit = self.predicted.fit
        return (fit and fit.recovered_off) or 0.0

    @property
    def fit_waits_off(self) -> float:
        fit = self.predicted.fit
        return (fit and fit.waited_off) or 0.0


def policy(chance: Random) -> Options:
    backoff = {"kind": "exponential", "initial": chance.choice([0.5, 1.0, 2.0, 4.0])}
    options: Options = {
        "retry": {"attempts": chance.choice([2, 3, 4, 5]), "backoff": backoff},
        "timeout": chance.choice([3.0, 5.0, 10.0]),
    }
    if chance.random() < 0.6:
        options["circuit"] = {
            "name": "service",
            "failure_threshold": chance.choice([4, 5, 8, 12]),
            "open_for": chance.choice([10.0, 30.0, 60.0]),
        }
    return options


def service(chance: Random) -> TrueService:
    kinds = [kind for kind in get_args(Kind) if kind != "limit"]
    begins = sorted(chance.uniform(0.05, 0.95) * DAY for _ in range(chance.randint(2, 5)))
    troubles = tuple(
        Trouble(at, at + chance.uniform(60, 900), chance.choice(kinds), chance.choice([0.6, 1.0, 1.0]))
        for at in begins
    )
    return TrueService(
        median=chance.uniform(0.2, 0.6),
        hang=chance.choice([0.0, 0.003]),
        blip=chance.uniform(0.01, 0.04),
        stuck=chance.choice([0.0, 0.01, 0.02]),
        troubles=troubles,
    )


def day(number: int, runs: int) -> Day:
    chance = Random(f"day-{number}")
    ran = policy(chance)
    then = policy(chance)
    while then == ran:
        then = policy(chance)
    world = World(f"day {number}", service(chance), ran, runs=runs, seconds=DAY)
    period, before = live(world, number)
    truth = live(world, number, then)[1]
    changed = {"circuit": None, **then}
    return Day(number, ran, then, before, what_if(period, world.task, changed), truth)


def shown(options: Options) -> str:
    retry, circuit = options["retry"], options.get("circuit")
    text = f"{retry['attempts']}x from {retry['backoff']['initial']:g} s, timeout {options['timeout']:g} s"
    return (
        text
        if circuit is None
        else f"{text}, circuit {circuit['failure_threshold']}/{circuit['open_for']:g} s"
    )


def table_of(days: Sequence[Day]) -> Table:
    table = Table(
        "day", "ran", "other", "ran: %", "predicted %", "true %", "share off", "waits off", "fit off"
    )
    for one in days:
        table.add_row(
            str(one.number),
            shown(one.ran),
            shown(one.then),
            f"{100 * one.before.share_recovered:.1f}",
            f"{100 * (one.predicted.then.share_recovered or 0):.1f}",
            f"{100 * one.truth.share_recovered:.1f}",
            f"{one.share_off:.2f}",
            f"{one.waits_off:.1f} %",
            f"{one.fit_share_off:.2f} / {one.fit_waits_off:.1f} %",
        )
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--days", type=int, default=10)
    parser.add_argument("--first", type=int, default=1, help="the number of the first day")
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    days = [day(options.first + number, options.runs) for number in range(options.days)]
    share, waits = max(one.share_off for one in days), max(one.waits_off for one in days)
    kept = {
        "days": len(days),
        "worst_share_off": round(share, 2),
        "worst_waits_off": round(waits, 1),
        "days_within": sum(
            one.share_off <= SHARE_OFF_AT_MOST and one.waits_off <= WAITS_OFF_AT_MOST for one in days
        ),
    }
    if options.json:
        print(json.dumps(kept))
        return
    Console(width=190).print(table_of(days))
    print(
        f"Within {SHARE_OFF_AT_MOST:g} points and {WAITS_OFF_AT_MOST:g} %: "
        f"{kept['days_within']} of {len(days)} days."
    )
    print(f"Worst: {share:.2f} points, {waits:.1f} %.")


if __name__ == "__main__":
    main()
