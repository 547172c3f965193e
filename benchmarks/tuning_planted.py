"""Planted cases: worlds with one bad number, and worlds where nothing should be changed.

    python -m benchmarks.tuning_planted [--seeds 5] [--first 1] [--force 6]

For each world and seed: what `advise` says of the record of that world. The best numbers come from brute
force: each value of the option is lived through in the world itself, on other seeds. A number counts as best
if it gains at least 98 % of what the best one gains.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from prefect_resilience.operations.tuning.advising import advise
from prefect_resilience.operations.tuning.calls import services_of
from prefect_resilience.operations.tuning.candidates import options_to_try
from prefect_resilience.operations.tuning.options import policy_of
from prefect_resilience.operations.tuning.service import fitted
from tests.operations.tuning.planted import (
    NOTHING_TO_CHANGE,
    PLANTED,
    Planted,
    as_good_as_best,
    factor_off,
    losses_by_force,
    number_of,
)
from tests.operations.tuning.worlds import live

FORCE_FROM = 1000


def best_of(planted: Planted, seeds: int) -> list[Any]:
    """The best values of the planted option by brute force."""
    world = planted.world
    period, _ = live(world, FORCE_FROM)
    [record] = services_of(period)
    model = fitted(record, period.until)
    judged = options_to_try(record, model, 0, dict(world.options), policy_of(world.options))
    values = next(one.values for one in judged.to_try if one.option == planted.option)
    return as_good_as_best(
        losses_by_force(world, planted.option, values, range(FORCE_FROM, FORCE_FROM + seeds))
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--force", type=int, default=6, help="seeds of the brute force; 0: the known best")
    options = parser.parse_args(arguments)
    seeds = range(options.first, options.first + options.seeds)
    table = Table("world", "option", "best by force", "advised, by seed", "found", "worst factor")
    for planted in PLANTED:
        best = best_of(planted, options.force) if options.force else list(planted.best)
        said: list[str] = []
        factors: list[float] = []
        for seed in seeds:
            advice = advise(live(planted.world, seed)[0], seed=seed).advice
            mine = next((one.better for one in advice if one.option == planted.option), None)
            others = [one.option for one in advice if one.option != planted.option]
            said.append(
                "–" if mine is None else f"{number_of(mine):g}" + "".join(f" +{name}" for name in others)
            )
            if mine is not None:
                factors.append(factor_off(mine, best))
        found = sum(factor <= 1.5 for factor in factors)
        table.add_row(
            planted.world.name,
            planted.option,
            ", ".join(f"{number_of(one):g}" for one in best),
            "; ".join(said),
            f"{found} of {options.seeds}",
            f"{max(factors, default=float('nan')):.2f}",
        )
    for world in NOTHING_TO_CHANGE:
        advised = [advise(live(world, seed)[0], seed=seed).advice for seed in seeds]
        quiet = sum(not advice for advice in advised)
        said = ["; ".join(f"{one.option}={one.better}" for one in advice) or "nothing" for advice in advised]
        table.add_row(world.name, "nothing", "", "; ".join(said), f"{quiet} of {options.seeds}", "")
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
