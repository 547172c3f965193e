"""Calls with every guard that are cancelled at each step: nothing stays busy."""

import asyncio
import threading
import time
import types
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from prefect_resilience import Effect, batch, resilient
from prefect_resilience.durable.effects import owner
from prefect_resilience.durable.effects.ledger import open_ledger
from prefect_resilience.effects import arollback, rollback
from prefect_resilience.stores import open_store
from tests.durable.effects.interrupted import World

STEPS = 60


@pytest.fixture(autouse=True)
def ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "TICK_SECONDS", 0.02)


@types.coroutine
def stepped(inner: Coroutine[Any, Any, Any], act: Callable[[int, Any], None]) -> Generator[Any, Any, Any]:
    """Drive a coroutine; `act` gets the number of each step and what it waits for then."""
    number, error, value = 0, None, None
    while True:
        try:
            waits = inner.send(value) if error is None else inner.throw(error)
        except StopIteration as stop:
            return stop.value
        number, error = number + 1, None
        act(number, waits)
        try:
            value = yield waits
        except BaseException as thrown:
            error = thrown


def run_cancelled(call: Callable[[], Coroutine[Any, Any, Any]], at: int, when: str) -> bool:
    """Cancel the call at its step `at`: as it begins to wait, or as what it waits for is done. Whether
    there was such a step."""
    met: list[int] = []

    async def main() -> None:
        def act(number: int, waits: Any) -> None:
            if number != at:
                return
            met.append(number)
            if when == "waiting" or waits is None:
                task.cancel()
            else:
                waits.add_done_callback(lambda _: task.cancel())

        task = asyncio.ensure_future(stepped(call(), act))
        await asyncio.wait((task,))
        if task.cancelled() or task.exception():
            return

    asyncio.run(main())
    return bool(met)


@pytest.mark.parametrize(("when", "outcome"), [("waiting", "returns"), ("done", "fails")])
def test_cancelled_at_each_step_of_its_task(shared, when, outcome):
    for step in range(1, STEPS + 1):
        world = World(shared, f"{when}-{outcome}-{step}", outcome)
        met = run_cancelled(world.asynchronous(), step, when)
        world.is_handed_over()
        world.comes_to_rest()
        if not met:
            break
    assert step > 8


refunded: list[int] = []


def refund(order: int) -> None:
    refunded.append(order)


def test_a_rollback_cancelled_at_each_step_is_finished_by_the_next(shared):
    @resilient(effect=Effect(key="book:{order}", compensate=refund))
    def book(order: int) -> int:
        return order

    for step in range(1, STEPS + 1):
        name = f"rollback-{step}"
        with batch(name):
            book(step)
        met = run_cancelled(partial(arollback, name), step, "waiting")
        until = time.monotonic() + 20
        here = owner.owner_in(open_store(shared))
        while (here._held or here._reports) and time.monotonic() < until:
            time.sleep(0.01)
        report = rollback(name, max_wait=20)
        assert report.complete or report.in_doubt, report
        assert refunded.count(step) <= 1
        if not met:
            break
    assert step > 5


@pytest.mark.parametrize("outcome", ["returns", "fails"])
def test_cancelled_while_the_record_waits_for_a_thread(shared, outcome):
    """All threads of the loop are busy as the function ends: none begins with what was cancelled."""
    world = World(shared, f"no-thread-{outcome}", outcome)
    free = threading.Event()

    async def main() -> None:
        pool = ThreadPoolExecutor(1)
        asyncio.get_running_loop().set_default_executor(pool)
        send, loop, sent = world.send, asyncio.get_running_loop(), asyncio.Event()

        def sending() -> str:
            pool.submit(free.wait, 60)
            loop.call_soon(sent.set)
            return send()

        world.send = sending
        task = asyncio.ensure_future(world.asynchronous()())
        await sent.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))
        free.set()

    asyncio.run(main())
    world.is_handed_over()
    world.comes_to_rest()
    states = {one["key"]: one["state"] for one, _ in open_ledger(shared).effects(world.name)}
    assert states["pay:7"] == ("done" if outcome == "returns" else "unknown")
