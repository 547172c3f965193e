"""A deployed run whose process is killed: what its worker leaves behind, and that it can be gone on with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL

from prefect_resilience import RecoveryPolicy, ResilientFlow, batch_status
from prefect_resilience.durable.batches.edge.flow_runs import RECOVERY_TAG

pytestmark = pytest.mark.api

PROGRAM = '''
import os
import signal
import time

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.runtime import flow_run

from prefect_resilience import Backoff, Retry, resilient_flow, resilient_task

SEEN = []


@resilient_task(effect="external", task_run_name="send {order}")
def send(order: int) -> str:
    return f"m-{order}"


@resilient_task(retry=Retry(attempts=3, backoff=Backoff.constant(0.05)))
def shaky() -> int:
    SEEN.append(1)
    if len(SEEN) < 3:
        raise ConnectionError("no line")
    return 1


def told() -> bool:
    """Whether the API knows how `shaky` ended: all that went before has left this process by then."""
    mine = FlowRunFilter(id=FlowRunFilterId(any_=[flow_run.get_id()]))
    with get_client(sync_client=True) as client:
        runs = client.read_task_runs(flow_run_filter=mine)
    return any(run.name.startswith("shaky") and run.state and run.state.is_final() for run in runs)


@resilient_flow(name="invoices", recovery={"attempts": 2})
def invoices(month: str, die: bool = True) -> str:
    """Send the invoices of a month."""
    send(1)
    shaky()
    until = time.monotonic() + 60
    while not told() and time.monotonic() < until:
        time.sleep(0.1)
    if die:
        os.kill(os.getpid(), signal.SIGKILL)
    return month
'''


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"sqlite:///{tmp_path}/resilience.db"
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", url)
    return url


def executed(run_id: object, folder: Path, store: str) -> str:
    """What a worker does with one run: it starts a process for it, and looks after it."""
    env = os.environ | {"PREFECT_API_URL": PREFECT_API_URL.value(), "PREFECT_RESILIENCE_STORE_URL": store}
    done = subprocess.run(
        [sys.executable, "-m", "prefect", "flow-run", "execute", str(run_id)],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.timeout(300)
def test_a_killed_run_has_its_summary_and_its_hint(tmp_path, store, left):
    (tmp_path / "program.py").write_text(PROGRAM)
    loaded = flow.from_source(str(tmp_path), "program.py:invoices")
    assert isinstance(loaded, ResilientFlow)
    assert loaded.guard.ending.policy == RecoveryPolicy(attempts=2)
    deployment_id = loaded.to_deployment("by-hand").apply()
    with get_client(sync_client=True) as client:
        shown = client.read_deployment(deployment_id)
        assert set(shown.parameter_openapi_schema["properties"]) == {"month", "die"}
        assert shown.description == "Send the invoices of a month."
        run = client.create_flow_run_from_deployment(deployment_id, parameters={"month": "11"})
        told = executed(run.id, tmp_path, store)
        run = client.read_flow_run(run.id)
        assert run.state.is_crashed(), told
        assert RECOVERY_TAG in run.tags
    text = left.summary(run.id)
    assert "ended **Crashed**" in text
    assert "**restart\\_from\\_last\\_external**: its run crashed" in text
    assert f"prefect-resilience batches recover {run.id}" in text
    assert "The automation does this" in text
    assert "1 retried (2 retries)" in text
    assert "NETWORK\\_ERROR network: no line (x2)" in text
    status = batch_status(str(run.id))
    assert status.hint.strategy == "restart_from_last_external"
    assert [effect.state for effect in status.effects] == ["done"]
