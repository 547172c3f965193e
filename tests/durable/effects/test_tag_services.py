"""A process that takes part in many batches does not keep a thread for each."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from prefect import flow
from prefect.context import TagsContext

from prefect_resilience import batch, resilient_task
from prefect_resilience.durable.batches.edge.tags import TAG

pytestmark = pytest.mark.api

MANY = 8


@resilient_task
def step(number: int) -> set[str]:
    return TagsContext.get().current_tags


@resilient_task
async def async_step(number: int) -> set[str]:
    return TagsContext.get().current_tags


@flow
def called() -> list[set[str]]:
    found: list[set[str]] = []
    for number in range(MANY):
        with batch(f"many-{number}"):
            found.append(step(number))
    return found


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


@pytest.mark.parametrize("run", [called, submitted])
def test_a_batch_costs_no_thread(run: Callable[[], list[set[str]]]) -> None:
    before = threads()
    found = run()
    assert threads() <= before + 1
    # what a task creates inside is tagged
    assert found[0] == {f"{TAG}many-0"}


async def test_nor_does_a_batch_of_async_tasks() -> None:
    before = threads()
    found = await awaited()
    assert threads() <= before + 1
    assert found[-1] == {f"{TAG}many-{MANY - 1}"}
