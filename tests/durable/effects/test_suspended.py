"""Flow runs that are suspended and resumed, or paused while their process waits: what one pass is then."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect import flow, get_client, resume_flow_run
from prefect.settings import PREFECT_API_URL

from prefect_resilience.effects import batch_status

pytestmark = pytest.mark.slow

FLOW = """
import sys
from pathlib import Path
from prefect import flow, suspend_flow_run
from prefect_resilience import Effect, resilient, resilient_task

def mark(folder, name):
    with open(Path(folder) / "sent", "a") as file:
        file.write(name + "\\n")
    return name

@resilient_task(effect=Effect(key="task:{order}"), persist_result=False)
def send(order: int, folder: str) -> str:
    return mark(folder, f"task:{order}")

@resilient(effect=Effect(key="call:{order}"))
def call(order: int, folder: str) -> str:
    return mark(folder, f"call:{order}")

@flow(persist_result=False)
def inner(folder: str) -> str:
    return send(2, folder)

@flow(persist_result=False)
def bill(folder: str, times: int = 2) -> list[str]:
    done = [send(1, folder), call(1, folder), inner(folder)]
    for number in range(times):
        suspend_flow_run(timeout=300, key=f"wait-{number}")
    return [*done, send(3, folder)]
"""


def state_of(run_id: UUID) -> str:
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(run_id).state
    return "" if state is None else str(state.name)


def execute(run_id: UUID, url: str, folder: Path) -> str:
    """Run a scheduled flow run in a process of its own, as a worker does; the name of its state then."""
    environment = {**os.environ, "PREFECT_API_URL": str(PREFECT_API_URL.value())}
    environment["PREFECT_RESILIENCE_STORE_URL"] = url
    done = subprocess.run(
        [sys.executable, "-m", "prefect.engine", str(run_id)],
        env=environment,
        cwd=folder,  # the flow's source is copied to it
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return state_of(run_id)


@pytest.mark.timeout(600)
def test_a_run_that_is_suspended_and_resumed_replays(prefect_api, tmp_path, shared):
    (tmp_path / "bills.py").write_text(FLOW)
    deployed: Any = flow.from_source(str(tmp_path), "bills.py:bill")
    deployment = deployed.to_deployment(name="suspended").apply()
    with get_client(sync_client=True) as client:
        run = client.create_flow_run_from_deployment(deployment, parameters={"folder": str(tmp_path)})
    (folder := tmp_path / "process").mkdir()
    for _ in range(2):
        assert execute(run.id, shared, folder) == "Suspended"
        resume_flow_run(run.id)
    assert execute(run.id, shared, folder) == "Completed"
    assert (tmp_path / "sent").read_text().split() == ["task:1", "call:1", "task:2", "task:3"]
    assert {one.state for one in batch_status(str(run.id)).effects} == {"done"}
