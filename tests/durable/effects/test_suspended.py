"""Flow runs that are suspended and resumed: what one pass is then."""

from __future__ import annotations

import pytest
from prefect import flow, get_client, resume_flow_run, suspend_flow_run
from prefect.exceptions import Pause
from prefect.flow_engine import run_flow

from prefect_resilience import Effect, resilient, resilient_task
from prefect_resilience.effects import batch_status

pytestmark = pytest.mark.api

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
