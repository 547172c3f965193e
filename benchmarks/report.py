"""How long a day's report takes: `python -m benchmarks.report [--runs 100000] [--json]`.

A real Prefect server on a SQLite database of its own is filled with a day of task runs as the engine leaves
them: each with its flow run, its states and its events (Pending, Running, each retry, the end), and with the
events of failed attempts. One run in ten is retried, one in fifty fails, one in a hundred is replaced. Then
`prefect-resilience report --json` runs as a process of its own, whose peak of memory the operating system
says; `server` is the processor's time of the server alone. Filling takes longer than the report by far.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
from rich.console import Console
from rich.table import Table

DAY = 86_400.0
TASKS = 20
RUNS_PER_FLOW = 500
CHUNK = 2_000
Rows = dict[str, list[dict[str, Any]]]
CODES = ("429", "503", "TIMEOUT", "ConnectError")


@dataclass(frozen=True)
class Figures:
    """Seconds and megabytes; `right`: whether the numbers are those that were filled in."""

    runs: int
    events: int
    seconds: float
    server: float
    megabytes: float
    right: bool


@dataclass
class Day:
    """The rows of one day, and what a report must say of it."""

    end: datetime
    chance: random.Random
    expected: Counter[str]
    flow_id: UUID
    events: int = 0
    seconds: float = DAY

    def rows(self, runs: int) -> Iterator[Rows]:
        """Rows by table, CHUNK runs at a time."""
        flow_run: UUID = uuid4()
        for first in range(0, runs, CHUNK):
            made: Rows = {
                name: [] for name in ("flow_run", "task_run", "task_run_state", "events", "event_resources")
            }
            for number in range(first, min(first + CHUNK, runs)):
                if number % RUNS_PER_FLOW == 0:
                    flow_run = uuid4()
                    made["flow_run"].append(self._flow_run(flow_run, number))
                self._task_run(made, flow_run, number)
            yield made

    def _flow_run(self, run_id: UUID, number: int) -> dict[str, Any]:
        named = {"id": run_id, "flow_id": self.flow_id, "name": f"nightly-{number}"}
        return {**named, "state_type": "COMPLETED", "state_name": "Completed", "end_time": self.end}

    def _task_run(self, made: Rows, flow_run: UUID, number: int) -> None:
        run_id, state_id, task = uuid4(), uuid4(), f"task-{number % TASKS}"
        # Those of the last minute would be in the report or not by the time that the filling took.
        ended = self.end - timedelta(seconds=60 + self.chance.random() * (self.seconds - 600))
        attempts = 2 if self.chance.random() < 0.1 else 1
        kind, name = self._ending()
        key = str(uuid4())
        run = {
            "id": run_id,
            "name": f"{task}-{key[:3]}",
            "task_key": f"{task}-1a2b3c4d",
            "dynamic_key": key,
            "flow_run_id": flow_run,
            "run_count": attempts,
            "state_id": state_id,
            "state_type": kind,
            "state_name": name,
            "state_timestamp": ended,
            "start_time": ended - timedelta(seconds=2),
            "expected_start_time": ended - timedelta(seconds=3),
            "end_time": ended,
            "total_run_time": timedelta(seconds=1),
        }
        made["task_run"].append(run)
        state = {"id": state_id, "task_run_id": run_id, "type": kind, "name": name, "timestamp": ended}
        made["task_run_state"].append(state)
        self._events(made, run, flow_run, attempts)
        self.expected.update(runs=1, attempts=attempts, retried=attempts - 1)
        self.expected["failed"] += kind == "FAILED"
        self.expected["fallbacks"] += name == "Fallback"
        self.expected["recovered"] += name == "Completed" and attempts > 1

    def _ending(self) -> tuple[str, str]:
        chance = self.chance.random()
        if chance < 0.02:
            return "FAILED", "Failed"
        return "COMPLETED", "Fallback" if chance < 0.03 else "Completed"

    def _events(self, made: Rows, run: dict[str, Any], flow_run: UUID, attempts: int) -> None:
        ended: datetime = run["end_time"]
        names = ["Pending", "Running", *(["AwaitingRetry", "Retrying"] if attempts > 1 else [])]
        for number, name in enumerate([*names, run["state_name"]]):
            at = ended - timedelta(milliseconds=100 * (len(names) - number))
            count = attempts if number >= len(names) - (attempts - 1) else min(1, number)
            subject = {
                "prefect.resource.id": f"prefect.task-run.{run['id']}",
                "prefect.resource.name": run["name"],
                "prefect.run-count": str(count),
                "prefect.state-name": name,
            }
            self._event(made, f"prefect.task-run.{name}", at, subject, flow_run)
        self._task_run_events(made, run, flow_run, attempts)

    def _task_run_events(self, made: Rows, run: dict[str, Any], flow_run: UUID, attempts: int) -> None:
        """The events of this package."""
        ended, failures = run["end_time"], attempts - 1 + (run["state_name"] != "Completed")
        for _ in range(failures):
            code = self.chance.choice(CODES)
            self.expected[f"code {code}"] += 1
            subject = {
                "prefect.resource.id": f"prefect-resilience.error.unavailable.{code}",
                "prefect.resource.name": code,
            }
            self._event(made, "prefect-resilience.attempt.failed", ended, subject, flow_run)

    def _event(
        self,
        made: Rows,
        name: str,
        at: datetime,
        subject: dict[str, str],
        flow_run: UUID,
        payload: dict[str, Any] | None = None,
    ) -> None:
        self.events += 1
        event_id, by_id = uuid4(), "prefect.resource.id"
        related = [
            {by_id: f"prefect.flow-run.{flow_run}", "prefect.resource.role": "flow-run"},
            {by_id: f"prefect.flow.{self.flow_id}", "prefect.resource.role": "flow"},
        ]
        made["events"].append(
            {
                "id": event_id,
                "event": name,
                "occurred": at,
                "received": at,
                "recorded": at,
                "resource_id": subject[by_id],
                "resource": subject,
                "related": related,
                "related_resource_ids": [one[by_id] for one in related],
                "payload": payload or {"task_run": {"run_count": 1, "note": "x" * 300}},
            }
        )
        for one in (subject, *related):
            left = {label: value for label, value in one.items() if label != by_id}
            row = {"occurred": at, "resource_id": one[by_id], "event_id": event_id, "resource": left}
            made["event_resources"].append({**row, "resource_role": one.get("prefect.resource.role", "")})


def fill(home: Path, runs: int, day: Day, more: Rows | None = None) -> None:
    """A database of Prefect's own making with that day in it, and more rows."""
    import sqlalchemy as sa
    from prefect.server.database import provide_database_interface

    database = provide_database_interface()
    asyncio.run(database.create_db())
    tables = {table.name: table for table in database.Base.metadata.tables.values()}
    engine = sa.create_engine(f"sqlite:///{home / 'prefect.db'}")
    with engine.begin() as connection:
        connection.exec_driver_sql("PRAGMA synchronous=OFF")
        connection.execute(tables["flow"].insert(), [{"id": day.flow_id, "name": "nightly"}])
        for made in chain([more or {}], day.rows(runs)):
            for name, rows in made.items():
                if rows:
                    connection.execute(tables[name].insert(), rows)
    engine.dispose()


@contextmanager
def serving(home: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A server on the filled database; its API's address, and its process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    api = f"http://127.0.0.1:{port}/api"
    command = [sys.executable, "-m", "prefect", "server", "start", "--port", str(port)]
    # What happened when is what is measured here: no service of the server's is to tidy it up meanwhile.
    quiet = {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "PREFECT_LOGGING_SERVER_LEVEL": "ERROR"}
    environment = {**os.environ, **quiet, "PREFECT_HOME": str(home)}
    server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(api, server)
        yield api, server
    finally:
        server.terminate()
        server.wait(30)


def _wait_for(api: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline and server.poll() is None:
        try:
            if httpx.get(f"{api}/health", timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise SystemExit("the Prefect server did not start")


def measure(home: Path, runs: int, end: str, events: int, expected: Counter[str]) -> Figures:
    with serving(home) as (api, server), tempfile.TemporaryFile() as said:
        command = [sys.executable, "-m", "prefect_resilience", "report", "--json"]
        # Filling takes minutes on a busy machine: the day ends where it was filled to.
        command += ["--since", str(datetime.fromisoformat(end) - timedelta(days=1)), "--until", end]
        environment = {**os.environ, "PREFECT_API_URL": api, "PREFECT_HOME": str(home)}
        before, began = _processor_time(server.pid), time.monotonic()
        process = subprocess.Popen(command, env=environment, stdout=said)
        _, status, used = os.wait4(process.pid, 0)
        took = time.monotonic() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        spent = _processor_time(server.pid) - before
        said.seek(0)
        made = said.read()
    if process.returncode != 0:
        raise SystemExit("the report could not be made")
    return Figures(runs, events, took, spent, used.ru_maxrss / 1024, _right(json.loads(made), expected))


def _processor_time(pid: int) -> float:
    """Seconds that a process has had of the processor, where /proc says so."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return float("nan")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _right(said: dict[str, Any], expected: Counter[str]) -> bool:
    totals = ("runs", "attempts", "retried", "failed", "fallbacks", "recovered")
    codes = {f"code {error['code']}": error["attempts"] for error in said["errors"]}
    found = {**{name: said["task_runs"][name] for name in totals}, **codes}
    return found == {name: number for name, number in expected.items() if number}


def table_of(figures: Figures) -> Table:
    table = Table(title="a day's report", title_justify="left")
    for heading in ("task runs", "events", "seconds", "server's CPU", "peak memory", "numbers right"):
        table.add_column(heading, justify="right")
    table.add_row(
        f"{figures.runs:,}",
        f"{figures.events:,}",
        f"{figures.seconds:.1f}",
        f"{figures.server:.1f} s",
        f"{figures.megabytes:.0f} MB",
        "yes" if figures.right else "NO",
    )
    return table


def filled(home: Path, runs: int, by: str = "benchmarks.report") -> tuple[str, int, Counter[str]]:
    """Fill a database in a process of its own: its settings are read when Prefect is imported, and what it
    takes of memory would count as that of each process it starts. The day's end, how many events, and what is
    expected."""
    command = [sys.executable, "-m", by, "--runs", str(runs), "--fill", str(home)]
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    ended = subprocess.run(
        command, env={**environment, "PREFECT_HOME": str(home)}, stdout=subprocess.PIPE, check=True
    )
    said = json.loads(ended.stdout.splitlines()[-1])
    return said["end"], said["events"], Counter(said["expected"])


def main() -> None:
    parser = argparse.ArgumentParser(description="How long the report of a day takes")
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--fill", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fill:
        day = Day(datetime.now(UTC), random.Random(0), Counter(), uuid4())
        fill(options.fill, options.runs, day)
        print(json.dumps({"end": day.end.isoformat(), "events": day.events, "expected": day.expected}))
        return
    with tempfile.TemporaryDirectory() as home:
        end, events, expected = filled(Path(home), options.runs)
        figures = measure(Path(home), options.runs, end, events, expected)
    if options.json:
        print(json.dumps(asdict(figures), indent=2))
    else:
        Console(width=None if sys.stdout.isatty() else 110).print(table_of(figures))
    sys.exit(0 if figures.right else 1)


if __name__ == "__main__":
    main()
