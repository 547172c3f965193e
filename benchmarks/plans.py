"""What a plan costs beside the same tasks in a hand-written flow: `python -m benchmarks.plans`.

The plan has layers of fifty nodes, each of which waits for two nodes of the layer before and takes its
input from them. By hand, the same tasks are submitted with the same inputs and `wait_for`, to a task runner
that has as many workers as a plan uses: `--workers 0` gives it Prefect's default, a thread for every task,
which costs it twice as much. The runs alternate, each begins when the Prefect server has nothing left to do,
and the ratio is that of the medians.

Three measures: the seconds inside the flow run (without Prefect's own calls before and after it), those
of the whole call, and the seconds of processor time in this process. On a busy machine the last is the one
to look at; `chrt -f 10` in front keeps others from interfering.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any
from uuid import UUID

if __name__ == "__main__":
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")

from prefect import Task, flow, task
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.runtime import flow_run
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.task_runners import ThreadPoolTaskRunner
from prefect.testing.utilities import prefect_test_harness
from rich.console import Console
from rich.table import Table

from benchmarks import plan_scheduling
from prefect_resilience import resilient_task
from prefect_resilience.graphs.plans.edge.runner import MOST_RUNNING
from prefect_resilience.graphs.plans.edge.start import carry_out
from prefect_resilience.graphs.plans.model import Plan

LAYER = 50
GOAL = 1.05


def work(number: int, before: Any = None) -> dict[str, Any]:
    """What every node does: next to nothing."""
    return {"number": number, "text": f"node {number} after {before}"}


TASKS: dict[str, Any] = {"function": work, "task": task(work), "resilient": resilient_task(retry=None)(work)}


def sources(number: int) -> list[int]:
    """The two nodes of the layer before that a node waits for."""
    if number < LAYER:
        return []
    start = (number // LAYER - 1) * LAYER
    return [start + number % LAYER, start + (number + 1) % LAYER]


def layered(nodes: int) -> Plan:
    tasks: list[dict[str, Any]] = []
    for number in range(nodes):
        before = [f"n{source}" for source in sources(number)]
        node: dict[str, Any] = {"id": f"n{number}", "type": "work", "input": {"number": number}}
        if before:
            node |= {"depends_on": before}
            node["input"]["before"] = f"{{{{{before[0]}.output.number}}}}"
        tasks.append(node)
    return Plan(name="benchmark", tasks=tuple(tasks))


@flow
def by_hand(step: Task[..., Any], nodes: int) -> tuple[float, str]:
    began = time.perf_counter()
    futures: list[Any] = []
    for number in range(nodes):
        before = [futures[source] for source in sources(number)]
        taken = before[0] if before else None
        futures.append(step.submit(number=number, before=taken, wait_for=before))
    for future in futures:
        future.result()
    return time.perf_counter() - began, str(flow_run.id)


@flow(validate_parameters=False)
def planned(plan: Plan, actions: Any) -> tuple[float, str]:
    began = time.perf_counter()
    result = carry_out(plan, None, actions)
    assert result.succeeded
    return time.perf_counter() - began, str(flow_run.id)


@dataclass
class Cost:
    """Seconds of one run: inside the flow run, of the whole call, of processor time."""

    inside: float
    whole: float
    processor: float


def cost(run: Callable[[], tuple[float, str]], nodes: int) -> Cost:
    began, used = time.perf_counter(), time.process_time()
    inside, run_id = run()
    spent = Cost(inside, time.perf_counter() - began, time.process_time() - used)
    wait_for_server(UUID(run_id), nodes)
    return spent


def wait_for_server(run_id: UUID, nodes: int) -> None:
    """Until the server has recorded every task run, so that the next run does not pay for this one."""
    chosen = FlowRunFilter(id=FlowRunFilterId(any_=[run_id])).model_dump(mode="json")
    with get_client(sync_client=True) as client:
        done = {"flow_runs": chosen, "task_runs": {"state": {"type": {"any_": ["COMPLETED"]}}}}
        while client.request("POST", "/task_runs/count", json=done).json() < nodes:
            time.sleep(0.2)


@dataclass
class Comparison:
    """Medians by hand and planned, and how many times the first the second is."""

    tasks: str
    nodes: int
    measure: str
    by_hand: float
    planned: float
    ratio: float


def compare(kind: str, nodes: int, rounds: int, workers: int) -> list[Comparison]:
    step, plan = TASKS[kind], layered(nodes)
    beside = TASKS["resilient"] if kind == "function" else step
    runner: Any = ThreadPoolTaskRunner(max_workers=workers or None)
    hand_written = by_hand.with_options(task_runner=runner)
    hand: list[Cost] = []
    plans: list[Cost] = []
    for number in range(rounds + 1):
        order = [(hand, lambda: hand_written(beside, nodes)), (plans, lambda: planned(plan, {"work": step}))]
        for costs, run in order if number % 2 else reversed(order):
            costs.append(cost(run, nodes))
    made: list[Comparison] = []
    for measure in ("inside", "whole", "processor"):
        # The first round warms up.
        a, b = (median(getattr(one, measure) for one in costs[1:]) for costs in (hand, plans))
        made.append(Comparison(kind, nodes, measure, a, b, b / a))
    return made


@contextmanager
def prefect_server() -> Iterator[None]:
    # A flow run waits for its heartbeat's thread at the end.
    quiet = temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None})
    logging.getLogger("prefect").setLevel(logging.CRITICAL)
    with quiet, prefect_test_harness(server_startup_timeout=120):
        yield


def table_of(results: Sequence[Comparison]) -> Table:
    table = Table(title="a plan beside a hand-written flow, in seconds", title_justify="left")
    for heading in ("tasks", "nodes", "measure", "by hand", "plan", "ratio"):
        table.add_column(heading, justify="left" if heading in ("tasks", "measure") else "right")
    for one in results:
        figures = (f"{one.nodes:,}", one.measure, f"{one.by_hand:.2f}", f"{one.planned:.2f}")
        table.add_row(one.tasks, *figures, f"{one.ratio:.3f}")
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="What a plan costs beside a hand-written flow")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=MOST_RUNNING, help="threads of the hand-written flow")
    parser.add_argument("--scheduling", action="store_true", help="the schedule alone, of 100,000 nodes")
    parser.add_argument("--tasks", choices=[*TASKS, "all"], default="all")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(arguments)
    if options.nodes < 1 or options.rounds < 1:
        parser.error("--nodes and --rounds must be at least 1")
    if options.scheduling:
        rows = plan_scheduling.measure(3, [100_000])
        print(json.dumps({"microseconds_a_node": rows}, indent=2))
        return
    kinds = list(TASKS) if options.tasks == "all" else [options.tasks]
    with prefect_server():
        results = [
            one for kind in kinds for one in compare(kind, options.nodes, options.rounds, options.workers)
        ]
    if options.json:
        print(json.dumps([asdict(result) for result in results], indent=2))
        return
    console = Console(width=None if sys.stdout.isatty() else 110)
    console.print(table_of(results))
    console.print(f"the goal: a ratio of at most {GOAL}")


if __name__ == "__main__":
    main()
