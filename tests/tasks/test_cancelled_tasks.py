"""An async task run with every guard that is cancelled at a step of its call: nothing stays busy."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from prefect import flow
from prefect.client.orchestration import get_client

from prefect_resilience import batch, resilient_task
from prefect_resilience.durable.effects import owner
from tests.durable.effects.interrupted import World
from tests.durable.effects.test_cancelled_steps import stepped

pytestmark = pytest.mark.api

MOST = 60


@pytest.fixture(autouse=True)
def ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "TICK_SECONDS", 0.02)


class Cancelled(World):
    """The call is a task run in a flow run."""

    def task(self) -> Any:
        @resilient_task(**self.options())
        async def pay(order: int) -> str:
            await asyncio.sleep(0)
            said = self.send()
            await asyncio.sleep(0)
            return said

        return pay

    def slots(self) -> int:
        """The places that the call holds in the fleet."""
        with get_client(sync_client=True) as client:
            name = f"bulkhead:{self.name}"
            found = client.request("POST", "/v2/concurrency_limits/filter", json={"limit": 200}).json()
            return sum(one["active_slots"] for one in found if one["name"] == name)


async def by_task(call: Any, at: int, act: Callable[[], None]) -> None:
    """The task around the call is cancelled."""

    def strike(number: int, _: Any) -> None:
        if number == at:
            act()
            around.cancel()

    around = asyncio.ensure_future(stepped(call, strike))
    await asyncio.wait((around,))


async def by_timeout(call: Any, at: int, act: Callable[[], None]) -> None:
    def strike(number: int, _: Any) -> None:
        if number == at:
            act()
            limit.reschedule(asyncio.get_running_loop().time())

    try:
        async with asyncio.timeout(None) as limit:
            await stepped(call, strike)
    except TimeoutError:
        pass


def is_cancelled_at(step: int, way: Any, outcome: str) -> bool:
    """Cancel a call at one step, and look at what it leaves. Whether there was such a step."""
    world = Cancelled(os.environ["PREFECT_RESILIENCE_STORE_URL"], f"task-{uuid4().hex[:8]}", outcome)
    pay, met = world.task(), list[int]()

    @flow(name=f"cancelled-{world.name}")
    async def pays() -> None:
        with batch(world.name):
            try:
                await way(pay(7), step, lambda: met.append(step))
            except ConnectionError:
                assert outcome == "fails"

    asyncio.run(pays(return_state=True))
    world.is_handed_over()
    world.comes_to_rest()
    until = time.monotonic() + 30
    while world.slots() and time.monotonic() < until:
        time.sleep(0.05)
    assert world.slots() == 0
    return bool(met)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("outcome", ["returns", "fails"])
@pytest.mark.parametrize("way", [by_task, by_timeout])
def test_a_task_run_cancelled_at_each_step(way, outcome):
    for step in range(1, MOST + 1):
        if not is_cancelled_at(step, way, outcome):
            break
    assert step > 8
