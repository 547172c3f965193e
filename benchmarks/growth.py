"""How cost grows with the work: `python -m benchmarks.growth [--most 1000000] [--write] [--json]`.

For each kind of work the processor's time is measured at growing sizes (the best of a few rounds), and a
power law is fitted to it: time = c * size ** exponent, over the last two decades of sizes. An exponent of 1
is linear. The exit code is 1 when any is over 1.1. `--write` writes docs/growth.md and its
picture. Prefect's own API is used by one of the series, in a process of its own; the store is a SQLite file.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import math
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import linear_regression
from time import process_time
from typing import Any

from prefect import flow
from prefect.testing.utilities import prefect_test_harness

from benchmarks.dead_letters import fill
from benchmarks.plan_scheduling import chain, ends_of, layered
from prefect_resilience import (
    Bulkhead,
    CircuitBreaker,
    dead_letters,
    get_circuits,
    open_store,
    resilient_task,
)
from prefect_resilience.durable.letters.claims import entry_key
from prefect_resilience.durable.letters.queue import DeadLetterQueue, new_id
from prefect_resilience.graphs.plans.reading.reading import read_plan
from prefect_resilience.graphs.plans.schedule import Ended, Schedule

ROOT = Path(__file__).parents[1]
TARGET = 1.1
"""The greatest exponent that is no worse than linear, as far as a clock can tell."""
DECADES = 100
"""The exponent is that of the sizes from the greatest down to so many times less."""
ROUNDS = 3


@dataclass
class Curve:
    """Seconds of the processor for each size; `exponent` of the power law through them."""

    work: str
    sizes: list[int]
    seconds: list[float]

    @property
    def exponent(self) -> float:
        points = [
            (math.log(size), math.log(max(took, 1e-9)))
            for size, took in zip(self.sizes, self.seconds, strict=True)
            if size * DECADES >= self.sizes[-1]
        ]
        return linear_regression([x for x, _ in points], [y for _, y in points]).slope


def measured(work: Callable[[], object]) -> float:
    """Seconds of the processor. What was made before is not looked through by the garbage collector."""
    gc.collect()
    gc.freeze()
    began = process_time()
    work()
    took = process_time() - began
    gc.unfreeze()
    return took


def curve(
    name: str,
    sizes: Sequence[int],
    prepared: Callable[[int], Callable[[], object]],
    *,
    once_beyond: int = 100_000,
) -> Curve:
    """`prepared` gives the work of a size, made before the clock starts."""
    seconds: list[float] = []
    for size in sizes:
        rounds = ROUNDS if size <= once_beyond else 1
        seconds.append(min(measured(prepared(size)) for _ in range(rounds)))
        print(f"{name}: {size:,} in {seconds[-1]:.4f} s", file=sys.stderr)
    return Curve(name, list(sizes), seconds)


def up_to(most: int, *, first: int = 10) -> list[int]:
    """10, 30, 100, 300 ... and `most`."""
    found, size = list[int](), first
    while size < most:
        found += [size, size * 3] if size * 3 < most else [size]
        size *= 10
    return [*found, most]


# -- what is measured


def calls(folder: Path, most: int) -> Curve:
    def prepared(size: int) -> Callable[[], object]:
        circuit, limit = CircuitBreaker("growth", store="memory://growth"), Bulkhead(4)
        return lambda: [limit.call(circuit.call, int) for _ in range(size)]

    return curve("guarded calls", up_to(most), prepared)


@resilient_task(circuit="growth")
def step(number: int) -> int:
    return number


@flow
def steps(size: int) -> int:
    return sum(step(number) for number in range(size))


def task_runs(folder: Path, most: int) -> Curve:
    for name in ("prefect", "prefect_resilience"):
        logging.getLogger(name).setLevel("CRITICAL")
    with prefect_test_harness(server_startup_timeout=120):
        steps(5)
        # the server takes ten times as long as what is measured here
        return curve("task runs in a flow", up_to(most), lambda size: lambda: steps(size), once_beyond=300)


def circuits(folder: Path, most: int) -> Curve:
    def prepared(size: int) -> Callable[[], object]:
        url = f"sqlite:///{tempfile.mkdtemp(dir=folder)}/circuits.db"

        def work() -> None:
            for number in range(size):
                CircuitBreaker(f"growth-{number}", store=url).force_open("measured")
            assert len(get_circuits(url)) == size

        return work

    return curve("circuits, opened and listed", up_to(most, first=1), prepared)


def plans_read(folder: Path, most: int) -> Curve:
    def prepared(size: int) -> Callable[[], object]:
        tasks = [{"id": f"n{i}", "type": "x", "depends_on": [f"n{i - 1}"] if i else []} for i in range(size)]
        plan = {"tasks": tasks, "bounds": {"nodes": size}}
        return lambda: read_plan(plan)

    return curve("plan nodes, read and checked", up_to(most), prepared)


def scheduled(shape: Callable[[int], list[Any]], name: str, most: int) -> Curve:
    def prepared(size: int) -> Callable[[], object]:
        nodes = shape(size)
        ends = ends_of(nodes, lambda _: True)
        return lambda: course(nodes, ends)

    return curve(name, up_to(most), prepared)


def course(nodes: list[Any], ends: dict[str, Ended]) -> None:
    schedule = Schedule(nodes)
    waiting = [*schedule.start().ready]
    for name in waiting:
        waiting.extend(schedule.settle(name, ends[name]).ready)
    assert schedule.over


def letters(folder: Path, most: int) -> list[Curve]:
    """One queue that is filled on and on; what is done with it at each size."""
    path = folder / "letters.db"
    queue = DeadLetterQueue(open_store(f"sqlite:///{path}"))
    list_newest = partial(dead_letters.list, limit=20, store=queue.store)
    fill(queue, 100)
    sizes = [size for size in (100, 1_000, 10_000, 100_000, 1_000_000) if size <= most]
    walks, newest, burials = list[float](), list[float](), list[float]()
    have = 100
    for size in sizes:
        add(queue, path, have, size)
        have = size + 100
        walks.append(measured(lambda: sum(1 for _ in queue.letters())))
        newest.append(min(measured(list_newest) for _ in range(ROUNDS)))
        burials.append(measured(lambda: fill(queue, 100)))
        print(f"letters: {size:,} walked in {walks[-1]:.3f} s", file=sys.stderr)
    return [
        Curve("dead letters, all read", sizes, walks),
        Curve("dead letters, the newest 20", sizes, newest),
        Curve("dead letters, a hundred added", sizes, burials),
    ]


def add(queue: DeadLetterQueue, path: Path, have: int, size: int) -> None:
    """Letters like the last one, up to so many, in one transaction of their own."""
    like = next(queue.letters())
    stored = queue.store.load(entry_key(like.id))
    assert stored is not None
    text = json.dumps(stored.value)
    now = datetime.now(UTC).timestamp()
    ids = (new_id(now - 1 - number, number) for number in range(have, size))
    rows = ((entry_key(one), 1, text.replace(like.id, one)) for one in ids)
    with sqlite3.connect(path, timeout=60) as connection:
        connection.executemany(
            "INSERT INTO prefect_resilience_documents (key, version, value) VALUES (?, ?, ?)", rows
        )
    # One transaction of a million rows leaves a log that no program of ours would have.
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


def measure(most: int) -> list[Curve]:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        return [
            calls(folder, min(most, 10_000)),
            task_runs(folder, min(most, 10_000)),
            circuits(folder, min(most, 10_000)),
            plans_read(folder, min(most, 10_000)),
            scheduled(chain, "plan nodes, a chain scheduled", min(most, 100_000)),
            scheduled(layered, "plan nodes, layers scheduled", min(most, 100_000)),
            *letters(folder, most),
        ]


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--most", type=int, default=1_000_000, help="the greatest size of all")
    words.add_argument("--write", action="store_true", help="write docs/growth.md and docs/growth.png")
    words.add_argument("--json", action="store_true")
    asked = words.parse_args()
    curves = measure(asked.most)
    if asked.write:
        from benchmarks.growth_page import write

        write(curves, ROOT / "docs", TARGET)
    if asked.json:
        print(json.dumps([{**asdict(one), "exponent": one.exponent} for one in curves], indent=2))
    else:
        for one in curves:
            print(
                f"{one.work:<32}{one.sizes[-1]:>10,}{one.seconds[-1]:>10.3f} s   exponent {one.exponent:.2f}"
            )
    raise SystemExit(1 if any(one.exponent > TARGET for one in curves) else 0)


if __name__ == "__main__":
    main()
