"""The same flow on every task runner: what holds across threads, processes, Dask and Ray.

`python -m flows.runners thread process dask ray` runs it on those that you name (all without a name; Dask and
Ray need `prefect-dask` and `prefect-ray`). The service is real HTTP on loopback, counts what reaches it, and
is the judge of each column:

- retries: each of four calls gets two 503 and an answer;
- fallback: 24 calls to a service that is down, each answered from the archive;
- circuit: so many of the 24 reached the service before the circuit, which all processes share, was open;
- effect once: six orders, and the same batch a second time: each arrived once;
- timeout: a call that hangs for a minute ends after half a second.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
from prefect import unmapped
from prefect.futures import wait
from prefect.task_runners import ProcessPoolTaskRunner, TaskRunner, ThreadPoolTaskRunner
from rich.console import Console
from rich.table import Table
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from flows.own_process import run_apart
from flows.serving import running
from prefect_resilience import (
    Backoff,
    CircuitBreaker,
    Effect,
    Fallback,
    Retry,
    idempotency_key,
    resilient_flow,
    resilient_task,
)

CALLS, DOWN, ORDERS = 4, 24, 6
COLUMNS = ("retries", "fallback", "circuit", "effect once", "timeout")
HANGS = 60.0
"""Seconds."""

# --- the runners -----------------------------------------------------------------------------------------


def on_dask() -> TaskRunner[Any]:
    from prefect_dask import DaskTaskRunner

    return DaskTaskRunner(cluster_kwargs={"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None})


def on_ray() -> TaskRunner[Any]:
    from prefect_ray import RayTaskRunner

    return RayTaskRunner(init_kwargs={"num_cpus": 2, "include_dashboard": False})


RUNNERS: dict[str, Callable[[], TaskRunner[Any]]] = {
    "thread": lambda: ThreadPoolTaskRunner(max_workers=2),
    "process": lambda: ProcessPoolTaskRunner(max_workers=2),
    "dask": on_dask,
    "ray": on_ray,
}

# --- the service -----------------------------------------------------------------------------------------


class CountingService:
    """Counts the requests of each path, and the orders by their idempotency key."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.orders: Counter[str] = Counter()

    def app(self) -> Starlette:
        paths = {"/flaky/{name}": self.flaky, "/down": self.down, "/hangs": self.hangs, "/orders": self.order}
        return Starlette(routes=[Route(path, each, methods=["GET", "POST"]) for path, each in paths.items()])

    async def flaky(self, request: Request) -> JSONResponse:
        self.requests[request.url.path] += 1
        good = self.requests[request.url.path] > 2
        return JSONResponse({"answer": request.path_params["name"]}, 200 if good else 503)

    async def down(self, request: Request) -> JSONResponse:
        self.requests["/down"] += 1
        return JSONResponse({"error": "down"}, 503)

    async def hangs(self, request: Request) -> JSONResponse:
        await asyncio.sleep(HANGS)
        return JSONResponse({})

    async def order(self, request: Request) -> JSONResponse:
        self.orders[request.headers["Idempotency-Key"]] += 1
        return JSONResponse({"taken": True})


# --- the tasks -------------------------------------------------------------------------------------------


@resilient_task(retry=Retry(attempts=3, backoff=Backoff.constant(0.1)))
def call(number: int, address: str) -> str:
    return httpx.get(f"{address}/flaky/{number}").raise_for_status().json()["answer"]


def from_the_archive(number: int) -> str:
    return f"archived {number}"


@resilient_task(
    circuit=CircuitBreaker("runners:{runner}", failure_threshold=3, open_for=60),
    retry=Retry(attempts=1),
    fallback=[Fallback(from_the_archive, when="transient", degraded=True)],
)
def ask(number: int, runner: str, address: str) -> str:
    return httpx.get(f"{address}/down").raise_for_status().json()["answer"]


@resilient_task(effect=Effect(key="order:{number}"), retry=Retry(attempts=1))
def send(number: int, address: str) -> int:
    headers = {"Idempotency-Key": f"{idempotency_key()}"}
    httpx.post(f"{address}/orders", headers=headers).raise_for_status()
    return number


@resilient_task(timeout=0.5, retry=Retry(attempts=1))
def hang(address: str) -> None:
    httpx.get(f"{address}/hangs", timeout=HANGS)


# --- the flow --------------------------------------------------------------------------------------------


@resilient_flow(batch="runners-{runner}")
def on_a_runner(runner: str, address: str) -> dict[str, Any]:
    """What the tasks themselves saw; the service has counted the rest."""
    calls = call.map(range(CALLS), unmapped(address))
    asked = ask.map(range(DOWN), unmapped(runner), unmapped(address))
    sent = send.map(range(ORDERS), unmapped(address))
    wait([*calls, *asked, *sent])
    began = time.monotonic()
    hanging = hang.submit(address)
    hanging.wait()
    return {
        "answers": [future.result() for future in calls],
        "archived": sum(future.result().startswith("archived") for future in asked),
        "orders": [future.result() for future in sent],
        "timed out": hanging.state.name == "TimedOut",
        "seconds": time.monotonic() - began,
    }


Cell = tuple[str, bool]
"""What was measured, and whether it is as promised."""


def tried(runner: str) -> dict[str, Cell]:
    """One line of the table. The flow runs twice in one batch: the second run finds the orders sent."""
    service = CountingService()
    with running(service) as address:
        twice = on_a_runner.with_options(task_runner=RUNNERS[runner]())
        first = twice(runner, address)
        reached, flaky = service.requests["/down"], Counter(service.requests)
        second = twice(runner, address)
    attempts = [flaky[f"/flaky/{number}"] for number in range(CALLS)]
    most = max(service.orders.values())
    return {
        "retries": (f"{len(first['answers'])} answers, {sum(attempts)} requests", attempts == [3] * CALLS),
        "fallback": (f"{first['archived']} of {DOWN} archived", first["archived"] == DOWN),
        "circuit": (f"{reached} of {DOWN} reached it", 3 <= reached <= DOWN / 2),
        "effect once": (
            f"{len(service.orders)} orders, at most {most} time each",
            most == 1 and first["orders"] == second["orders"] == list(range(ORDERS)),
        ),
        "timeout": (f"after {first['seconds']:.1f} s of {HANGS:.0f}", first["timed out"]),
    }


def main(names: list[str]) -> int:
    table, good = Table("runner", *COLUMNS), True
    for name in names:
        cells = tried(name)
        good = good and all(held for _, held in cells.values())
        shown = [text if held else f"[red]{text}: FAILED[/]" for text, held in cells.values()]
        table.add_row(name, *shown)
    Console(width=130).print(table)
    return 0 if good else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        sys.exit(main(sys.argv[2:]))
    sys.exit(run_apart("flows.runners", *(sys.argv[1:] or RUNNERS)))
