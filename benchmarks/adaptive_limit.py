"""`AdaptiveLimit` beside fixed limits and other algorithms, on a service whose capacity halves for a minute.

    python -m benchmarks.adaptive_limit [--seeds 5] [--first 1] [--plot docs/adaptive_limit.png] [--json]
    python -m benchmarks.adaptive_limit --places 6 --seconds 0.1 [--varies 0.5] [--refuses]

The service is simulated (`adaptive_limit_service.py`), the machine is the real one. All limits of a seed meet
the same calls. *Right* is what a person would set who knows the service at each moment: as many calls as
it works on at a time, half of it during the minute. *Full* is the same number all the time. Figures are from
the tenth second on, so that all limits have found their number from the same start.

Also: other shapes, and what a guarded call costs beside `Bulkhead`.
With `--places` and `--seconds`, only services of that size: the capacity halves, halves twice, comes back
slowly, or doubles.

The exit code is 1 if, for the service whose capacity halves, throughput is below 0.9 of the right limit's or
the 99th percentile of latency above 1.3 of it, for any seed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.adaptive_limit_peers import Adaptive, FailsafeGo, Fixed, Gradient2
from benchmarks.adaptive_limit_service import Limiter, Outcome, Run, Shape
from prefect_resilience import AdaptiveLimit, Bulkhead

CAPACITY, WORK, RATE = 40, 0.1, 600.0
CHANGES, RETURNS = 60.0, 120.0
FROM = 10.0
LEAST_THROUGHPUT, MOST_LATENCY = 0.9, 1.3


def in_the_minute(then: Any, otherwise: Any) -> Callable[[float], Any]:
    return lambda at: then if CHANGES <= at < RETURNS else otherwise


def always(value: Any) -> Callable[[float], Any]:
    return lambda at: value


HALVES = Shape("capacity halves", in_the_minute(CAPACITY // 2, CAPACITY), always(WORK), RATE)
SHAPES = (
    HALVES,
    Shape("halves, 90 % load", HALVES.servers, always(WORK), 360.0),
    Shape("servers slow down", always(CAPACITY), in_the_minute(2 * WORK, WORK), RATE),
    Shape("capacity doubles", in_the_minute(2 * CAPACITY, CAPACITY), always(WORK), 1_000.0),
    Shape("latency jumps", always(CAPACITY), always(WORK), RATE, delay=in_the_minute(WORK, 0.0)),
    Shape("refuses, halves", HALVES.servers, always(WORK), RATE, refuses=True),
    Shape("small, halves", in_the_minute(3, 6), always(WORK), 100.0),
    Shape("slow calls, halve", HALVES.servers, always(1.0), 60.0, max_wait=10.0),
    Shape("busy for 20 minutes", always(10), always(WORK), 130.0, seconds=1_200.0),
    Shape("low load", always(CAPACITY), always(WORK), 80.0),
)


def service(
    places: int, seconds: float, varies: float = 0.5, refuses: bool = False, kind: str = "halves"
) -> Shape:
    """A service of this size, with 1.5 times the callers that it has places for; `kind`: of its capacity."""
    half, quarter = (places + 1) // 2, (places + 3) // 4
    kinds: dict[str, Callable[[float], int]] = {
        "halves": in_the_minute(half, places),
        "halves twice": lambda at: places if at < 60 or at >= 140 else half if at < 100 else max(quarter, 1),
        "comes back slowly": lambda at: (
            places
            if at < 60
            else half
            if at < 100
            else min(places, half + int((places - half) * (at - 100) / 60))
        ),
        "doubles": in_the_minute(2 * places, places),
    }
    answers = "refuses" if refuses else f"sigma {varies:g}"
    return Shape(
        f"{places} places, {seconds:g} s, {answers}, {kind}",
        kinds[kind],
        always(seconds),
        (3.0 if kind == "doubles" else 1.5) * places / seconds,
        refuses=refuses,
        max_wait=10 * seconds,
        varies=varies,
    )


Size = tuple[int, float, float, bool, str]
"""The arguments of `service`."""

KINDS = ("halves", "halves twice", "comes back slowly", "doubles")
SIZES: tuple[Size, ...] = (
    *((places, 0.1, 0.5, False, "halves") for places in (3, 6, 12)),
    *(
        (places, seconds, 0.5, False, "halves")
        for places, seconds in ((20, 0.3), (6, 1.0), (40, 1.0), (200, 1.0))
    ),
    *((places, 0.1, varies, False, "halves") for places in (6, 40) for varies in (0.1, 1.0)),
    *((places, seconds, 0.5, True, "halves") for places, seconds in ((6, 0.1), (40, 0.1), (40, 1.0))),
    *((places, 0.1, 0.5, False, kind) for places in (6, 40) for kind in KINDS[1:]),
)
"""Services of other sizes, for a table of `AdaptiveLimit` alone."""


def limiters(shape: Shape) -> dict[str, Limiter]:
    full = shape.right(0.0)
    return {
        "right": Fixed(shape.right),
        "full": Fixed(always(full)),
        "half": Fixed(always(full // 2)),
        "double": Fixed(always(full * 2)),
        "AdaptiveLimit": Adaptive(),
        "failsafe-go": FailsafeGo(),
        "Gradient2": Gradient2(),
    }


@dataclass
class Result:
    """One limit on one shape with one seed. `throughput` and `p99` are parts of the right limit's."""

    shape: str
    limiter: str
    seed: int
    calls: int
    p99_seconds: float
    response_p99_seconds: float
    rejected: int
    refused: int
    last: int
    throughput: float = 1.0
    p99: float = 1.0


def measured(shape: Shape, name: str, seed: int, outcome: Outcome) -> Result:
    kept = [index for index, ended in enumerate(outcome.ended) if ended >= FROM]
    latency = sorted(outcome.latency[index] for index in kept)
    response = sorted(outcome.response[index] for index in kept)
    at = int(0.99 * len(kept))
    last = outcome.limits[-1][1]
    return Result(
        shape.name, name, seed, len(kept), latency[at], response[at], outcome.lost, outcome.refused, last
    )


def compared(job: tuple[int, int]) -> list[Result]:
    """All limits on one shape with one seed."""
    return on(SHAPES[job[0]], job[1], limiters(SHAPES[job[0]]))


def alone(job: tuple[Size, int]) -> list[Result]:
    """`AdaptiveLimit` beside the right limit, on a service of this size with one seed."""
    shape = service(*job[0])
    return on(shape, job[1], {"right": Fixed(shape.right), "AdaptiveLimit": Adaptive()})


def on(shape: Shape, seed: int, compared: dict[str, Limiter]) -> list[Result]:
    results = [
        measured(shape, name, seed, Run(shape, limiter, seed).go()) for name, limiter in compared.items()
    ]
    for result in results:
        result.throughput = result.calls / results[0].calls
        result.p99 = result.p99_seconds / results[0].p99_seconds
    return results


def tables(results: Sequence[Result], console: Console) -> None:
    for shape in SHAPES:
        table = Table(title=f"{shape.name}: worst of the seeds, in parts of the right limit's")
        for heading in (
            "limit",
            "throughput",
            "p99 latency",
            "p99 with the wait",
            "refused",
            "number at the end",
        ):
            table.add_column(heading, justify="left" if heading == "limit" else "right")
        for name in limiters(shape):
            mine = [one for one in results if (one.shape, one.limiter) == (shape.name, name)]
            table.add_row(
                name,
                f"{min(one.throughput for one in mine):.3f}",
                f"{max(one.p99 for one in mine):.2f}",
                f"{max(one.response_p99_seconds for one in mine):.2f} s",
                str(max(one.refused for one in mine)),
                ", ".join(str(one.last) for one in mine),
            )
        console.print(table)


def table_of_sizes(results: Sequence[Result], console: Console) -> None:
    """The worst of the seeds for each service, and whether the requirement holds there, too."""
    table = Table(
        title="AdaptiveLimit on services of other sizes: worst of the seeds, in parts of the right limit's"
    )
    for heading in ("service", "throughput", "p99 latency", "holds"):
        table.add_column(heading, justify="left" if heading == "service" else "right")
    mine = [one for one in results if one.limiter == "AdaptiveLimit"]
    for name in dict.fromkeys(one.shape for one in mine):
        throughput = min(one.throughput for one in mine if one.shape == name)
        p99 = max(one.p99 for one in mine if one.shape == name)
        holds = throughput >= LEAST_THROUGHPUT and p99 <= MOST_LATENCY
        table.add_row(name, f"{throughput:.3f}", f"{p99:.2f}", "yes" if holds else "no")
    console.print(table)


def cost(console: Console, rounds: int = 41, calls: int = 1_000) -> float:
    """What `AdaptiveLimit.call` costs beside `Bulkhead.call`: the median of the ratios of the rounds."""
    limits = (Bulkhead(5), AdaptiveLimit(5))
    times: list[list[int]] = [[], []]
    for _ in range(rounds):
        for limit, took in zip(limits, times, strict=True):
            began = perf_counter_ns()
            for _ in range(calls):
                limit.call(int)
            took.append(perf_counter_ns() - began)
    ratio = median(ours / theirs for theirs, ours in zip(*times, strict=True))
    each = [median(took) / calls / 1_000 for took in times]
    console.print(f"a call: Bulkhead {each[0]:.1f} us, AdaptiveLimit {each[1]:.1f} us: {ratio:.2f} times")
    return ratio


def plot(path: Path, seed: int) -> None:
    """The numbers over time on the service whose capacity halves, and on the one whose latency jumps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 7), layout="constrained")
    for axes, shape in zip(figure.subplots(2, 1, sharex=True), (HALVES, SHAPES[4]), strict=True):
        for name, limiter in limiters(shape).items():
            if name in ("half", "double", "full"):
                continue
            limits = Run(shape, limiter, seed).go().limits
            style = {"right": "k--", "AdaptiveLimit": "C0-", "failsafe-go": "C1-", "Gradient2": "C2-"}[name]
            axes.plot(*zip(*limits, strict=True), style, label=name, linewidth=1.5)
        axes.set(title=shape.name, ylabel="concurrent calls", ylim=(0, 205))
        axes.legend(loc="upper left")
    axes.set_xlabel("seconds")
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--places", type=int, help="only services that work on so many calls at a time")
    parser.add_argument("--seconds", type=float, default=0.1, help="with --places: the time of a call")
    parser.add_argument("--varies", type=float, default=0.5, help="with --places: the sigma of that time")
    parser.add_argument("--refuses", action="store_true", help="with --places: it refuses what is too much")
    asked = parser.parse_args()
    console = Console(stderr=asked.json, width=110)
    seeds = range(asked.first, asked.first + asked.seeds)
    jobs = [(shape, seed) for shape in range(len(SHAPES)) for seed in seeds]
    with ProcessPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        if asked.places is not None:
            own = [(asked.places, asked.seconds, asked.varies, asked.refuses, kind) for kind in KINDS]
            found = pool.map(alone, [(size, seed) for size in own for seed in seeds])
            table_of_sizes([result for one in found for result in one], console)
            return
        results = [result for found in pool.map(compared, jobs) for result in found]
        sizes = pool.map(alone, [(size, seed) for size in SIZES for seed in seeds])
        of_sizes = [result for found in sizes for result in found]
    tables(results, console)
    table_of_sizes(of_sizes, console)
    ratio = cost(console)
    if asked.plot is not None:
        plot(asked.plot, 1)
    if asked.json:
        print(json.dumps({"results": [asdict(one) for one in (*results, *of_sizes)], "cost": ratio}))
    wanted = [one for one in results if (one.shape, one.limiter) == (HALVES.name, "AdaptiveLimit")]
    holds = all(one.throughput >= LEAST_THROUGHPUT and one.p99 <= MOST_LATENCY for one in wanted)
    console.print(f"{HALVES.name}: the requirement {'holds' if holds else 'does not hold'}")
    sys.exit(not holds)


if __name__ == "__main__":
    main()
