"""What a guarded task costs beside a plain one: `python -m benchmarks.overhead [--rounds 400] [--json]`.

Both tasks do nothing. The guarded one has a retry policy, a circuit, a timeout and a fallback, and nothing
ever fails. Each round calls each of them twice in one flow run, in a random order: drifts of the machine fall
on both alike, and so does what happens every so many calls. The ratio is what the guards add (the median of
the rounds' differences) to the median of a plain call; its interval is a bootstrap over the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median, quantiles
from time import perf_counter_ns
from typing import Any

if __name__ == "__main__":
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    # The server is still busy with the events of the first measurement when the second one begins.
    os.environ.setdefault("PREFECT_CLIENT_MAX_RETRIES", "20")
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "120")

from prefect import flow, task
from rich.console import Console
from rich.table import Table

from prefect_resilience import Backoff, CircuitBreaker, Fallback, Retry, resilient_task

WARM_UP_ROUNDS = 20
GUARDED = (False, False, True, True)
RESAMPLES = 2000
# Calls of plain and guarded in one round, in microseconds
Round = tuple[float, float]

GUARDS: dict[str, Any] = {
    "retry": Retry(attempts=3, backoff=Backoff.exponential(initial=0.5)),
    "circuit": CircuitBreaker("benchmark-overhead"),
    "timeout": 30,
    "fallback": [Fallback.value(0)],
}


@task
def plain(x: int) -> int:
    return x


@resilient_task(**GUARDS)
def guarded(x: int) -> int:
    return x


@task
async def plain_async(x: int) -> int:
    return x


@resilient_task(**GUARDS)
async def guarded_async(x: int) -> int:
    return x


def shuffled(rounds: int) -> Iterator[tuple[bool, ...]]:
    """The order of the calls in each round: whether it is the guarded one."""
    chance = random.Random(0)
    return (tuple(chance.sample(GUARDED, len(GUARDED))) for _ in range(rounds))


@flow
def measure(rounds: int) -> list[Round]:
    results: list[Round] = []
    for x, order in enumerate(shuffled(rounds)):
        took = {False: 0, True: 0}
        for is_guarded in order:
            work = guarded if is_guarded else plain
            began = perf_counter_ns()
            work(x)
            took[is_guarded] += perf_counter_ns() - began
        results.append((took[False] / 2000, took[True] / 2000))
    return results


@flow
async def measure_async(rounds: int) -> list[Round]:
    results: list[Round] = []
    for x, order in enumerate(shuffled(rounds)):
        took = {False: 0, True: 0}
        for is_guarded in order:
            work = guarded_async if is_guarded else plain_async
            began = perf_counter_ns()
            await work(x)
            took[is_guarded] += perf_counter_ns() - began
        results.append((took[False] / 2000, took[True] / 2000))
    return results


@dataclass
class Overhead:
    """Microseconds for a call, and how many times a plain call a guarded one takes."""

    kind: str
    rounds: int
    plain_median: float
    plain_p95: float
    guarded_median: float
    guarded_p95: float
    ratio: float
    ratio_low: float
    ratio_high: float


def ratio_of(rounds: Sequence[Round]) -> float:
    return 1 + median(b - a for a, b in rounds) / median(a for a, _ in rounds)


def overhead_of(kind: str, rounds: Sequence[Round]) -> Overhead:
    chance = random.Random(0)
    resampled = [ratio_of(chance.choices(rounds, k=len(rounds))) for _ in range(RESAMPLES)]
    bounds = quantiles(resampled, n=40)
    p95 = [quantiles(column, n=20)[-1] for column in zip(*rounds, strict=True)]
    return Overhead(
        kind=kind,
        rounds=len(rounds),
        plain_median=median(a for a, _ in rounds),
        plain_p95=p95[0],
        guarded_median=median(b for _, b in rounds),
        guarded_p95=p95[1],
        ratio=ratio_of(rounds),
        ratio_low=bounds[0],
        ratio_high=bounds[-1],
    )


def table_of(results: Sequence[Overhead]) -> Table:
    table = Table(title="one call inside a flow run, in microseconds", title_justify="left")
    for heading in ("task", "plain median", "p95", "guarded median", "p95", "ratio", "95 % interval"):
        table.add_column(heading, justify="left" if heading == "task" else "right")
    for r in results:
        figures = (r.plain_median, r.plain_p95, r.guarded_median, r.guarded_p95)
        interval = f"{r.ratio_low:.3f} to {r.ratio_high:.3f}"
        table.add_row(r.kind, *(f"{figure:,.0f}" for figure in figures), f"{r.ratio:.3f}", interval)
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="What a guarded task costs beside a plain one")
    parser.add_argument("--rounds", type=int, default=400, help="rounds of two plain and two guarded calls")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(arguments)
    if options.rounds < 2:
        parser.error("--rounds must be at least 2")

    every = options.rounds + WARM_UP_ROUNDS
    results = [
        overhead_of("sync", measure(every)[WARM_UP_ROUNDS:]),
        overhead_of("async", asyncio.run(measure_async(every))[WARM_UP_ROUNDS:]),
    ]
    if options.json:
        print(json.dumps([asdict(result) for result in results], indent=2))
    else:
        Console(width=None if sys.stdout.isatty() else 110).print(table_of(results))


if __name__ == "__main__":
    main()
