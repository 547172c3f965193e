"""A flow run whose tags name a batch belongs to it, as one does that replays a dead letter."""

from __future__ import annotations

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.flow_engine import run_flow

from prefect_resilience import batch_status, resilient_task
from prefect_resilience.durable.batches.edge.tags import TAG, current_batch

pytestmark = pytest.mark.api


@resilient_task(effect="external")
def send(what: str) -> str:
    return f"sent {what}"


@flow
def inner() -> str:
    return current_batch()


@flow
def outer() -> tuple[str, str]:
    send("a letter")
    return current_batch(), inner()


@pytest.mark.smoke
def test_the_tags_of_a_flow_run_name_its_batch() -> None:
    with get_client(sync_client=True) as client:
        flow_run = client.create_flow_run(outer, tags=[f"{TAG}orders-7"])
    assert run_flow(outer, flow_run=flow_run) == ("orders-7", "orders-7")
    [effect] = batch_status("orders-7").effects
    assert (effect.state, effect.result) == ("done", "sent a letter")
