"""Batches as tags: a process in many batches does not keep a thread for each, and a run is of its batch."""

from __future__ import annotations

import threading

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.context import TagsContext
from prefect.flow_engine import run_flow

from prefect_resilience import batch, batch_status, resilient_task
from prefect_resilience.durable.batches.edge.tags import TAG, current_batch

pytestmark = pytest.mark.api

MANY = 8


@resilient_task
def step(number: int) -> set[str]:
    return TagsContext.get().current_tags


@resilient_task
async def async_step(number: int) -> set[str]:
    return TagsContext.get().current_tags


@flow
def submitted() -> list[set[str]]:
    found: list[set[str]] = []
    for number in range(MANY):
        with batch(f"many-{number}"):
            found += [step.submit(number).result(), *step.map([number]).result()]
    return found


@flow
async def awaited() -> list[set[str]]:
    found: list[set[str]] = []
    for number in range(MANY):
        with batch(f"many-{number}"):
            found.append(await async_step(number))
    return found


def threads() -> int:
    """The threads in which Prefect asks for the slots of tags: one for each set of tags."""
    return sum("ConcurrencySlotAcquisition" in one.name for one in threading.enumerate())


def test_a_batch_costs_no_thread() -> None:
    before = threads()
    found = submitted()
    assert threads() <= before + 1
    # what a task creates inside is tagged
    assert found[0] == {f"{TAG}many-0"}


async def test_nor_does_a_batch_of_async_tasks() -> None:
    before = threads()
    found = await awaited()
    assert threads() <= before + 1
    assert found[-1] == {f"{TAG}many-{MANY - 1}"}


# -- a flow run whose tags name a batch belongs to it, as one does that replays a dead letter


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
