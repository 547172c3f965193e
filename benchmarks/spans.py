"""What spans cost: `python -m benchmarks.spans [--rounds 200] [--json]`.

Without an SDK, each place where a span would begin looks for the SDK's module in `sys.modules`, and that is
all. This is below what a clock can tell from the noise of a task, so it is counted: how often one task run
looks, times what one look takes, of the time of the task run; for a task that succeeds and for one whose
first attempt fails.

With an SDK that records in memory: the processor time of a task in a flow run and of a call of `@resilient`
outside, with all threads of the process, in interleaved rounds in a random order. "without": no provider is
set. "others": it is, and this package records nothing, so that only Prefect's spans of runs are. "all": this
package's spans as well.

The exit code is 1 if the looks take more than 1 % of a task.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import timeit
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter_ns, process_time_ns
from typing import Any

if __name__ == "__main__":
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "120")

from prefect import flow
from rich.console import Console
from rich.table import Table

from prefect_resilience import Retry, resilient_task
from prefect_resilience.calls import attempt, first, spans
from prefect_resilience.calls.edge import reports
from prefect_resilience.calls.edge.resilient import resilient

MOST_OF_A_TASK = 0.01
WARM_UP_ROUNDS = 5
CALLS_OUTSIDE = 100
WITHOUT, OTHERS, ALL = "without", "others", "all"
LOOKING = (first, attempt, reports, spans)
"""The modules that look for the SDK."""

QUICK = Retry(attempts=2, backoff="none")
failures: list[Exception] = []


def work() -> None:
    if failures:
        raise failures.pop()


async def work_async() -> None:
    work()


task, task_async = resilient_task(retry=QUICK)(work), resilient_task(retry=QUICK)(work_async)
call, call_async = resilient(retry=QUICK)(work), resilient(retry=QUICK)(work_async)


# Without an SDK


@dataclass
class Share:
    """What the looks of one task take of it."""

    what: str
    looks: int
    nanoseconds: float
    task_microseconds: float

    @property
    def of_the_task(self) -> float:
        return self.looks * self.nanoseconds / 1000 / self.task_microseconds

    @property
    def holds(self) -> bool:
        return self.of_the_task <= MOST_OF_A_TASK


@contextmanager
def replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


class Looks(dict[str, Any]):
    """`sys.modules`, which counts the looks."""

    number = 0

    def __contains__(self, name: object) -> bool:
        self.number += 1
        return super().__contains__(name)


def looks_of(run: Callable[[], Any]) -> int:
    looks = Looks(sys.modules)
    with ExitStack() as stack:
        for module in LOOKING:
            stack.enter_context(replaced(module, "modules", looks))
        run()
    return looks.number


def nanoseconds_of_a_look() -> float:
    """The time of `SDK in modules` as the code has it, with the loop around it."""
    number = 100_000
    names = {"SDK": spans.SDK, "modules": sys.modules}
    return median(timeit.repeat("SDK in modules", globals=names, number=number, repeat=15)) / number * 1e9


def one_task(has_failure: bool) -> None:
    if has_failure:
        failures.append(ConnectionError("refused"))
    task()


@flow
def shares(rounds: int) -> list[Share]:
    found: list[Share] = []
    for what, has_failure in (("a task that succeeds", False), ("a task with one retry", True)):
        times: list[float] = []
        for _ in range(rounds + WARM_UP_ROUNDS):
            began = perf_counter_ns()
            one_task(has_failure)
            times.append((perf_counter_ns() - began) / 1000)
        looks = looks_of(lambda has_failure=has_failure: one_task(has_failure))
        found.append(Share(what, looks, nanoseconds_of_a_look(), median(times[WARM_UP_ROUNDS:])))
    return found


# With an SDK


@dataclass
class Cost:
    """The processor time of one call, in microseconds, by what is recorded. `ours`: what this one adds."""

    what: str
    without: float
    others: float
    all: float

    @property
    def ours(self) -> float:
        return self.all - self.others


@contextmanager
def recording(what: str, provider: Any) -> Iterator[None]:
    from opentelemetry import trace

    with ExitStack() as stack:
        if what != WITHOUT:
            stack.enter_context(replaced(trace, "_TRACER_PROVIDER", provider))
        if what != ALL:
            for module in LOOKING:
                stack.enter_context(replaced(module, "SDK", "no module"))
        yield


def orders(rounds: int) -> Iterator[list[str]]:
    chance = random.Random(0)
    return (chance.sample([WITHOUT, OTHERS, ALL], 3) for _ in range(rounds + WARM_UP_ROUNDS))


def cost_of(what: str, rounds: Sequence[dict[str, float]]) -> Cost:
    return Cost(
        what, *(median(took[name] for took in rounds[WARM_UP_ROUNDS:]) for name in (WITHOUT, OTHERS, ALL))
    )


def measured(what: str, rounds: int, once: Callable[[], Any], calls: int, provider: Any) -> Cost:
    results: list[dict[str, float]] = []
    for order in orders(rounds):
        took: dict[str, float] = {}
        for name in order:
            with recording(name, provider):
                began = process_time_ns()
                for _ in range(calls):
                    once()
                took[name] = (process_time_ns() - began) / 1000 / calls
        results.append(took)
    return cost_of(what, results)


async def measured_async(what: str, rounds: int, once: Callable[[], Any], calls: int, provider: Any) -> Cost:
    results: list[dict[str, float]] = []
    for order in orders(rounds):
        took: dict[str, float] = {}
        for name in order:
            with recording(name, provider):
                began = process_time_ns()
                for _ in range(calls):
                    await once()
                took[name] = (process_time_ns() - began) / 1000 / calls
        results.append(took)
    return cost_of(what, results)


def costs_of(rounds: int) -> list[Cost]:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(InMemorySpanExporter()))

    @flow
    def in_flow() -> Cost:
        return measured("a task", rounds, task, 1, provider)

    @flow
    async def in_flow_async() -> Cost:
        return await measured_async("an async task", rounds, task_async, 1, provider)

    outside = measured_async("an async call of @resilient", rounds, call_async, CALLS_OUTSIDE, provider)
    return [
        in_flow(),
        asyncio.run(in_flow_async()),
        measured("a call of @resilient", rounds, call, CALLS_OUTSIDE, provider),
        asyncio.run(outside),
    ]


# Output


def table_of(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in columns:
        table.add_column(heading, justify="left" if heading == columns[0] else "right")
    for row in rows:
        table.add_row(*row)
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What OpenTelemetry's spans cost, without and with an SDK")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args(arguments)
    found = shares(options.rounds)  # before an SDK is imported
    costs = costs_of(options.rounds)
    if options.json:
        without = [
            {**asdict(share), "of_the_task": share.of_the_task, "holds": share.holds} for share in found
        ]
        print(json.dumps({"without": without, "with": [asdict(cost) for cost in costs]}, indent=2))
    else:
        console = Console(width=None if sys.stdout.isatty() else 110)
        rows = [
            (
                share.what,
                str(share.looks),
                f"{share.nanoseconds:.0f} ns",
                f"{share.task_microseconds:,.0f} µs",
                f"{share.of_the_task:.4%}",
                f"{'holds' if share.holds else 'DOES NOT HOLD'}: at most {MOST_OF_A_TASK:.0%}",
            )
            for share in found
        ]
        columns = ("without an SDK", "looks", "one look", "task", "share", "")
        console.print(table_of(columns, rows, "what is left of spans without an SDK"))
        rows = [
            (cost.what, *(f"{value:,.0f}" for value in (cost.without, cost.others, cost.all, cost.ours)))
            for cost in costs
        ]
        columns = ("with an SDK", WITHOUT, OTHERS, ALL, "ours add")
        console.print(table_of(columns, rows, "one call that succeeds, in microseconds of the processor"))
    return 0 if all(share.holds for share in found) else 1


if __name__ == "__main__":
    sys.exit(main())
