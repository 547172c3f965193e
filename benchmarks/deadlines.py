"""How late a call ends that has a deadline: `python -m benchmarks.deadlines [--rounds 3] [NESTING ...]`.

In each nesting, calls that would hang are made inside of a deadline: by tasks, flows, `@resilient`, HTTP
transports, child processes, and task runners. Each function that begins, and each end, writes its time to a
journal, which all processes share. `late` is the time from the deadline to the end; `begun after` are the
functions that began after it. Without names, all nestings run; Dask and Ray need `prefect-dask` and
`prefect-ray`. The exit code is 1 if one ends more than 0.3 s late, or if anything was begun after it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "CRITICAL")
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "120")

import httpx
import requests
from prefect import flow, task
from prefect.futures import wait
from prefect.task_runners import ProcessPoolTaskRunner
from rich.console import Console
from rich.table import Table

from flows.runners import on_dask, on_ray
from prefect_resilience import (
    Backoff,
    Bulkhead,
    DeadlineExceeded,
    Retry,
    Timeout,
    deadline,
    resilient,
    resilient_flow,
    resilient_task,
)
from prefect_resilience.calls.edge.adapter import ResilientAdapter
from prefect_resilience.http import AsyncResilientTransport, ResilientTransport
from prefect_resilience.testing.services import Reply, ScriptedService

MOST_LATE = 0.3
HANGS = 30.0
"""Seconds that a call takes if nothing ends it."""
SOON = Retry(attempts=500, backoff=Backoff.constant(0.05))


@dataclass
class Journal:
    """The file to which all processes of a nesting write: what happened, by the monotonic clock."""

    path: str
    seconds: float

    def note(self, what: str) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(f"{time.monotonic()} {what}\n")

    def hang(self, what: str) -> None:
        """A function that begins, and hangs until the nesting has ended: then no thread goes on."""
        self.note(f"begun {what}")
        until = time.monotonic() + HANGS
        while time.monotonic() < until and not self.over.exists():
            time.sleep(0.02)

    async def hang_async(self, what: str) -> None:
        self.note(f"begun {what}")
        await asyncio.sleep(HANGS)

    @property
    def over(self) -> Path:
        return Path(f"{self.path}.over")

    def read(self) -> Outcome:
        outcome = Outcome()
        lines = Path(self.path).read_text(encoding="utf-8").splitlines()
        times = [(float(line.split(" ", 1)[0]), line.split(" ", 1)[1]) for line in lines]
        until = next(at for at, what in times if what == "set") + self.seconds
        outcome.late = next(at for at, what in times if what == "ended") - until
        outcome.begun = [what for _, what in times if what.startswith("begun")]
        outcome.begun_after = [what for at, what in times if what.startswith("begun") and at > until]
        return outcome


@dataclass
class Outcome:
    late: float = 0.0
    begun: list[str] = field(default_factory=list)
    begun_after: list[str] = field(default_factory=list)


@resilient(retry=SOON)
def hanging(journal: Journal) -> None:
    journal.hang("call")


@resilient(retry=SOON)
async def hanging_async(journal: Journal) -> None:
    await journal.hang_async("coroutine")


@resilient(retry=SOON)
def failing(journal: Journal) -> None:
    journal.note("begun attempt")
    raise ConnectionError("connection refused")


@resilient(retry=SOON, timeout=Timeout(HANGS, mode="process"))
def in_child(journal: Journal) -> None:
    journal.note("begun in a child")
    hanging(journal)


@resilient_task(retry=SOON)
def hanging_task(journal: Journal, number: int = 0) -> None:
    journal.hang(f"task {number}")


@resilient_task(retry=SOON)
async def hanging_task_async(journal: Journal) -> None:
    await journal.hang_async("async task")


@resilient_task(retry=SOON, timeout=Timeout(HANGS, mode="process"))
def task_in_child(journal: Journal) -> None:
    journal.hang("task in a child")


@task
def plain_task(journal: Journal) -> None:
    journal.note("begun plain task")
    hanging(journal)


@task
def warm(number: int) -> int:
    """Makes a pool start its processes, which is not what is measured."""
    import prefect_resilience.tasks.edge.task  # noqa: F401

    time.sleep(0.2)
    return number


# -- the nestings: each sets a deadline of `journal.seconds`, and notes when, and when it has ended


def block(journal: Journal) -> None:
    with deadline(journal.seconds):
        journal.note("set")
        hanging(journal)


def block_async(journal: Journal) -> None:
    async def work() -> None:
        async with deadline(journal.seconds):
            journal.note("set")
            await asyncio.gather(hanging_async(journal), journal.hang_async("unguarded"))

    asyncio.run(work())


def attempts_and_delays(journal: Journal) -> None:
    with deadline(journal.seconds):
        journal.note("set")
        failing(journal)


def option_of_resilient(journal: Journal) -> None:
    @resilient(retry=SOON, deadline=journal.seconds)
    def outer() -> None:
        journal.note("set")
        hanging(journal)

    outer()


def fallbacks(journal: Journal) -> None:
    def instead() -> None:
        journal.hang("fallback")

    @resilient(retry=None, deadline=journal.seconds, fallback=[instead, lambda: journal.note("begun second")])
    def outer() -> None:
        journal.note("set")
        raise ConnectionError("connection refused")

    outer()


def full_bulkhead(journal: Journal) -> None:
    place = Bulkhead(1, max_wait=HANGS)

    @resilient(retry=SOON, limits=place)
    def waiting() -> None:
        journal.note("begun in a full bulkhead")

    with place, deadline(journal.seconds):
        journal.note("set")
        waiting()


def stream(journal: Journal) -> None:
    @resilient(retry=SOON, deadline=journal.seconds)
    def chunks() -> Any:
        journal.note("set")
        yield 1
        journal.hang("second chunk")
        yield 2

    list(chunks())


def transport(journal: Journal) -> None:
    with ScriptedService(503, 503, Reply(delay=journal.seconds + 2)) as service:
        guarded = ResilientTransport(retry=SOON, circuit=None, deadline=journal.seconds)
        with httpx.Client(transport=guarded, timeout=HANGS) as client:
            journal.note("set")
            client.get(service.url)


def transport_async(journal: Journal) -> None:
    async def work() -> None:
        guarded = AsyncResilientTransport(retry=SOON, circuit=None)
        async with httpx.AsyncClient(transport=guarded, timeout=HANGS) as client, deadline(journal.seconds):
            journal.note("set")
            await client.get(service.url)

    with ScriptedService(503, 503, Reply(delay=journal.seconds + 2)) as service:
        asyncio.run(work())


def adapter(journal: Journal) -> None:
    with (
        ScriptedService(503, 503, Reply(delay=journal.seconds + 2)) as service,
        requests.Session() as session,
    ):
        session.mount("http://", ResilientAdapter(retry=SOON, circuit=None))
        with deadline(journal.seconds):
            journal.note("set")
            session.get(service.url, timeout=HANGS)


def child_process(journal: Journal) -> None:
    resilient(timeout=Timeout(60, mode="process"))(abs)(1)  # the first child takes long to start
    with deadline(journal.seconds):
        journal.note("set")
        in_child(journal)


def option_of_task(journal: Journal) -> None:
    @resilient_task(retry=SOON, deadline=journal.seconds)
    def outer(journal: Journal) -> None:
        if not Path(journal.path).exists():
            journal.note("set")
        journal.note("begun attempt of the task")
        raise ConnectionError("connection refused")

    @flow
    def scenario() -> None:
        try:
            outer(journal)
        finally:
            journal.note("ended")

    scenario()


def flow_of_threads(journal: Journal) -> None:
    def work() -> None:
        for future in [hanging_task.submit(journal, number) for number in range(3)]:
            future.result()

    in_flow(journal, work)


def flow_async(journal: Journal) -> None:
    @resilient_flow(deadline=journal.seconds, retries=2, summary=False)
    async def scenario() -> None:
        journal.note("set")
        try:
            await hanging_task_async(journal)
        finally:
            journal.note("ended")

    asyncio.run(scenario())


def flow_of_flow(journal: Journal) -> None:
    @resilient_flow(summary=False)
    def inner() -> None:
        journal.note("begun subflow")
        try:
            plain_task(journal)
        finally:
            journal.note("ended")

    in_flow(journal, inner)


def flow_of_its_own_code(journal: Journal) -> None:
    in_flow(journal, lambda: journal.hang("the flow's own code"))


def flow_of_a_child(journal: Journal) -> None:
    in_flow(journal, lambda: task_in_child(journal))


def in_flow(journal: Journal, work: Callable[[], Any]) -> None:
    @resilient_flow(deadline=journal.seconds, retries=2, summary=False)
    def scenario() -> None:
        journal.note("set")
        try:
            work()
        finally:
            journal.note("ended")

    scenario()


def in_pool(journal: Journal, runner: Any) -> None:
    """Six tasks on two processes: four are still in the queue when the deadline passes."""

    @flow(task_runner=runner)
    def scenario() -> None:
        wait(warm.map(range(6)))
        with deadline(journal.seconds):
            journal.note("set")
            futures = hanging_task.map([journal] * 6, range(6))
        wait(futures[:2])
        journal.note("ended")
        wait(futures)
        futures[0].result()

    scenario()


def processes(journal: Journal) -> None:
    in_pool(journal, ProcessPoolTaskRunner(max_workers=2))


def dask(journal: Journal) -> None:
    in_pool(journal, on_dask())


def ray(journal: Journal) -> None:
    in_pool(journal, on_ray())


ALONE = (
    *(block, block_async, attempts_and_delays, option_of_resilient, fallbacks, full_bulkhead, stream),
    *(transport, transport_async, adapter, child_process),
)
IN_RUNS = (option_of_task, flow_of_threads, flow_async, flow_of_flow, flow_of_its_own_code, flow_of_a_child)
ON_POOLS = (processes, dask, ray)
NESTINGS = {nesting.__name__: nesting for nesting in (*ALONE, *IN_RUNS, *ON_POOLS)}


def measure(name: str, seconds: float, folder: str) -> Outcome:
    """Run one nesting. Raises AssertionError if it ended without an error."""
    with tempfile.NamedTemporaryFile(dir=folder, delete=True) as file:
        path = file.name
    journal = Journal(path, seconds)
    try:
        NESTINGS[name](journal)
    except (DeadlineExceeded, ConnectionError, httpx.HTTPError):
        journal.note("ended")
    else:
        raise AssertionError(f"{name} ended without an error")
    finally:
        journal.over.touch()
    return journal.read()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("nestings", nargs="*", choices=[*NESTINGS, []], help="all without a name")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="the deadline")
    options = parser.parse_args(arguments)
    table = Table("nesting", "late, s", "begun", "begun after", box=None)
    held = True
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        with suppress(ImportError):
            from prefect.testing.utilities import prefect_test_harness

            stack.enter_context(prefect_test_harness(server_startup_timeout=120))
        for name in options.nestings or NESTINGS:
            outcomes = [measure(name, options.seconds, folder) for _ in range(options.rounds)]
            late = max(outcome.late for outcome in outcomes)
            after = [what for outcome in outcomes for what in outcome.begun_after]
            held = held and late <= MOST_LATE and not after
            begun = max(len(outcome.begun) for outcome in outcomes)
            table.add_row(name.replace("_", " "), f"{late:.3f}", str(begun), ", ".join(after) or "nothing")
    Console(width=None if sys.stdout.isatty() else 100).print(table)
    print(f"{'holds' if held else 'DOES NOT HOLD'}: at most {MOST_LATE:g} s late, and nothing begun after it")
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
