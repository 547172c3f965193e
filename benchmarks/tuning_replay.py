"""The replay against the truth: what recorded days would have been under another policy, and what they were.

    python -m benchmarks.tuning_replay [--pairs 10] [--days 10] [--first 1] [--lucks 3] [--limits] [--json]

Each pair has its own service, drawn by the pair's number: chance failures, runs that always fail, calls that
never answer, and two to five outages a day of three kinds (with --limits: of the fourth too, a service that
limits its callers and says Retry-After). Its days are lived under one policy, with 10,000 runs each; the
record of them predicts the same days under another one. Both policies are drawn as well. Then the days are
lived under the other policy, with the same arrivals and outages, and the first call of each run meets what it
met in the record. They are lived `--lucks` times more, where every call has another luck.

"off" is in points of the share of recovered runs, and in percent of the seconds waited. "likely" is where the
prediction says that the share is, nine times in ten.

A single day (`--days 1`) cannot be predicted this well from its record: its luck moves the share by 1 to 4
points, and a circuit may hide the end of an outage for minutes.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
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
class Pair:
    """Days under the policy `ran`, and under `then`: what was predicted, and what was true.

    others: the truth with other lucks.
    """

    number: int
    ran: Options
    then: Options
    before: Truth
    predicted: Comparison
    truth: Truth
    others: tuple[Truth, ...]

    @property
    def predicted_share(self) -> float:
        return 100 * (self.predicted.then.share_recovered or 0.0)

    @property
    def share_off(self) -> float:
        return self.predicted_share - 100 * self.truth.share_recovered

    @property
    def waits_off(self) -> float:
        return 100 * (self.predicted.then.waited - self.truth.waited) / max(1.0, self.truth.waited)

    @property
    def likely(self) -> tuple[float, float]:
        low, high = self.predicted.likely["share_recovered"]
        return 100 * low, 100 * high

    @property
    def is_within(self) -> bool:
        return abs(self.share_off) <= SHARE_OFF_AT_MOST and abs(self.waits_off) <= WAITS_OFF_AT_MOST

    @property
    def is_as_likely(self) -> bool:
        """Whether the truth, which is shown with one decimal, is within the likely bounds."""
        low, high = self.likely
        return low - 0.1 <= 100 * self.truth.share_recovered <= high + 0.1

    @property
    def other_shares(self) -> list[float]:
        return [100 * one.share_recovered for one in self.others]


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


def service(chance: Random, days: int = 1, *, limits: bool = False) -> TrueService:
    """A service with 2 to 5 troubles a day."""
    kinds = [kind for kind in get_args(Kind) if limits or kind != "limit"]
    begins = [
        (day + one) * DAY
        for day in range(days)
        for one in sorted(chance.uniform(0.05, 0.95) for _ in range(chance.randint(2, 5)))
    ]
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


def pair(number: int, days: int, runs: int, lucks: int, *, limits: bool = False) -> Pair:
    chance = Random(f"pair-{number}")
    ran = policy(chance)
    then = policy(chance)
    while then == ran:
        then = policy(chance)
    troubled = service(chance, days, limits=limits)
    world = World(f"pair {number}", troubled, ran, runs=days * runs, seconds=days * DAY)
    period, before = live(world, number)
    predicted = what_if(period, world.task, {"circuit": None, **then}, seed=number)
    truth = live(world, number, then)[1]
    others = tuple(live(world, number, then, LUCKS_FROM + luck)[1] for luck in range(lucks))
    return Pair(number, ran, then, before, predicted, truth, others)


def shown(options: Options) -> str:
    retry, circuit = options["retry"], options.get("circuit")
    text = f"{retry['attempts']}x from {retry['backoff']['initial']:g} s, timeout {options['timeout']:g} s"
    return (
        text
        if circuit is None
        else f"{text}, circuit {circuit['failure_threshold']}/{circuit['open_for']:g} s"
    )


def table_of(pairs: Sequence[Pair]) -> Table:
    table = Table("pair", "ran", "other", "ran: %", "other: %", "predicted", "likely")
    for title in ("off", "waits off", "other lucks: %"):
        table.add_column(title)
    for one in pairs:
        low, high = one.likely
        shares = one.other_shares
        spread = f" ± {stdev(shares):.1f}" if len(shares) > 1 else ""
        table.add_row(
            str(one.number),
            shown(one.ran),
            shown(one.then),
            f"{100 * one.before.share_recovered:.1f}",
            f"{100 * one.truth.share_recovered:.1f}",
            f"{one.predicted_share:.1f}",
            f"{low:.1f} to {high:.1f}",
            f"{one.share_off:+.2f}",
            f"{one.waits_off:+.1f} %",
            f"{fmean(shares):.1f}{spread}" if shares else "",
        )
    return table


def summary_of(pairs: Sequence[Pair]) -> dict[str, float]:
    off_others = [one.predicted_share - fmean(one.other_shares) for one in pairs if one.others]
    return {
        "pairs": len(pairs),
        "within": sum(one.is_within for one in pairs),
        "worst_share_off": round(max(abs(one.share_off) for one in pairs), 2),
        "worst_waits_off": round(max(abs(one.waits_off) for one in pairs), 1),
        "as_likely": sum(one.is_as_likely for one in pairs),
        "other_lucks_within": sum(abs(off) <= SHARE_OFF_AT_MOST for off in off_others),
        "other_lucks_worst_share_off": round(max(map(abs, off_others), default=0.0), 2),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--days", type=int, default=10, help="of each pair")
    parser.add_argument("--first", type=int, default=1, help="the number of the first pair")
    parser.add_argument("--runs", type=int, default=10_000, help="of a day")
    parser.add_argument("--lucks", type=int, default=3)
    parser.add_argument("--limits", action="store_true", help="some outages limit their callers")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    make = partial(pair, days=options.days, runs=options.runs, lucks=options.lucks, limits=options.limits)
    with ProcessPoolExecutor(os.cpu_count()) as processes:
        pairs = list(processes.map(make, range(options.first, options.first + options.pairs)))
    kept = summary_of(pairs)
    if options.json:
        print(json.dumps(kept))
        return
    Console(width=200).print(table_of(pairs))
    print(
        f"Within {SHARE_OFF_AT_MOST:g} points and {WAITS_OFF_AT_MOST:g} %: {kept['within']} of {len(pairs)} "
        f"(worst: {kept['worst_share_off']:g} points, {kept['worst_waits_off']:g} %)."
    )
    print(f"Within the likely bounds: {kept['as_likely']}.")
    if options.lucks:
        print(
            f"The mean of other lucks within {SHARE_OFF_AT_MOST:g} points: {kept['other_lucks_within']} "
            f"(worst: {kept['other_lucks_worst_share_off']:g} points)."
        )


if __name__ == "__main__":
    main()
