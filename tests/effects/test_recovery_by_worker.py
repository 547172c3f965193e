"""A deployed flow, a real server and a real worker: killed twice, recovered twice, everything sent once."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

from prefect_resilience import Backoff
from prefect_resilience.effects import RecoveryPolicy, batch_status, recover, recovery, settle

PROGRAM = '''
import os
import signal
from pathlib import Path

import httpx
from prefect import flow

from prefect_resilience import resilient_task
from prefect_resilience.effects import Effect, send_idempotency_key


def die_once(marker):
    """As if the machine went away; the next time it is left alone."""
    if not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)


@resilient_task(effect=Effect(key="{batch_id}.{order}"), retry=None)
def send(order, url, folder):
    with httpx.Client(event_hooks={"request": [send_idempotency_key]}, timeout=20) as client:
        sent = client.post(url).json()["id"]
    if order == 4:
        die_once(f"{folder}/in-the-middle-of-a-call")
    return sent


@flow
def invoices(url: str, folder: str):
    for order in range(6):
        if order == 2:
            die_once(f"{folder}/between-two-calls")
        send(order, url, folder)
'''


def wait_until(condition, seconds=90):
    """What `condition` comes to, asked until then."""
    import time

    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until, "it did not come to pass"
        time.sleep(0.2)
    return found


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Any]:
    """Start programs of Prefect's, which are ended with the test."""
    running: list[subprocess.Popen[bytes]] = []

    def start(*words: str, **environment: str) -> None:
        log = open(tmp_path / f"{words[0]}.log", "wb")  # noqa: SIM115
        env = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        # A session of its own, so that its children end with it.
        running.append(
            subprocess.Popen(
                [sys.executable, "-m", "prefect", *words],
                env={**env, **environment},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        )

    yield start
    for process in reversed(running):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def fleet(tmp_path: Path, started: Any, shared: str) -> Iterator[str]:
    """A server and a worker of its own; the URL of its API."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    api = f"http://127.0.0.1:{port}/api"
    common = {"PREFECT_HOME": str(tmp_path / "home"), "PREFECT_API_URL": api}
    quiet = {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "PREFECT_LOGGING_LEVEL": "WARNING"}
    started("server", "start", "--port", str(port), "--no-ui", **common, **quiet)
    wait_until(lambda: _answers(f"{api}/health"))
    with temporary_settings({PREFECT_API_URL: api, PREFECT_HOME: tmp_path / "home"}):
        with get_client(sync_client=True) as client:
            client.create_work_pool(WorkPoolCreate(name="pool", type="process"))
        worker = {"PREFECT_WORKER_QUERY_SECONDS": "1", "PREFECT_RESILIENCE_STORE_URL": shared}
        started("worker", "start", "--type", "process", "--pool", "pool", **common, **worker)
        yield api


def _answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.timeout(300)
def test_killed_twice_it_sends_everything_once(fleet, receiver, tmp_path, monkeypatch):
    # A second report of a crash costs another recovery here, as it would in a fleet.
    monkeypatch.setattr(recovery, "CRASH_SETTLES", 3.0)
    (tmp_path / "program.py").write_text(PROGRAM)
    deployment_id = flow.from_source(str(tmp_path), "program.py:invoices").deploy(
        name="by-worker", work_pool_name="pool", print_next_steps=False, ignore_warnings=True
    )
    given = {"url": receiver.url, "folder": str(tmp_path)}
    with get_client(sync_client=True) as client:
        run = client.create_flow_run_from_deployment(deployment_id, parameters=given)
        batch_id = str(run.id)

        def ended(*types):
            state = client.read_flow_run(run.id).state
            return state if state.type.value in types else None

        assert wait_until(lambda: ended("CRASHED", "COMPLETED", "FAILED")).is_crashed()
        assert sum(receiver.taken.values()) == 2
        assert batch_status(batch_id).hint.strategy == "restart_from_last_external"
        doubt = f"{batch_id}.4"
        reports = []
        while not wait_until(lambda: ended("CRASHED", "COMPLETED", "FAILED")).is_completed():
            reports.append(recover(batch_id, policy=RecoveryPolicy(attempts=20, backoff=Backoff.none())))
            if reports[-1].action == "told":
                # It was killed after a message was sent and before that was recorded. Nobody guesses: a
                # person looks at the receiver.
                assert batch_status(batch_id).hint.waiting == (doubt,)
                assert receiver.taken[doubt] == 1
                settle(batch_id, doubt, "done", f"m-{doubt}", f"m-{doubt}", by="ada")
    assert receiver.taken == Counter({f"{batch_id}.{order}": 1 for order in range(6)})
    actions = [report.action for report in reports]
    assert actions[0] == actions[-1] == "rescheduled"
    assert actions.count("told") == 1
    outcomes = [entry.outcome for entry in batch_status(batch_id).audit]
    assert outcomes.count("settled") == 1
    assert outcomes.count("rescheduled") == actions.count("rescheduled")
