"""How long a flow's summary holds up its end: `python -m benchmarks.summary_end [--runs 10000] [--rounds 3]`.

The same flow of that many task runs, one in a hundred of which is retried, runs as `@flow` and as
`@resilient_flow` in turn, each in a process of its own on a real Prefect server of its own. What is measured
is the time from the last statement of its function to the return of its call, and from there to the end of
the process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.report import serving

KINDS = ("flow", "resilient_flow")


def run_flow(kind: str, runs: int) -> None:
    """In the child: print the seconds of the end, and the moment of the return."""
    from prefect import flow

    from prefect_resilience import Backoff, Retry, resilient_flow, resilient_task

    @resilient_task(retry=Retry(attempts=2, backoff=Backoff.none()))
    def step(number: int) -> int:
        if number % 100 == 0 and number not in seen:
            seen.add(number)
            raise ConnectionError("503 Service Unavailable")
        return number

    def work() -> int:
        total = sum(step(number) for number in range(runs))
        last.append(time.time())
        return total

    seen: set[int] = set()
    last: list[float] = []
    made: Any = (flow if kind == "flow" else resilient_flow)(name=f"end of a {kind}")(work)
    made()
    returned = time.time()
    print(json.dumps({"end": returned - last[0], "returned": returned}), flush=True)


def measured(kind: str, runs: int) -> tuple[float, float]:
    """Seconds that the end of the flow took, and that the end of its process took afterwards."""
    # A server of its own: for minutes, it takes in the task runs of a flow that has ended.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, serving(Path(folder)) as (api, _):
        environment = os.environ | {
            "PREFECT_HOME": folder,
            "PREFECT_API_URL": api,
            "PREFECT_LOGGING_LEVEL": "WARNING",
            "PREFECT_RESILIENCE_STORE_URL": f"sqlite:///{folder}/store.db",
        }
        words = [sys.executable, "-m", "benchmarks.summary_end", "--child", kind, "--runs", str(runs)]
        done = subprocess.run(words, env=environment, capture_output=True, text=True)
        over = time.time()
    if done.returncode:
        raise SystemExit(f"the {kind} ended with {done.returncode}: {done.stderr[-500:]}")
    told = json.loads(done.stdout.splitlines()[-1])
    return told["end"], over - told["returned"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.summary_end", description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000, help="task runs of the flow")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", choices=KINDS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        run_flow(given.child, given.runs)
        return
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    for number in range(given.rounds):
        for kind in KINDS if number % 2 == 0 else KINDS[::-1]:
            found[kind].append(measured(kind, given.runs))
    title = f"the end of a flow of {given.runs:,} task runs, median of {given.rounds}, in seconds"
    table = Table(title=title)
    for column in ("", "from the last statement to the return", "from there to the end of the process"):
        table.add_column(column)
    for kind, times in found.items():
        table.add_row(f"@{kind}", *(f"{median(one):.2f}" for one in zip(*times, strict=True)))
    Console().print(table)


if __name__ == "__main__":
    main()
