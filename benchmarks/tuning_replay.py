"""The replay against the truth: what a recorded day would have been under another policy, and what it was.

    python -m benchmarks.tuning_replay [--days 10] [--first 1] [--runs 10000] [--lucks 10] [--limits] [--json]

Each day has its own service, drawn by the day's number: chance failures, runs that always fail, calls that
never answer, and outages of three kinds (with --limits: of the fourth too, a service that limits its callers
and says Retry-After). It is lived under one policy; the record of it predicts the same day under another one.
Both policies are drawn as well. Then the day is lived under the other policy, with the same arrivals and
outages:

- `same luck`: once, where the first call of each run meets what it met in the record;
- `any luck`: `--lucks` times, each with a luck of its own. Their mean is compared with the mean of as many
  predictions, each from a record with a luck of its own: the bias of the replay. `noise` is the standard
  error of that difference.

`SD` is how far one true day differs from the next by its luck alone. Days with 10,000 runs have an SD of 1 to
4 points, so no prediction from one record can be within 2 points of one other day's truth.
"off" is in points of the share of recovered runs, and in percent of the seconds waited.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import fmean, stdev
from typing import Any, get_args

from rich.console import Console
from rich.table import Table

from prefect_resilience.operations.tuning.advising import what_if
from prefect_resilience.operations.tuning.report import Comparison
from tests.operations.tuning.worlds import DAY, Kind, Trouble, TrueService, Truth, World, live

SHARE_OFF_AT_MOST = 2.0
WAITS_OFF_AT_MOST = 15.0
LUCKS_FROM = 100_000
Options = dict[str, Any]


@dataclass(frozen=True)
class Lived:
    """A day under the policy `then`: what was predicted from one record of it, and what was true."""

    predicted: Comparison
    truth: Truth

    @property
    def share_off(self) -> float:
        return self.predicted_share - self.true_share

    @property
    def waits_off(self) -> float:
        return 100 * (self.predicted.then.waited - self.truth.waited) / max(1.0, self.truth.waited)

    @property
    def predicted_share(self) -> float:
        return 100 * (self.predicted.then.share_recovered or 0.0)

    @property
    def true_share(self) -> float:
        return 100 * self.truth.share_recovered


@dataclass(frozen=True)
class Day:
    """A day with the luck of its number, and with other lucks."""

    number: int
    ran: Options
    then: Options
    before: Truth
    same: Lived
    others: tuple[Lived, ...]

    def mean(self, figure: Callable[[Lived], float]) -> float:
        return fmean(figure(one) for one in self.others)

    @property
    def bias(self) -> float:
        return self.mean(lambda one: one.predicted_share) - self.mean(lambda one: one.true_share)

    @property
    def waits_bias(self) -> float:
        true = self.mean(lambda one: one.truth.waited)
        return 100 * (self.mean(lambda one: one.predicted.then.waited) - true) / max(1.0, true)

    @property
    def noise(self) -> float:
        """The standard error of the bias: each luck has its record and its truth."""
        return stdev(one.share_off for one in self.others) / math.sqrt(len(self.others))

    @property
    def luck(self) -> tuple[float, float]:
        """The standard deviation of one true day: of the share in points, and of the waits in percent."""
        waits = [one.truth.waited for one in self.others]
        return stdev(one.true_share for one in self.others), 100 * stdev(waits) / max(1.0, fmean(waits))

    @property
    def same_is_within(self) -> bool:
        return is_within(self.same.share_off, self.same.waits_off)

    @property
    def mean_is_within(self) -> bool:
        return is_within(self.bias, self.waits_bias)


def is_within(share_off: float, waits_off: float) -> bool:
    return abs(share_off) <= SHARE_OFF_AT_MOST and abs(waits_off) <= WAITS_OFF_AT_MOST


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


def service(chance: Random, *, limits: bool = False) -> TrueService:
    kinds = [kind for kind in get_args(Kind) if limits or kind != "limit"]
    begins = sorted(chance.uniform(0.05, 0.95) * DAY for _ in range(chance.randint(2, 5)))
    troubles = tuple(_trouble(chance, at, kinds) for at in begins)
    return TrueService(
        median=chance.uniform(0.2, 0.6),
        hang=chance.choice([0.0, 0.003]),
        blip=chance.uniform(0.01, 0.04),
        stuck=chance.choice([0.0, 0.01, 0.02]),
        troubles=troubles,
    )


def _trouble(chance: Random, at: float, kinds: Sequence[Kind]) -> Trouble:
    one = Trouble(at, at + chance.uniform(60, 900), chance.choice(kinds), chance.choice([0.6, 1.0, 1.0]))
    if one.kind != "limit":
        return one
    return replace(one, per_second=chance.uniform(0.02, 0.1), retry_after=chance.choice([5.0, 20.0]))


def day(number: int, runs: int, lucks: int, *, limits: bool = False) -> Day:
    chance = Random(f"day-{number}")
    ran = policy(chance)
    then = policy(chance)
    while then == ran:
        then = policy(chance)
    world = World(f"day {number}", service(chance, limits=limits), ran, runs=runs, seconds=DAY)

    def lived(luck: int) -> tuple[Truth, Lived]:
        period, before = live(world, number, luck=luck)
        predicted = what_if(period, world.task, {"circuit": None, **then}, seed=luck)
        return before, Lived(predicted, live(world, number, then, luck)[1])

    before, same = lived(number)
    others = tuple(lived(LUCKS_FROM + luck)[1] for luck in range(lucks))
    return Day(number, ran, then, before, same, others)


def shown(options: Options) -> str:
    retry, circuit = options["retry"], options.get("circuit")
    text = f"{retry['attempts']}x from {retry['backoff']['initial']:g} s, timeout {options['timeout']:g} s"
    return (
        text
        if circuit is None
        else f"{text}, circuit {circuit['failure_threshold']}/{circuit['open_for']:g} s"
    )


def table_of(days: Sequence[Day]) -> Table:
    """Each day: with the luck of the record, then the means of all lucks."""
    table = Table(
        "day",
        "ran",
        "other",
        "ran: %",
        "same luck: true %",
        "off",
        "fit off",
        "any luck: true %",
        "SD",
        "off",
        "noise",
    )
    for one in days:
        fit = one.same.predicted.fit
        share, waits = one.luck
        table.add_row(
            str(one.number),
            shown(one.ran),
            shown(one.then),
            f"{100 * one.before.share_recovered:.1f}",
            f"{one.same.true_share:.1f}",
            f"{one.same.share_off:+.2f} / {one.same.waits_off:+.1f} %",
            "" if fit is None else f"{fit.recovered_off or 0:.2f} / {fit.waited_off or 0:.1f} %",
            f"{one.mean(lambda lived: lived.true_share):.1f}",
            f"{share:.2f} / {waits:.1f} %",
            f"{one.bias:+.2f} / {one.waits_bias:+.1f} %",
            f"{one.noise:.2f}",
        )
    return table


def summary_of(days: Sequence[Day]) -> dict[str, float]:
    return {
        "days": len(days),
        "same_luck_within": sum(one.same_is_within for one in days),
        "same_luck_worst_share_off": round(max(abs(one.same.share_off) for one in days), 2),
        "same_luck_worst_waits_off": round(max(abs(one.same.waits_off) for one in days), 1),
        "mean_within": sum(one.mean_is_within for one in days),
        "mean_worst_share_off": round(max(abs(one.bias) for one in days), 2),
        "mean_worst_waits_off": round(max(abs(one.waits_bias) for one in days), 1),
        "true_share_sd": round(fmean(one.luck[0] for one in days), 2),
        "true_waits_sd": round(fmean(one.luck[1] for one in days), 1),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--days", type=int, default=10)
    parser.add_argument("--first", type=int, default=1, help="the number of the first day")
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--lucks", type=int, default=10, help="at least 2")
    parser.add_argument("--limits", action="store_true", help="some outages limit their callers")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    days = [
        day(options.first + number, options.runs, options.lucks, limits=options.limits)
        for number in range(options.days)
    ]
    kept = summary_of(days)
    if options.json:
        print(json.dumps(kept))
        return
    Console(width=210).print(table_of(days))
    print(f"Within {SHARE_OFF_AT_MOST:g} points and {WAITS_OFF_AT_MOST:g} %, of {len(days)} days:")
    for name, title in (("same_luck", "same luck"), ("mean", "mean of all lucks")):
        worst = f"{kept[f'{name}_worst_share_off']:g} points, {kept[f'{name}_worst_waits_off']:g} %"
        print(f"- {title}: {kept[f'{name}_within']} (worst: {worst})")
    print(f"One true day differs by {kept['true_share_sd']:g} points and {kept['true_waits_sd']:g} % (SD).")


if __name__ == "__main__":
    main()
