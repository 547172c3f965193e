"""The Retry button of Prefect's UI, on a run of a deployment: nothing that is done is sent again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from prefect import flow, get_client, resume_flow_run, suspend_flow_run
from prefect.client.orchestration import SyncPrefectClient
from prefect.exceptions import Pause
from prefect.flow_engine import run_flow

from prefect_resilience import resilient, resilient_task
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

    @flow(retries=1, retry_delay_seconds=0, persist_result=False)
    def invoices() -> list[str]:
        sent = [send(1), *send.map([2, 3]).result(), part(4)]
        starts.append(len(sent))
        if len(starts) < 4:
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
    assert ended.run_count == 4
    assert receiver.taken == dict.fromkeys(keys, 1)
    attempts = {effect.key: effect.attempts for effect in batch_status(str(run.id)).effects}
    assert attempts == dict.fromkeys(keys, 1)


SENT: list[str] = []


@resilient_task(effect=Effect(key="task:{order}"), persist_result=False)
def send(order: int) -> str:
    SENT.append(f"task:{order}")
    return SENT[-1]


@resilient(effect=Effect(key="call:{order}"))
def call(order: int) -> str:
    SENT.append(f"call:{order}")
    return SENT[-1]


@flow(persist_result=False)
def inner() -> str:
    return send(2)


@flow(persist_result=False)
def bill() -> list[str]:
    done = [send(1), call(1), inner()]
    for number in range(2):
        suspend_flow_run(timeout=300, key=f"wait-{number}")
    return [*done, send(3)]


def test_a_run_that_is_suspended_and_resumed_replays(shared):
    deployment = bill.to_deployment(name="suspended").apply()
    with get_client(sync_client=True) as client:
        run = client.create_flow_run_from_deployment(deployment)
        for _ in range(2):
            with pytest.raises(Pause):
                run_flow(bill, flow_run=client.read_flow_run(run.id))
            resume_flow_run(run.id)
        state = run_flow(bill, flow_run=client.read_flow_run(run.id), return_type="state")
    assert state.name == "Completed"
    assert SENT == ["task:1", "call:1", "task:2", "task:3"]
    assert {one.state for one in batch_status(str(run.id)).effects} == {"done"}
