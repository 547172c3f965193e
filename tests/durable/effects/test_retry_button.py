"""The Retry button of Prefect's UI, on a run of a deployment: nothing that is done is sent again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.flow_engine import run_flow
from prefect.flows import load_flow_from_entrypoint
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.workers.process import ProcessWorker

from prefect_resilience.effects import batch_status
from tests.durable.effects.receiver import Receiver

pytestmark = [pytest.mark.api, pytest.mark.slow]

PROGRAM = """
from pathlib import Path

import httpx
from prefect import flow

from prefect_resilience import resilient_task
from prefect_resilience.effects import Effect, send_idempotency_key


@resilient_task(effect=Effect(key="{batch_id}.{order}"), retry=None)
def send(order, url):
    with httpx.Client(event_hooks={"request": [send_idempotency_key]}, timeout=20) as client:
        return client.post(url).json()["id"]


@flow
def part(order, url):
    return send(order, url)


@flow(persist_result=False)
def invoices(url: str, folder: str):
    sent = [send(1, url), *send.map([2, 3], url=url).result(), part(4, url)]
    starts = Path(folder, "starts")
    with starts.open("a") as file:
        file.write("|")
    if len(starts.read_text()) < 3:
        raise RuntimeError("after four of them")
    return [*sent, send(5, url)]
"""

# What the buttons of the two UIs send, as it stands in their code.
BUTTONS: list[dict[str, Any]] = [
    {"state": {"type": "SCHEDULED", "name": "AwaitingRetry", "message": "Retry from the UI"}, "force": force}
    for force in (False, True)
]


@pytest.mark.requirement("004.14")
@pytest.mark.timeout(240)
def test_pressed_until_the_run_succeeds_it_sends_everything_once(
    receiver: Receiver, shared: str, api: str, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    given = {"url": receiver.url, "folder": str(tmp_path)}
    with temporary_settings({PREFECT_API_URL: api}), get_client(sync_client=True) as client:
        client.create_work_pool(WorkPoolCreate(name="button", type="process"))
        deployment_id = flow.from_source(str(tmp_path), "program.py:invoices").deploy(
            name="button", work_pool_name="button", print_next_steps=False, ignore_warnings=True
        )
        run = client.create_flow_run_from_deployment(deployment_id, parameters=given)
        keys = [f"{run.id}.{order}" for order in range(1, 6)]
        # A worker's process costs seconds: the first start has none.
        run_flow(load_flow_from_entrypoint(f"{tmp_path}/program.py:invoices"), run, return_type="state")
        for button in BUTTONS:
            assert client.read_flow_run(run.id).state.is_failed()
            assert receiver.taken == dict.fromkeys(keys[:4], 1)
            pressed = client.request("POST", f"/flow_runs/{run.id}/set_state", json=button)
            assert pressed.json()["status"] == "ACCEPT"
            asyncio.run(ProcessWorker("button").start(run_once=True))
        ended = client.read_flow_run(run.id)
    assert ended.state.is_completed()
    assert ended.run_count == 3
    assert receiver.taken == dict.fromkeys(keys, 1)
    assert {effect.key: effect.attempts for effect in batch_status(str(run.id)).effects} == dict.fromkeys(
        keys, 1
    )
