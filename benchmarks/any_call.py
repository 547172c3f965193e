"""What a guard around any call costs while all goes well: `python -m benchmarks.any_call [--json]`.

`@resilient` beside stamina and tenacity, with a closed circuit beside circuitbreaker around tenacity, and the
httpx transport beside httpx-retries: outside of Prefect and inside a flow run, sync and async. Nothing ever
fails. Rounds are interleaved, in a random order, in one process. A ratio is the median of the ratios of the
rounds, and so is what a guard adds. The memory is that of 100,000 calls that wait at once, as tracemalloc
counts it, with a process for each candidate.

The exit code is 1 if a requirement does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Any

if __name__ == "__main__":
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "120")

import circuitbreaker
import httpx
import httpx_retries
import stamina
import tenacity
from prefect import flow
from rich.console import Console
from rich.table import Table

from benchmarks.loopback import BODY, loopback
from prefect_resilience.calls.edge.resilient import resilient
from prefect_resilience.http import AsyncResilientTransport, ResilientTransport

BARE, OURS = "bare", "prefect-resilience"
STAMINA, TENACITY, BOTH, HTTPX_RETRIES = "stamina", "tenacity", "circuitbreaker + tenacity", "httpx-retries"
FUNCTION, CIRCUIT, IN_MEMORY, LOOPBACK = "retry", "retry and circuit", "httpx, in memory", "httpx, loopback"
OUTSIDE, IN_FLOW = "no run", "flow run"
KINDS = ("sync", "async")
MEMORY_OF = (BARE, OURS, STAMINA, TENACITY)
WARM_UP_ROUNDS = 3

MOST_OF_A_RETRY = 0.7
MOST_WITH_A_CIRCUIT = 1.0
MOST_OF_A_TRANSPORT = 1.1
MOST_ADDED = 40.0

Call = Callable[[], Any]


@dataclass
class Cost:
    """The microseconds of one call, by candidate. `ratios` are those of ours to each of the others, and
    `added` is what ours adds to the bare call, in microseconds."""

    what: str
    kind: str
    where: str
    medians: dict[str, float]
    ratios: dict[str, float]
    added: float


@dataclass
class Requirement:
    text: str
    figure: float
    most: float

    @property
    def holds(self) -> bool:
        return self.figure <= self.most


# The candidates


def page(number: int) -> int:
    return number


async def page_async(number: int) -> int:
    return number


def with_tenacity(fn: Any) -> Any:
    wait = tenacity.wait_exponential_jitter()
    return tenacity.retry(stop=tenacity.stop_after_attempt(3), wait=wait, reraise=True)(fn)


def with_stamina(fn: Any) -> Any:
    return stamina.retry(on=Exception, attempts=3)(fn)


def retried(fn: Any) -> dict[str, Any]:
    """The function with retries by each candidate."""
    ours = resilient(retry=3)(fn)
    return {BARE: fn, OURS: ours, STAMINA: with_stamina(fn), TENACITY: with_tenacity(fn)}


def broken(fn: Any, name: str) -> dict[str, Any]:
    """The function with retries and a circuit. Ours is shared by all processes, in the default store."""
    ours = resilient(retry=3, circuit=name)(fn)
    return {BARE: fn, OURS: ours, BOTH: circuitbreaker.CircuitBreaker(name=name)(with_tenacity(fn))}


def answered(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, content=BODY)


# Rounds


def of_many(calls: int, took: Sequence[float], single: bool) -> float:
    """The microseconds of one call: over loopback the lower quartile of the single calls, because what else
    the machine does makes a call only slower; else the mean."""
    return sorted(took)[len(took) // 4] if single else sum(took) / calls


def rounds_of(
    calls_of: Mapping[str, Call],
    rounds: int,
    calls: int,
    single: bool,
    clock: Callable[[], int] = perf_counter_ns,
) -> list[dict[str, float]]:
    """For each round the microseconds of one call, by candidate."""
    chance, found = random.Random(0), list[dict[str, float]]()
    for _ in range(rounds + WARM_UP_ROUNDS):
        took: dict[str, float] = {}
        for name in chance.sample([*calls_of], len(calls_of)):
            call, times = calls_of[name], list[float]()
            for _ in range(calls if single else 1):
                began = clock()
                for _ in range(1 if single else calls):
                    call()
                times.append((clock() - began) / 1000)
            took[name] = of_many(calls, times, single)
        found.append(took)
    return found[WARM_UP_ROUNDS:]


async def rounds_of_async(
    calls_of: Mapping[str, Callable[[], Awaitable[Any]]],
    rounds: int,
    calls: int,
    single: bool,
    clock: Callable[[], int] = perf_counter_ns,
) -> list[dict[str, float]]:
    chance, found = random.Random(0), list[dict[str, float]]()
    for _ in range(rounds + WARM_UP_ROUNDS):
        took: dict[str, float] = {}
        for name in chance.sample([*calls_of], len(calls_of)):
            call, times = calls_of[name], list[float]()
            for _ in range(calls if single else 1):
                began = clock()
                for _ in range(1 if single else calls):
                    await call()
                times.append((clock() - began) / 1000)
            took[name] = of_many(calls, times, single)
        found.append(took)
    return found[WARM_UP_ROUNDS:]


def cost_of(what: str, kind: str, where: str, rounds: Sequence[Mapping[str, float]]) -> Cost:
    others = [name for name in rounds[0] if name != OURS]
    return Cost(
        what,
        kind,
        where,
        {name: median(each[name] for each in rounds) for name in rounds[0]},
        {name: median(each[OURS] / each[name] for each in rounds) for name in others},
        median(each[OURS] - each[BARE] for each in rounds),
    )


def measure(rounds: int, calls: int, url: str, where: str) -> list[Cost]:
    """The sync candidates, here: outside of a run or inside."""
    costs: list[Cost] = []
    for what, functions in ((FUNCTION, retried(page)), (CIRCUIT, broken(page, "benchmark"))):
        once = {name: lambda fn=fn: fn(1) for name, fn in functions.items()}
        costs.append(cost_of(what, "sync", where, rounds_of(once, rounds, calls, single=False)))
    for what in (IN_MEMORY, LOOPBACK):
        inner: Any = httpx.MockTransport(answered) if what == IN_MEMORY else None
        with ExitStack() as stack:
            transports: dict[str, Any] = {
                BARE: inner,
                OURS: ResilientTransport(transport=inner),
                HTTPX_RETRIES: httpx_retries.RetryTransport(transport=inner),
            }
            clients = {
                name: stack.enter_context(httpx.Client(transport=transport))
                for name, transport in transports.items()
            }
            single = what == LOOPBACK
            once = {name: lambda client=client: client.get(url) for name, client in clients.items()}
            number = max(calls // 100, 1)
            costs.append(cost_of(what, "sync", where, rounds_of(once, rounds * 2, number, single)))
    return costs


async def measure_async(rounds: int, calls: int, url: str, where: str) -> list[Cost]:
    """The async candidates, as `measure`."""
    costs: list[Cost] = []
    for what, functions in (
        (FUNCTION, retried(page_async)),
        (CIRCUIT, broken(page_async, "benchmark-async")),
    ):
        once = {name: lambda fn=fn: fn(1) for name, fn in functions.items()}
        found = await rounds_of_async(once, rounds, calls, single=False)
        costs.append(cost_of(what, "async", where, found))
    for what in (IN_MEMORY, LOOPBACK):
        inner: Any = httpx.MockTransport(answered) if what == IN_MEMORY else None
        async with AsyncExitStack() as stack:
            transports: dict[str, Any] = {
                BARE: inner,
                OURS: AsyncResilientTransport(transport=inner),
                HTTPX_RETRIES: httpx_retries.RetryTransport(transport=inner),
            }
            clients = {
                name: await stack.enter_async_context(httpx.AsyncClient(transport=transport))
                for name, transport in transports.items()
            }
            single = what == LOOPBACK
            once = {name: lambda client=client: client.get(url) for name, client in clients.items()}
            found = await rounds_of_async(once, rounds * 2, max(calls // 100, 1), single)
            costs.append(cost_of(what, "async", where, found))
    return costs


@flow
def measure_in_flow(rounds: int, calls: int, url: str) -> list[Cost]:
    return measure(rounds, calls, url, IN_FLOW)


@flow
async def measure_in_flow_async(rounds: int, calls: int, url: str) -> list[Cost]:
    return await measure_async(rounds, calls, url, IN_FLOW)


# Memory


async def waiting(name: str, calls: int) -> float:
    """The bytes of one call of this candidate while `calls` of them wait for the same event."""
    release, all_begun, begun = asyncio.Event(), asyncio.Event(), 0

    async def wait(number: int) -> int:
        nonlocal begun
        begun += 1
        if begun > calls:
            all_begun.set()
        await release.wait()
        return number

    guarded = retried(wait)[name]
    warm = asyncio.create_task(guarded(0))
    await asyncio.sleep(0.1)
    gc.collect()
    tracemalloc.start()
    tasks = [asyncio.create_task(guarded(number)) for number in range(calls)]
    await all_begun.wait()
    gc.collect()
    found = tracemalloc.get_traced_memory()[0] / calls
    tracemalloc.stop()
    release.set()
    await asyncio.gather(warm, *tasks)
    return found


def memory(calls: int) -> dict[str, float]:
    """The bytes of a waiting call, by candidate; each is measured in a process of its own."""
    found: dict[str, float] = {}
    for name in MEMORY_OF:
        command = [sys.executable, "-m", "benchmarks.any_call", "--memory-of", name, "--waiting", str(calls)]
        ran = subprocess.run(
            command, cwd=Path(__file__).parents[1], check=True, stdout=subprocess.PIPE, text=True
        )
        found[name] = float(ran.stdout)
    return found


# The requirements


def requirements(costs: Sequence[Cost], bytes_of: Mapping[str, float]) -> list[Requirement]:
    """Those for calls outside of runs, which the peers know nothing about."""
    found: list[Requirement] = []
    for cost in costs:
        if cost.where != OUTSIDE:
            continue
        if cost.what == FUNCTION:
            found += [
                Requirement(
                    f"{cost.kind}: @resilient(retry=3), of {peer}", cost.ratios[peer], MOST_OF_A_RETRY
                )
                for peer in (STAMINA, TENACITY)
            ]
        elif cost.what == CIRCUIT:
            text = f"{cost.kind}: with a closed shared circuit, of {BOTH}"
            found.append(Requirement(text, cost.ratios[BOTH], MOST_WITH_A_CIRCUIT))
        elif cost.what == LOOPBACK:
            text = f"{cost.kind}: the httpx transport over loopback, "
            ratio = cost.ratios[HTTPX_RETRIES]
            found.append(Requirement(f"{text}of {HTTPX_RETRIES}", ratio, MOST_OF_A_TRANSPORT))
            found.append(Requirement(f"{text}µs over bare httpx", cost.added, MOST_ADDED))
        else:
            text = f"{cost.kind}: the httpx transport in memory, µs over bare httpx"
            found.append(Requirement(text, cost.added, MOST_ADDED))
    found += [
        Requirement(f"memory of a waiting call, of {peer}", bytes_of[OURS] / bytes_of[peer], 1.0)
        for peer in (STAMINA, TENACITY)
    ]
    return found


# Output


def table_of(costs: Sequence[Cost]) -> Table:
    table = Table(title="one call that goes well, in microseconds", title_justify="left")
    for heading in ("guard", "call", "inside", "bare", "ours", "added", "others"):
        table.add_column(heading, justify="right" if heading in ("bare", "ours", "added") else "left")
    for cost in costs:
        others = [
            f"{name} {cost.medians[name]:.1f} (ours {ratio:.2f} of it)"
            for name, ratio in cost.ratios.items()
            if name != BARE
        ]
        figures = (cost.medians[BARE], cost.medians[OURS], cost.added)
        told = (f"{figure:.1f}" for figure in figures)
        table.add_row(cost.what, cost.kind, cost.where, *told, "\n".join(others))
    return table


def show(
    costs: Sequence[Cost], bytes_of: Mapping[str, float], waited: int, kept: Sequence[Requirement]
) -> None:
    console = Console(width=None if sys.stdout.isatty() else 130)
    console.print(table_of(costs))
    told = ", ".join(f"{name} {size:,.0f}" for name, size in bytes_of.items())
    console.print(f"bytes of a call, of {waited:,} that wait at once: {told}")
    for one in kept:
        said = "holds" if one.holds else "DOES NOT HOLD"
        console.print(f"{said}: {one.text}: {one.figure:.2f} (at most {one.most:g})", highlight=False)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=40, help="rounds of all candidates")
    parser.add_argument(
        "--calls", type=int, default=2000, help="calls in a round; a hundredth of it with httpx"
    )
    parser.add_argument("--waiting", type=int, default=100_000, help="calls that wait at once")
    parser.add_argument(
        "--memory-of", choices=MEMORY_OF, help="only the bytes of a waiting call, of this one"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(arguments)
    if options.memory_of:
        print(asyncio.run(waiting(options.memory_of, options.waiting)))
        return 0

    with loopback() as url:
        asked = (options.rounds, options.calls, url)
        costs = [*measure(*asked, OUTSIDE), *asyncio.run(measure_async(*asked, OUTSIDE))]
        costs += [*measure_in_flow(*asked), *asyncio.run(measure_in_flow_async(*asked))]
    bytes_of = memory(options.waiting)
    kept = requirements(costs, bytes_of)
    if options.json:
        told = {
            "costs": [asdict(cost) for cost in costs],
            "bytes": bytes_of,
            "requirements": [{**asdict(one), "holds": one.holds} for one in kept],
        }
        print(json.dumps(told, indent=2))
    else:
        show(costs, bytes_of, options.waiting, kept)
    return 0 if all(one.holds for one in kept) else 1


if __name__ == "__main__":
    raise SystemExit(main())
