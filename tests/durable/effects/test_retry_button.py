"""The Retry button of Prefect's UI, on a run of a deployment: nothing that is done is sent again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient
from prefect.flow_engine import run_flow

from prefect_resilience import resilient_task
from prefect_resilience.effects import Effect, batch_status
from tests.durable.effects.receiver import Receiver

pytestmark = pytest.mark.api

# What the buttons of the two UIs send, as it stands in their code.
BUTTONS: list[dict[str, Any]] = [
    {"state": {"type": "SCHEDULED", "name": "AwaitingRetry", "message": "Retry from the UI"}, "force": force}
    for force in (False, True)
]


@pytest.mark.requirement("004.14")
def test_pressed_until_the_run_succeeds_it_sends_everything_once(
    receiver: Receiver, post: Callable[..., str], shared: str, client: SyncPrefectClient
) -> None:
    starts: list[int] = []

    @resilient_task(effect=Effect(key="{batch_id}.{order}"), retry=None)
    def send(order: int) -> str:
        return post()

    @flow
    def part(order: int) -> str:
        return send(order)

    @flow(persist_result=False)
    def invoices() -> list[str]:
        sent = [send(1), *send.map([2, 3]).result(), part(4)]
        starts.append(len(sent))
        if len(starts) < 3:
            raise RuntimeError("after four of them")
        return [*sent, send(5)]

    deployment_id = invoices.to_deployment("button").apply()
    run = client.create_flow_run_from_deployment(deployment_id)
    keys = [f"{run.id}.{order}" for order in range(1, 6)]
    run_flow(invoices, flow_run=run, return_type="state")
    for button in BUTTONS:
        assert client.read_flow_run(run.id).state.is_failed()
        assert receiver.taken == dict.fromkeys(keys[:4], 1)
        pressed = client.request("POST", f"/flow_runs/{run.id}/set_state", json=button)
        assert pressed.json()["status"] == "ACCEPT"
        run_flow(invoices, flow_run=client.read_flow_run(run.id), return_type="state")
    ended = client.read_flow_run(run.id)
    assert ended.state.is_completed()
    assert ended.run_count == 3
    assert receiver.taken == dict.fromkeys(keys, 1)
    attempts = {effect.key: effect.attempts for effect in batch_status(str(run.id)).effects}
    assert attempts == dict.fromkeys(keys, 1)
