"""What it costs to decide which node of a plan runs next, the running left out.

    python -m benchmarks.plan_scheduling [--rounds 5] [--most 100000] [--json]

For every shape and size a schedule is made, started, and told of the end of each node that it gave out. The
median round counts, in microseconds a node. The plan's models are made before the clock starts. The smallest
and the largest size side by side show whether the time grows with the plan alone.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from time import perf_counter_ns
from typing import Any

from rich.console import Console
from rich.table import Table

from prefect_resilience import ErrorCategory, ErrorContext, ErrorInfo
from prefect_resilience.graphs.plans.model import Node
from prefect_resilience.graphs.plans.schedule import Ended, Schedule

TARGET = 20.0
"""Microseconds a node."""

SIZES = (1_000, 10_000, 100_000)
ERROR = ErrorContext.from_info(ErrorInfo.of(ErrorCategory.UNAVAILABLE, "503"), timestamp=datetime.now(UTC))


def node(number: int, *after: int, **fields: Any) -> Node:
    return Node(id=f"n{number}", type="step", depends_on=tuple(f"n{i}" for i in after), **fields)


def chain(size: int) -> list[Node]:
    return [node(i, *([i - 1] if i else [])) for i in range(size)]


def wide(size: int) -> list[Node]:
    """One that all others follow."""
    return [node(0), *(node(i, 0) for i in range(1, size))]


def join(size: int) -> list[Node]:
    """One that follows all others."""
    return [*(node(i) for i in range(size - 1)), node(size - 1, *range(size - 1))]


def layered(size: int) -> list[Node]:
    """Layers of a hundred, each node with five dependencies in the layer before."""
    return [
        node(i, *({i - i % 100 - 100 + (i * 7 + k * 13) % 100 for k in range(5)} if i >= 100 else ()))
        for i in range(size)
    ]


def fallbacks(size: int) -> list[Node]:
    """Pairs: each node has a handler, and the next one follows both."""
    made: list[Node] = []
    for i in range(0, size - 1, 2):
        made.append(node(i, *((i - 2, i - 1) if i else ()), on_failure=(f"n{i + 1}",)))
        made.append(node(i + 1, handles_error=f"n{i}"))
    return made


SHAPES: dict[str, tuple[Callable[[int], list[Node]], Callable[[int], bool]]] = {
    "chain": (chain, lambda i: True),
    "wide": (wide, lambda i: True),
    "join": (join, lambda i: True),
    "layers of 100, 5 dependencies": (layered, lambda i: True),
    "chain, all but the first skipped": (chain, lambda i: i > 0),
    "wide, all but the first skipped": (wide, lambda i: i > 0),
    "layers, all but the first skipped": (layered, lambda i: i >= 100),
    "a handler for every node, none fails": (fallbacks, lambda i: True),
    "a handler for every node, all needed": (fallbacks, lambda i: i % 2 == 1),
}
"""How each plan is made, and which of its nodes succeed."""


def play(nodes: list[Node], ends: dict[str, Ended]) -> int:
    """Nanoseconds for the whole course of a plan, the running of its nodes left out."""
    gc.collect()
    began = perf_counter_ns()
    schedule = Schedule(nodes)
    waiting = [*schedule.start().ready]
    for name in waiting:
        waiting.extend(schedule.settle(name, ends[name]).ready)
    took = perf_counter_ns() - began
    assert schedule.over
    return took


def ends_of(nodes: list[Node], succeeds: Callable[[int], bool]) -> dict[str, Ended]:
    return {
        one.id: Ended(True) if succeeds(int(one.id[1:])) else Ended(False, ERROR, one.on_failure)
        for one in nodes
    }


def measure(rounds: int, sizes: list[int]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for shape, (make, succeeds) in SHAPES.items():
        row: dict[str, Any] = {"shape": shape}
        for size in sizes:
            nodes = make(size)
            ends = ends_of(nodes, succeeds)
            times = [play(nodes, ends) for _ in range(rounds)]
            row[f"{size}"] = round(statistics.median(times) / len(nodes) / 1_000, 2)
        rows.append(row)
    return rows


def main() -> int:
    """Print the table; exit code 1 when any shape of any size takes longer than the target."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--most", type=int, default=SIZES[-1], help="leave out plans with more nodes")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    sizes = [size for size in SIZES if size <= options.most]
    rows = measure(options.rounds, sizes)
    worst = max(row[str(size)] for row in rows for size in sizes)
    if options.json:
        print(json.dumps({"target": TARGET, "worst": worst, "microseconds_a_node": rows}, indent=2))
    else:
        table = Table("plan", *(f"{size:,} nodes" for size in sizes), title="microseconds a node")
        for row in rows:
            table.add_row(row["shape"], *(f"{row[str(size)]:.2f}" for size in sizes))
        Console().print(table)
        Console().print(f"worst {worst:.2f}, target {TARGET:g}")
    return int(worst > TARGET)


if __name__ == "__main__":
    sys.exit(main())
