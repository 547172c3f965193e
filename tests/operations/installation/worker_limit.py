"""Runs that are killed beside a worker with --limit 1, recovered at once by hand and by the automation.

python -m tests.operations.installation.worker_limit 20 [--by-hand] [--automation] [--at-once]

A worker with --limit ends with an error if a run is scheduled again while it still holds the run's slot.
`--at-once` shows that: it schedules the run as soon as it has crashed, as the Retry button of Prefect's UI
does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings
from prefect.states import AwaitingRetry

from prefect_resilience.effects import batch_status, recover
from prefect_resilience.operations.installation import install
from tests.free_ports import free_port
from tests.operations.installation.conftest import Programs, answers, wait_for

PROGRAM = '''
import os
import signal
from pathlib import Path

from prefect_resilience import Effect, resilient_flow, resilient_task


@resilient_task(effect=Effect(key="{order}"), retry=None)
def send(order, folder):
    with Path(folder, "sent").open("a") as log:
        log.write(order + "\\n")


@resilient_flow(recovery={"attempts": 3, "backoff": "none"})
def killed(folder: str):
    """Its process is killed once, after an effect."""
    send("first", folder)
    if not Path(folder, "died").exists():
        Path(folder, "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    send("second", folder)
'''
LONGEST = 400.0
"""Seconds for one run, on a machine that has much else to do."""


@dataclass
class Found:
    """What came of the runs: those that ended well, the seconds from each crash to the next start, and how
    often the worker died."""

    ended: int = 0
    twice: int = 0
    dead: int = 0
    seconds: list[float] = field(default_factory=list[float])

    def __str__(self) -> str:
        pauses = f"{min(self.seconds):.0f} to {max(self.seconds):.0f} s" if self.seconds else "none"
        return (
            f"{self.ended} runs ended, {self.twice} effects twice, the worker died {self.dead} times; "
            f"from crash to start: {pauses}"
        )


class Limited:
    """A server, a worker with --limit 1 for the runs, and another one for the operational flows."""

    def __init__(self, folder: Path, programs: Programs, server: dict[str, str], pool: str) -> None:
        self.folder, self.programs, self.server, self.pool = folder, programs, server, pool
        self.quick = {"PREFECT_WORKER_QUERY_SECONDS": "1"}
        with get_client(sync_client=True) as client:
            client.create_work_pool(WorkPoolCreate(name=pool, type="process"))
        (folder / "limited.py").write_text(PROGRAM)
        source: Any = flow.from_source(str(folder), "limited.py:killed")
        self.deployment: UUID = source.deploy(
            name=pool, work_pool_name=pool, print_next_steps=False, ignore_warnings=True
        )
        self.worker = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        words = ("worker", "start", "--type", "process", "--pool", self.pool, "--limit", "1")
        return self.programs.start(*words, **self.server, **self.quick)

    def campaign(self, number: int, how: str) -> Found:
        """`how`: "by hand", "by the automation", or "at once", without waiting for the worker."""
        found = Found()
        with get_client(sync_client=True) as client:
            for _ in range(number):
                self._one(client, how, found)
                if self.worker.poll() is not None:
                    found.dead += 1
                    self.worker = self._started()
        return found

    def _one(self, client: SyncPrefectClient, how: str, found: Found) -> None:
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        run = client.create_flow_run_from_deployment(self.deployment, parameters={"folder": str(folder)})
        wait_for(lambda: has_crashed(client, run.id), LONGEST)
        if how == "by hand":
            report = recover(str(run.id))
            assert report.action in ("rescheduled", "refused"), report
        if how == "at once":
            client.set_flow_run_state(run.id, AwaitingRetry())

        def is_over() -> bool:
            return self.worker.poll() is not None or client.read_flow_run(run.id).state.is_completed()

        wait_for(is_over, LONGEST)
        if not client.read_flow_run(run.id).state.is_completed():
            return
        found.ended += 1
        found.twice += len((folder / "sent").read_text().split()) - 2
        states = sorted(client.read_flow_run_states(run.id), key=lambda one: one.timestamp)
        crashed = next(one for one in states if one.is_crashed())
        again = [one for one in states if one.is_running()][-1]
        found.seconds.append((again.timestamp - crashed.timestamp).total_seconds())
        assert len([one for one in states if one.is_running()]) == 2
        audit = batch_status(str(run.id)).audit
        assert how == "at once" or [one.outcome for one in audit].count("rescheduled") == 1


def has_crashed(client: SyncPrefectClient, run_id: UUID) -> bool:
    return any(one.is_crashed() for one in client.read_flow_run_states(run_id))


def main(number: int, ways: list[str]) -> None:
    folder = Path(tempfile.mkdtemp(prefix="worker-limit-"))
    programs, port = Programs(folder), free_port()
    server = {
        "PREFECT_HOME": str(folder / "home"),
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_RESILIENCE_STORE_URL": f"sqlite:///{folder}/fleet.db",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_LOGGING_LEVEL": "WARNING",
    }
    os.environ["PREFECT_RESILIENCE_STORE_URL"] = server["PREFECT_RESILIENCE_STORE_URL"]
    try:
        programs.start("server", "start", "--port", str(port), "--no-ui", **server)
        wait_for(lambda: answers(f"{server['PREFECT_API_URL']}/health"), 600)
        with temporary_settings({PREFECT_API_URL: server["PREFECT_API_URL"], PREFECT_HOME: folder / "home"}):
            limited = Limited(folder, programs, server, "limited")
            for how in ways:
                if how == "by the automation":
                    install()
                    words = ("worker", "start", "--type", "process", "--pool", "resilience")
                    programs.start(*words, **server, **limited.quick)
                began = time.monotonic()
                found = limited.campaign(number, how)
                print(f"{how}: {found}; {time.monotonic() - began:.0f} s", flush=True)
    finally:
        programs.end()


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:] if word.isdigit()]
    known = {"--by-hand": "by hand", "--automation": "by the automation", "--at-once": "at once"}
    wanted = [known[word] for word in sys.argv[1:] if word in known]
    main(*numbers[:1] or [20], wanted or ["by hand", "by the automation"])
