"""Planted cases: worlds with one bad number, and worlds where nothing should be changed.

    python -m benchmarks.tuning_planted [--seeds 5] [--first 1] [--force 6]

For each world and seed: what `advise` says of the record of that world. The best numbers come from brute
force: each value of a fine grid is lived through in the world itself, on other seeds. A number counts as best
if it gains at least 98 % of what the best one gains. A world counts as right if the number is found, within a
factor of 1.5, in most records; or if nothing is advised in most, where nothing should be changed.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from prefect_resilience.operations.tuning.advice import advise
from prefect_resilience.operations.tuning.record import value_at, with_value
from tests.operations.tuning.planted import NOTHING_TO_CHANGE, PLANTED, Planted, factor_off, number_of
from tests.operations.tuning.worlds import Truth, World, live

FORCE_FROM = 1000
AS_GOOD = 0.98
BACKOFF = {"kind": "exponential", "multiplier": 2.0, "jitter": 0.2}
VALUES: Mapping[str, Sequence[Any]] = {
    "timeout": [float(f"{0.6 * 1.25**step:.2g}") for step in range(24)],
    "retry.attempts": (1, 2, 3, 4, 5, 6, 10),
    "retry.backoff": [
        {**BACKOFF, "initial": initial, "maximum": max(30.0, 4 * initial)}
        for initial in (0.25, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
    ],
    "circuit.failure_threshold": (2, 3, 4, 5, 7, 10, 15, 20, 30),
    "limits.max_concurrent": (2, 3, 4, 5, 6),
}
"""The values of the brute force."""


def loss(truth: Truth) -> float:
    """What really happened as one number: seconds of runs, at the prices of the advice."""
    return truth.seconds + 300.0 * truth.failed + 60.0 * truth.fallback + truth.dead_calls


def losses_by_force(
    world: World, option: str, values: Sequence[Any], seeds: Sequence[int]
) -> list[tuple[Any, float]]:
    """Each value, the current one first, with its loss in the world itself, over all seeds."""
    return [
        (value, sum(loss(live(world, seed, with_value(world.options, option, value))[1]) for seed in seeds))
        for value in (value_at(world.options, option), *values)
    ]


def as_good_as_best(lost: Sequence[tuple[Any, float]]) -> list[Any]:
    """The values that gain nearly as much as the best one; the first item is the current value."""
    most = max(lost[0][1] - one for _, one in lost)
    return [value for value, one in lost if lost[0][1] - one >= AS_GOOD * most]


def best_of(planted: Planted, seeds: int) -> list[Any]:
    """The best values of the planted option by brute force."""
    seen = range(FORCE_FROM, FORCE_FROM + seeds)
    return as_good_as_best(losses_by_force(planted.world, planted.option, VALUES[planted.option], seen))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--force", type=int, default=6, help="seeds of the brute force; 0: the known best")
    options = parser.parse_args(arguments)
    seeds = range(options.first, options.first + options.seeds)
    table = Table("world", "option", "best by force", "advised, by seed", "found", "worst factor")
    right = 0
    for planted in PLANTED:
        best = best_of(planted, options.force) if options.force else list(planted.best)
        said: list[str] = []
        factors: list[float] = []
        for seed in seeds:
            advice = advise(live(planted.world, seed)[0]).advice
            mine = next((one.better for one in advice if one.option == planted.option), None)
            others = [one.option for one in advice if one.option != planted.option]
            said.append(
                "–" if mine is None else f"{number_of(mine):g}" + "".join(f" +{name}" for name in others)
            )
            if mine is not None:
                factors.append(factor_off(mine, best))
        found = sum(factor <= 1.5 for factor in factors)
        right += 2 * found > options.seeds
        table.add_row(
            planted.world.name,
            planted.option,
            ", ".join(f"{number_of(one):g}" for one in best),
            "; ".join(said),
            f"{found} of {options.seeds}",
            f"{max(factors, default=float('nan')):.2f}",
        )
    for world in NOTHING_TO_CHANGE:
        advised = [advise(live(world, seed)[0]).advice for seed in seeds]
        quiet = sum(not advice for advice in advised)
        right += 2 * quiet > options.seeds
        said = ["; ".join(f"{one.option}={one.better}" for one in advice) or "nothing" for advice in advised]
        table.add_row(world.name, "nothing", "", "; ".join(said), f"{quiet} of {options.seeds}", "")
    Console(width=150).print(table)
    print(f"{right} of {len(PLANTED) + len(NOTHING_TO_CHANGE)} worlds right")


if __name__ == "__main__":
    main()
