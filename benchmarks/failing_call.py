"""What a guarded call costs when it fails: `python -m benchmarks.failing_call [--json]`.

A retried call fails once and then succeeds, without a delay: `@resilient` beside stamina and tenacity, sync
and async, outside of a run and inside a task. By hand are two attempts in a `try`. A rejected call meets an
open circuit: ours, in memory and in SQLite, beside pybreaker's. The log lines of all libraries are made, and
written nowhere. The processor's time counts, since nothing waits. Rounds are interleaved as in
`benchmarks.any_call`, and a ratio is the median of theirs.

The exit code is 1 if a requirement does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from time import process_time_ns
from typing import Any

if __name__ == "__main__":
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "120")

import pybreaker
import stamina
import tenacity
from prefect import flow, task
from rich.console import Console
from rich.table import Table

from benchmarks.any_call import (
    BARE,
    OURS,
    OUTSIDE,
    STAMINA,
    TENACITY,
    Cost,
    Requirement,
    cost_of,
    rounds_of,
    rounds_of_async,
)
from prefect_resilience import Backoff, CircuitBreaker, CircuitOpenError, Retry, resilient

PYBREAKER = "pybreaker"
RETRIED, IN_MEMORY, IN_SQLITE = "retried", "rejected, in memory", "rejected, SQLite"
IN_TASK = "task run"
OPEN_FOR = 3600

MOST_OF_A_RETRY = 3.0
MOST_OF_A_REJECTION = 0.5


# The candidates


def flaky() -> Callable[[int], int]:
    """A function that fails at every other call."""
    calls = 0

    def page(number: int) -> int:
        nonlocal calls
        calls += 1
        if calls % 2:
            raise ConnectionError("connection refused")
        return number

    return page


def flaky_async() -> Callable[[int], Any]:
    answer = flaky()

    async def page(number: int) -> int:
        return answer(number)

    return page


def by_hand(fn: Any) -> Any:
    def call(number: int) -> int:
        try:
            return fn(number)
        except ConnectionError:
            return fn(number)

    return call


def by_hand_async(fn: Any) -> Any:
    async def call(number: int) -> int:
        try:
            return await fn(number)
        except ConnectionError:
            return await fn(number)

    return call


def retried(isasync: bool) -> dict[str, Any]:
    """A function that fails once in each call, with a retry by each candidate."""
    make: Callable[[], Any] = flaky_async if isasync else flaky
    with_ours = resilient(retry=Retry(attempts=2, backoff=Backoff.constant(0)))
    with_stamina = stamina.retry(on=ConnectionError, attempts=2, wait_initial=0, wait_max=0, wait_jitter=0)
    with_tenacity = tenacity.retry(
        retry=tenacity.retry_if_exception_type(ConnectionError),
        stop=tenacity.stop_after_attempt(2),
        wait=tenacity.wait_none(),
        reraise=True,
    )
    return {
        BARE: by_hand_async(make()) if isasync else by_hand(make()),
        OURS: with_ours(make()),
        STAMINA: with_stamina(make()),
        TENACITY: with_tenacity(make()),
    }


def fail(number: int) -> int:
    raise ConnectionError("connection refused")


def fail_by_hand() -> None:
    try:
        fail(1)
    except ConnectionError:
        return


def opened(breaker: Any, error: type[Exception]) -> Callable[[], None]:
    """A call that the breaker rejects with this error; the first one has opened it."""
    with suppress(ConnectionError, error):
        breaker.call(fail, 1)

    def call() -> None:
        try:
            breaker.call(fail, 1)
        except error:
            return
        raise AssertionError("the circuit is not open")

    return call


@contextmanager
def rejected() -> Iterator[dict[str, dict[str, Callable[[], None]]]]:
    """A rejected call, by store and candidate."""
    with tempfile.TemporaryDirectory() as folder:
        urls = {IN_MEMORY: "memory://", IN_SQLITE: f"sqlite:///{folder}/circuits.db"}
        calls: dict[str, dict[str, Callable[[], None]]] = {}
        for what, url in urls.items():
            ours = CircuitBreaker(what, failure_threshold=1, open_for=OPEN_FOR, open_max=OPEN_FOR, store=url)
            peer = pybreaker.CircuitBreaker(fail_max=1, reset_timeout=OPEN_FOR)
            calls[what] = {
                BARE: fail_by_hand,
                OURS: opened(ours, CircuitOpenError),
                PYBREAKER: opened(peer, pybreaker.CircuitBreakerError),
            }
        yield calls


# Rounds


def measure(rounds: int, calls: int, where: str) -> list[Cost]:
    """The sync candidates, here: outside of a run or inside."""
    once = {name: lambda fn=fn: fn(1) for name, fn in retried(isasync=False).items()}
    return [
        cost_of(RETRIED, "sync", where, rounds_of(once, rounds, calls, single=False, clock=process_time_ns))
    ]


async def measure_async(rounds: int, calls: int, where: str) -> list[Cost]:
    """The async candidates, as `measure`."""
    once = {name: lambda fn=fn: fn(1) for name, fn in retried(isasync=True).items()}
    return [
        cost_of(
            RETRIED,
            "async",
            where,
            await rounds_of_async(once, rounds, calls, single=False, clock=process_time_ns),
        )
    ]


def measure_rejected(rounds: int, calls: int) -> list[Cost]:
    with rejected() as calls_of:
        return [
            cost_of(
                what,
                "sync",
                OUTSIDE,
                rounds_of(once, rounds, calls * 10, single=False, clock=process_time_ns),
            )
            for what, once in calls_of.items()
        ]


@task
def measure_in_task(rounds: int, calls: int) -> list[Cost]:
    return measure(rounds, calls, IN_TASK)


@task
async def measure_in_task_async(rounds: int, calls: int) -> list[Cost]:
    return await measure_async(rounds, calls, IN_TASK)


@flow
def measure_in_flow(rounds: int, calls: int) -> list[Cost]:
    return measure_in_task(rounds, calls)


@flow
async def measure_in_flow_async(rounds: int, calls: int) -> list[Cost]:
    return await measure_in_task_async(rounds, calls)


# The requirements and the output


def requirements(costs: Sequence[Cost]) -> list[Requirement]:
    """Each ratio is one of a failing call to the same call by a peer."""
    return [
        Requirement(
            f"{cost.kind}, {cost.where}: a {cost.what} call, of {peer}",
            ratio,
            MOST_OF_A_RETRY if cost.what == RETRIED else MOST_OF_A_REJECTION,
        )
        for cost in costs
        for peer, ratio in cost.ratios.items()
        if peer != BARE
    ]


def table_of(costs: Sequence[Cost]) -> Table:
    table = Table(title="one call that fails, in microseconds", title_justify="left")
    for heading in ("call", "kind", "inside", "by hand", "ours", "others"):
        table.add_column(heading, justify="right" if heading in ("by hand", "ours") else "left")
    for cost in costs:
        others = [
            f"{peer} {cost.medians[peer]:.1f} (ours {ratio:.2f} of it)"
            for peer, ratio in cost.ratios.items()
            if peer != BARE
        ]
        figures = (f"{cost.medians[name]:.1f}" for name in (BARE, OURS))
        table.add_row(cost.what, cost.kind, cost.where, *figures, "\n".join(others))
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=40, help="rounds of all candidates")
    parser.add_argument("--calls", type=int, default=200, help="calls in a round; ten times as many rejected")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(arguments)
    for name in ("stamina", "prefect_resilience"):
        logging.getLogger(name).addHandler(logging.NullHandler())
    asked = (options.rounds, options.calls)
    costs = [*measure(*asked, OUTSIDE), *asyncio.run(measure_async(*asked, OUTSIDE))]
    costs += measure_rejected(*asked)
    costs += [*measure_in_flow(*asked), *asyncio.run(measure_in_flow_async(*asked))]
    bars = requirements(costs)
    if options.json:
        shown = [{**asdict(bar), "holds": bar.holds} for bar in bars]
        print(json.dumps({"costs": [asdict(cost) for cost in costs], "requirements": shown}, indent=2))
    else:
        console = Console(width=None if sys.stdout.isatty() else 130)
        console.print(table_of(costs))
        for bar in bars:
            word = "holds" if bar.holds else "DOES NOT HOLD"
            console.print(f"{word}: {bar.text}: {bar.figure:.2f} (at most {bar.most:g})", highlight=False)
    return 0 if all(bar.holds for bar in bars) else 1


if __name__ == "__main__":
    raise SystemExit(main())
