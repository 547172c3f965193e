"""What a call in a child process costs beside one in a thread: `python -m benchmarks.process_mode
[--calls 50] [--hangs 50] [--json]`.

The task does nothing. One flow run calls it by turns with `mode="thread"` and `mode="process"`, once with a
Prefect server and once without, where Prefect starts an ephemeral one. `first` is the first call of the
process, which waits for its child to import Prefect; the medians are of the calls after that. `hung` is the
median of calls that never return, with `timeout=1` and a spare child ready. `left` counts what is there
after all of those that was not there before: processes, zombies, open files, shared memory, temporary files.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

if __name__ == "__main__":
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")

from prefect import flow
from rich.console import Console
from rich.table import Table

from benchmarks.report import serving
from prefect_resilience import AttemptTimeout, Timeout, resilient_task

SLEEP = ["sleep", str(600 + os.getpid() / 1e7)]


@dataclass(frozen=True)
class Figures:
    """Milliseconds, or seconds where the name says so."""

    api: str
    thread: float
    process: float
    more: float
    first_seconds: float
    hung_seconds: float
    left: dict[str, int]


@resilient_task(timeout=Timeout(120, mode="thread"), retry=None)
def in_thread(x: int) -> int:
    return x


@resilient_task(timeout=Timeout(120, mode="process"), retry=None)
def in_process(x: int) -> int:
    return x


@resilient_task(timeout=Timeout(1, mode="process"), retry=None)
def hanging(x: int) -> None:
    subprocess.run(SLEEP, check=False)


@flow
def measured(api: str, calls: int, hangs: int) -> Figures:
    timed(in_thread, 0)
    first = timed(in_process, 0)
    wait_for_spare()
    timed(in_process, 0)
    pairs = [(timed(in_thread, x), timed(in_process, x)) for x in range(calls)]
    thread, process = (median(column) * 1000 for column in zip(*pairs, strict=True))
    hung = [hung_once()]
    before = traces()
    hung += [hung_once() for _ in range(hangs)]
    wait_for_spare()
    left = dict(traces() - before)
    return Figures(api, thread, process, process - thread, first, median(hung), left)


def timed(work: Callable[[int], Any], x: int) -> float:
    began = time.perf_counter()
    with suppress(AttemptTimeout):
        work(x)
    return time.perf_counter() - began


def hung_once() -> float:
    wait_for_spare()
    return timed(hanging, 0)


def wait_for_spare() -> None:
    # Not a global: what the flow refers to travels with each call.
    from prefect_resilience.guards.timeouts.children import POOL

    while POOL.ready < 1 or POOL.starting:
        time.sleep(0.05)


def traces() -> Counter[str]:
    """What this process and its children hold: processes, zombies, open files, shared memory, files."""
    rows = subprocess.run(["ps", "-eo", "pid=,ppid=,stat=,args="], capture_output=True, text=True, check=True)
    ours, found = {str(os.getpid())}, Counter[str]()
    for pid, parent, stat, args in (line.split(None, 3) for line in rows.stdout.splitlines()):
        if args.startswith("ps "):
            continue
        if parent in ours or args == " ".join(SLEEP):
            ours.add(pid)
            what = args.rpartition(" ")[0] if "timeouts.child" in args else args  # without a file's number
            found[f"zombie {what}" if stat.startswith("Z") else what] += 1
    found["open files"] = len(list(Path("/proc/self/fd").iterdir()))
    maps = [Path(f"/proc/{pid}/maps") for pid in ours]
    found["shared memory"] = sum(file.read_text().count("/dev/shm/") for file in maps if file.exists())
    found["temporary files"] = sum(1 for _ in Path(tempfile.gettempdir()).rglob("*"))
    return found


def measured_apart(api: str, url: str | None, calls: int, hangs: int) -> Figures:
    """In a process of its own, which finds this API or none, an empty Prefect home and no temporary files."""
    with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as temporary:
        environment = {**os.environ, "PREFECT_HOME": home, "TMPDIR": temporary}
        environment["PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"] = "300"  # 20 are too few when busy
        environment.pop("PREFECT_API_URL", None)
        if url is not None:
            environment["PREFECT_API_URL"] = url
        command = [sys.executable, "-m", "benchmarks.process_mode", "--api", api]
        command += ["--calls", str(calls), "--hangs", str(hangs)]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        return Figures(**json.loads(done.stdout))


def table_of(figures: Sequence[Figures]) -> Table:
    table = Table(title="one call inside a flow run", title_justify="left")
    for heading in ("API", "thread", "process", "more", "first", "hung, timeout=1", "left"):
        table.add_column(heading, justify="left" if heading == "API" else "right")
    for one in figures:
        medians = (f"{milliseconds:.1f} ms" for milliseconds in (one.thread, one.process, one.more))
        left = ", ".join(f"{number} {what}" for what, number in one.left.items()) or "nothing"
        table.add_row(one.api, *medians, f"{one.first_seconds:.1f} s", f"{one.hung_seconds:.2f} s", left)
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="What a call in a child process costs")
    parser.add_argument("--calls", type=int, default=50, help="calls of each kind")
    parser.add_argument("--hangs", type=int, default=50, help="calls that hang")
    parser.add_argument("--api", help="measure in this process, with the API that it finds, named so")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(arguments)
    if options.api:
        print(json.dumps(asdict(measured(options.api, options.calls, options.hangs))))
        return
    with tempfile.TemporaryDirectory() as home, serving(Path(home)) as (url, _):
        figures = [measured_apart("server", url, options.calls, options.hangs)]
    figures.append(measured_apart("ephemeral", None, options.calls, options.hangs))
    if options.json:
        print(json.dumps([asdict(one) for one in figures], indent=2))
    else:
        Console(width=110).print(table_of(figures))


if __name__ == "__main__":
    main()
