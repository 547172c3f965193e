"""What it takes to read and advise a week: `python -m benchmarks.tuning_read [--runs 100000] [--json]`

A real Prefect server is filled as in `benchmarks.report`, with a week of runs of resilient tasks: one in ten
is retried, one in fifty fails, one in a hundred is answered by a fallback. Then a process of its own reads
the record, and advises. `right`: every run with failures was read with its attempts, and the weights of the
others add up to what was filled in, within 3 %.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID, uuid4

from rich.console import Console
from rich.table import Table

from benchmarks import report
from benchmarks.report import TASKS, Day, Rows

WEEK = 7 * 86_400.0
ATTEMPT = 0.4
PROGRAM = """
import json, resource, sys, time
began = time.monotonic()
from prefect_resilience.operations.tuning.service_calls import is_plain
from prefect_resilience.operations.tuning.record import read_evidence
period = read_evidence()
runs = [run for task in period.tasks for run in task.runs]
seconds = time.monotonic() - began
def megabytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
to_read, began = megabytes(), time.monotonic()
from prefect_resilience.operations.tuning.advice import advise
advise(period)
print(json.dumps({
    "seconds": seconds,
    "megabytes": to_read,
    "advised": time.monotonic() - began,
    "megabytes_of_both": megabytes(),
    "tasks": sum(task.options is not None for task in period.tasks),
    "troubled": sum(not is_plain(run) for run in runs),
    "attempts": sum(len(run.attempts) for run in runs if not is_plain(run)),
    "plain": sum(run.weight for run in runs if is_plain(run)),
    "read": period.runs,
    "unknown": period.unknown,
}))
"""


@dataclass(frozen=True)
class ReadFigures:
    """Seconds and peak megabytes of the reading; seconds of the advice on it, and the peak of both."""

    runs: int
    events: int
    seconds: float
    megabytes: float
    advised: float
    megabytes_of_both: float
    read: int
    right: bool


@dataclass
class Week(Day):
    """The rows of a week of resilient tasks, and what must be read of it."""

    seconds: float = WEEK

    def _task_run_events(self, made: Rows, run: dict[str, Any], flow_run: UUID, attempts: int) -> None:
        ended: datetime = run["end_time"]
        task = run["task_key"].rpartition("-")[0]
        plain = attempts == 1 and run["state_name"] == "Completed"
        self.expected["plain" if plain else "troubled"] += 1
        if plain:
            return
        name = {"Completed": "run.recovered", "Fallback": "fallback.used"}.get(
            run["state_name"], "run.failed"
        )
        began = ended.timestamp() - 2.0
        failures = attempts - (name == "run.recovered")
        self.expected["their attempts"] += attempts
        told = [self._attempt(began + n, last=n == attempts - 1) for n in range(failures)]
        payload: dict[str, Any] = {
            "task_run_id": str(run["id"]),
            "message": "the service is busy " * 10,
            "after": 2.0,
            "record": {"attempts": told, "circuit": "llm:primary"},
        }
        subject = {"prefect.resource.id": f"prefect-resilience.task.{task}", "prefect.resource.name": task}
        self._event(made, f"prefect-resilience.{name}", ended, subject, flow_run, payload)
        for one in told if failures == attempts else told[:-1]:
            self._event(made, "prefect-resilience.retry.scheduled", ended, subject, flow_run, one)

    def _attempt(self, at: float, *, last: bool) -> dict[str, Any]:
        known = {"at": at, "seconds": ATTEMPT, "category": "unavailable", "code": "503"}
        return known if last else {**known, "delay": 1.0 - ATTEMPT}

    def options(self) -> Rows:
        """The events with which processes told the options of their tasks: each task, ten times a day."""
        made: Rows = {"events": [], "event_resources": []}
        for number in range(TASKS * 70):
            task = f"task-{number % TASKS}"
            at = self.end - timedelta(seconds=60 + self.seconds * number / (TASKS * 70))
            options = {"retry": {"attempts": 3}, "circuit": {"name": "llm:primary", "open_for": 30.0}}
            payload = {"task": task, "task_key": f"{task}-1a2b3c4d", "block": None, "options": options}
            subject = {
                "prefect.resource.id": f"prefect-resilience.options.{task}",
                "prefect.resource.name": task,
            }
            self._event(made, "prefect-resilience.task.configured", at, subject, uuid4(), payload)
        return made


def fill(home: Path, runs: int) -> Week:
    week = Week(datetime.now(UTC), Random(0), Counter(), uuid4())
    report.fill(home, runs, week, week.options())
    return week


def measure(home: Path, runs: int, events: int, expected: Counter[str]) -> ReadFigures:
    with report.serving(home) as (api, _):
        environment = {**os.environ, "PREFECT_API_URL": api, "PREFECT_HOME": str(home / "client")}
        said = json.loads(
            subprocess.run(
                [sys.executable, "-c", PROGRAM], env=environment, check=True, stdout=subprocess.PIPE
            ).stdout
        )
    print(said, file=sys.stderr)
    counted = (said["troubled"], said["attempts"], said["tasks"])
    right = counted == (expected["troubled"], expected["their attempts"], TASKS)
    right = right and abs(said["plain"] / expected["plain"] - 1) < 0.03
    names = ("seconds", "megabytes", "advised", "megabytes_of_both", "read")
    return ReadFigures(runs, events, *(said[name] for name in names), right)


def table_of(figures: ReadFigures) -> Table:
    table = Table(title="the evidence of a week", title_justify="left")
    for heading in ("task runs", "events", "read in", "peak", "advised in", "peak of both"):
        table.add_column(heading, justify="right")
    for heading in ("runs read", "numbers right"):
        table.add_column(heading, justify="right")
    table.add_row(
        f"{figures.runs:,}",
        f"{figures.events:,}",
        f"{figures.seconds:.1f} s",
        f"{figures.megabytes:.0f} MB",
        f"{figures.advised:.1f} s",
        f"{figures.megabytes_of_both:.0f} MB",
        f"{figures.read:,}",
        "yes" if figures.right else "NO",
    )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description="How long reading the evidence of a week takes")
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--fill", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fill:
        week = fill(options.fill, options.runs)
        print(json.dumps({"end": week.end.isoformat(), "events": week.events, "expected": week.expected}))
        return
    with tempfile.TemporaryDirectory() as home:
        _, events, expected = report.filled(Path(home), options.runs, "benchmarks.tuning_read")
        figures = measure(Path(home), options.runs, events, expected)
    if options.json:
        print(json.dumps(asdict(figures), indent=2))
    else:
        Console(width=None if sys.stdout.isatty() else 110).print(table_of(figures))
    sys.exit(0 if figures.right else 1)


if __name__ == "__main__":
    main()
