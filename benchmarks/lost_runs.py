"""Flow runs that no process works on any more, and how soon the operation `crash-silent-runs` mends them.

    python -m benchmarks.lost_runs

Starts a Prefect server on the loopback. Makes five kinds of lost flow runs and four that live, and lets the
operation run every 2 minutes, as its deployment does. Prints for each lost run the seconds from the moment at
which it may count as lost to the end of the operation that mended it.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.prefect_server import end_server, start_server

EVERY = 120.0
BEAT = 10.0


@dataclass
class Case:
    """A run, and whether it is mended. `lost_at`: since when it may count as lost; None: it lives."""

    name: str
    run_id: Any
    lost_at: float | None
    is_mended: Callable[[Any], bool]


def in_seconds(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def is_crashed(run: Any) -> bool:
    return run.state.is_crashed()


def is_rescheduled(run: Any) -> bool:
    return run.state.name == "Parked" and run.state.message.startswith(("Found: ", "Its circuit closed"))


class Scene:
    """Flow runs of one deployment in the states that a killed process leaves."""

    def __init__(self, client: Any) -> None:
        from prefect import flow

        self.client = client
        self.deployment = flow(lambda: None, name="lost").to_deployment("d").apply()
        self.cases = list[Case]()
        self.beating = list[Any]()

    def make(self, name: str, state: Any, lost_at: float | None, is_mended: Callable[[Any], bool]) -> Any:
        run = self.client.create_flow_run_from_deployment(self.deployment, name=name)
        self.client.set_flow_run_state(run.id, state, force=True)
        self.cases.append(Case(name, run.id, lost_at, is_mended))
        return run

    def beat(self, runs: list[Any]) -> None:
        from prefect.events import emit_event

        for run in runs:
            resource = {"prefect.resource.id": f"prefect.flow-run.{run.id}"}
            emit_event("prefect.flow-run.heartbeat", resource)

    def wait_for_retry(self, name: str, late: float, lost_at: float | None) -> None:
        from prefect.states import AwaitingRetry

        run = self.make(name, AwaitingRetry(scheduled_time=in_seconds(-late)), lost_at, is_crashed)
        policy = {"empirical_policy": {"retries": 1, "retry_type": "in_process"}}
        self.client.request("PATCH", f"/flow_runs/{run.id}", json=policy).raise_for_status()

    def park(self, name: str, until: float, lost_at: float | None, **more: Any) -> Any:
        from prefect.states import Running

        from prefect_resilience.durable.batches.edge import parking
        from prefect_resilience.durable.batches.parked import ParkedRun

        run, now = self.make(name, Running(), lost_at, is_rescheduled), time.time()
        facts = {"flow_run_id": str(run.id), "name": name, "flow": "lost", "why": "503"}
        parked = ParkedRun(**facts, until=now + until, at=now - 600, since=now - 600, **more)
        parking.keep(parked)
        assert not isinstance(parking.park(parked), str)
        return run

    def make_all(self) -> None:
        from prefect.states import Crashed, Running

        from prefect_resilience import CircuitBreaker

        now = time.time()
        silent = self.make("silent: worker and process killed", Running(), now + 5 * BEAT, is_crashed)
        living = self.make("lives: sends heartbeats", Running(), None, is_crashed)
        self.make("lives: has no heartbeats", Running(), None, is_crashed)
        self.beating = [silent, living]
        self.wait_for_retry("stranded: its retry is late", 110.0, now + 10.0)
        self.wait_for_retry("lives: its retry is due later", -3_600.0, None)
        self.park("parked: its time is over", -110.0, now + 10.0)
        killed = self.park("parked: its process was killed, and it is Crashed", 3_600.0, now)
        self.client.set_flow_run_state(killed.id, Crashed(), force=True)
        CircuitBreaker("shop").force_closed()
        self.park("parked: its circuit closed elsewhere", 3_600.0, now, circuit="shop")
        self.park("lives: parked for an hour", 3_600.0, None)


def measure() -> list[str]:
    from prefect.client.orchestration import get_client

    from prefect_resilience.operations import crash_silent_runs

    lines = list[str]()
    with get_client(sync_client=True) as client:
        scene = Scene(client)
        scene.make_all()
        mended = dict[str, float]()
        began = time.time()
        for number in range(1, 3):
            while time.time() < began + number * EVERY / 2:
                elapsed = time.time() - began
                scene.beat(scene.beating if elapsed < 2 * BEAT else scene.beating[1:])
                time.sleep(BEAT)
            started = time.time()
            crash_silent_runs()
            lines.append(f"operation {number}: {time.time() - started:.1f} s")
            for case in scene.cases:
                if case.is_mended(client.read_flow_run(case.run_id)):
                    mended.setdefault(case.name, time.time())
    for case in scene.cases:
        at = mended.get(case.name)
        after = "not touched" if at is None else f"mended after {at - (case.lost_at or began):.1f} s"
        lines.append(f"{case.name:55} {after}")
    return lines


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="lost-"))
    os.environ |= {
        "PREFECT_HOME": str(folder),
        "PREFECT_LOGGING_LEVEL": "ERROR",
        "PREFECT_RESILIENCE_STORE_URL": f"sqlite:///{folder}/store.db",
        "PREFECT_API_URL": start_server(folder, os.getpid()),
    }
    try:
        print("\n".join(measure()))
    finally:
        end_server(folder)


if __name__ == "__main__":
    main()
