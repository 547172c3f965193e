"""What a guarded task costs beside a plain one, by counted instructions: `python -m benchmarks.instructions
[--calls 60] [--styles sync async submit] [--repeat 3] [--json]`.

A clock on a busy machine is off by more than the difference that is looked for; a count of instructions is
not. It needs `perf` with hardware counters, which a virtual machine often lacks, or `valgrind`.

A flow run calls tasks that do nothing, on a local Prefect server. Counted are all instructions in user space
of the flow's process: its main thread, Prefect's threads for events and logs, and those of this package. Not
counted are the server and the kernel. Four processes make the same calls, three of them so many more of one
kind: the difference is what these calls cost. What was imported and made before the calls is kept from the
garbage collector, because one full collection more in one of the processes would count as much as two calls.

bare: `@resilient_task`. guarded: a retry policy, a circuit in SQLite, a timeout, a bulkhead and a rate limit
of the process, and a fallback; nothing fails. What a circuit does twice a second at most, merging its counts
into its store, is counted with perf only: under valgrind a call takes so long that each would have a merge.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

STYLES = ("sync", "async", "submit")
KINDS = ("plain", "bare", "guarded")
BASE = "base"
WARM_UP = 10
"""Calls of each kind in every process, on top of which the counted ones are made."""
SLOWER = {"perf": 1, "valgrind": 1000}
"""By how much the guards' times are stretched while everything is slower."""
MISSING = (
    "Instructions cannot be counted here: `perf stat -e instructions:u` finds no hardware counter, "
    "and valgrind is not installed."
)


@dataclass(frozen=True)
class Cost:
    """Instructions of one call, and how many times those of a plain call that is."""

    style: str
    kind: str
    instructions: int
    ratio: float


# -- the process that is counted


def run_calls(style: str, more: str, calls: int, slower: int) -> None:
    """One flow run with a few calls of each kind, and so many more of one of them."""
    os.environ["PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"] = "CRITICAL"
    from prefect import flow

    tasks = tasks_of(slower, is_async=style == "async")
    few = list(product(KINDS, range(WARM_UP)))
    many = [(more, x) for x in range(calls)] if more != BASE else []

    @flow
    def in_turn() -> None:
        for kind, x in few:
            tasks[kind].submit(x).result() if style == "submit" else tasks[kind](x)
        gc.collect()
        gc.freeze()
        for kind, x in many:
            tasks[kind].submit(x).result() if style == "submit" else tasks[kind](x)

    @flow
    async def in_turn_async() -> None:
        for kind, x in few:
            await tasks[kind](x)
        gc.collect()
        gc.freeze()
        for kind, x in many:
            await tasks[kind](x)

    if style == "async":
        asyncio.run(in_turn_async())
    else:
        in_turn()


def tasks_of(slower: int, is_async: bool) -> dict[str, Any]:
    from prefect import task

    from prefect_resilience import (
        Backoff,
        Bulkhead,
        CircuitBreaker,
        Fallback,
        RateLimit,
        Retry,
        resilient_task,
    )

    def same(x: int) -> int:
        return x

    async def same_async(x: int) -> int:
        return x

    fn = same_async if is_async else same
    guards: dict[str, Any] = {
        "retry": Retry(attempts=3, backoff=Backoff.exponential(initial=0.5)),
        "circuit": CircuitBreaker("benchmark-instructions", sync_interval=0.5 * slower),
        "limits": [Bulkhead(10), RateLimit(1_000_000, per=1)],
        "timeout": 30 * slower,
        "fallback": [Fallback.value(0)],
    }
    return {
        "plain": task(name="plain")(fn),
        "bare": resilient_task(name="bare")(fn),
        "guarded": resilient_task(name="guarded", **guards)(fn),
    }


# -- counting


def counter() -> str:
    """The tool that counts here. Raises SystemExit, in one sentence, where there is none."""
    if shutil.which("perf") is not None:
        tried = subprocess.run([*_PERF, "true"], capture_output=True, text=True, check=False)
        if tried.returncode == 0 and _count_in(tried.stderr) is not None:
            return "perf"
    if shutil.which("valgrind") is not None:
        return "valgrind"
    raise SystemExit(MISSING)


_PERF = ("perf", "stat", "-x,", "-e", "instructions:u")
# Cachegrind without caches: it counts, and nothing else.
_VALGRIND = ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")


def counted(tool: str, style: str, calls: int, api: str, more: str) -> int:
    """The instructions of one process."""
    child = json.dumps([style, more, calls, SLOWER[tool]])
    command = [
        *(_PERF if tool == "perf" else _VALGRIND),
        sys.executable,
        "-m",
        __spec__.name,
        "--child",
        child,
    ]
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "PREFECT_API_URL": api, "PREFECT_HOME": home, "PYTHONHASHSEED": "0"}
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    count = _count_in(ended.stderr)
    if ended.returncode or count is None:
        raise SystemExit(f"the counted process failed:\n{ended.stdout}{ended.stderr}")
    return count


def _count_in(said: str) -> int | None:
    found = re.search(r"^(\d+),|I\s+refs:\s+([\d,]+)", said, re.MULTILINE)
    return None if found is None else int((found[1] or found[2]).replace(",", ""))


def costs_of(tool: str, style: str, calls: int, repeat: int, api: str) -> list[Cost]:
    """The least of the repetitions: whatever else a process does only adds to its count."""
    processes = [more for more in (BASE, *KINDS) for _ in range(repeat)]
    with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
        counts = list(pool.map(partial(counted, tool, style, calls, api), processes))
    least = {more: min(counts[at * repeat : (at + 1) * repeat]) for at, more in enumerate((BASE, *KINDS))}
    per_call = {kind: (least[kind] - least[BASE]) / calls for kind in KINDS}
    return [Cost(style, kind, round(cost), cost / per_call["plain"]) for kind, cost in per_call.items()]


def show(tool: str, costs: Sequence[Cost]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"instructions of one call, counted by {tool}", title_justify="left")
    for heading in ("calls", "task", "instructions", "ratio"):
        table.add_column(heading, justify="left" if heading in ("calls", "task") else "right")
    for cost in costs:
        table.add_row(cost.style, cost.kind, f"{cost.instructions:,}", f"{cost.ratio:.4f}")
    Console(width=None if sys.stdout.isatty() else 110).print(table)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="What a guarded task costs, by counted instructions")
    parser.add_argument("--calls", type=int, default=60, help="counted calls of each kind")
    parser.add_argument("--styles", nargs="+", choices=STYLES, default=["sync", "async"])
    parser.add_argument("--repeat", type=int, default=3, help="processes of each kind; the least one counts")
    parser.add_argument("--api", help="the address of a Prefect API, in place of a server of its own")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        run_calls(*json.loads(options.child))
        return
    tool = counter()
    from benchmarks.report import serving

    with ExitStack() as stack:
        api = (
            options.api
            or stack.enter_context(serving(Path(stack.enter_context(tempfile.TemporaryDirectory()))))[0]
        )
        costs = [
            cost
            for style in options.styles
            for cost in costs_of(tool, style, options.calls, options.repeat, api)
        ]
    if options.json:
        print(json.dumps([asdict(cost) for cost in costs], indent=2))
    else:
        show(tool, costs)


if __name__ == "__main__":
    main()
