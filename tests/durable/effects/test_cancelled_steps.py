"""Calls with every guard that are cancelled at each step: nothing stays busy."""

from __future__ import annotations

import asyncio
import threading
import time
import types
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from prefect_resilience import (
    Bulkhead,
    CircuitBreaker,
    Done,
    Effect,
    ErrorBudget,
    NotDone,
    RateLimit,
    batch,
    resilient,
)
from prefect_resilience.durable import arollback, rollback
from prefect_resilience.durable.effects import owner
from prefect_resilience.durable.effects.ledger import open_ledger
from prefect_resilience.guards.limits.line import in_line
from prefect_resilience.stores import open_store

STEPS = 60


@dataclass
class World:
    """One call of a task with every guard, as a probe of its circuit, and what it leaves behind."""

    url: str
    name: str
    outcome: str = "returns"
    sent: list[int] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.circuit = CircuitBreaker(
            self.name, failure_threshold=1, open_for=0.001, probes=1, success_threshold=1, store=self.url
        )
        self.circuit.record_failure(ConnectionError("down"))
        while self.circuit.state != "half_open":
            time.sleep(0.001)

    def options(self) -> dict[str, Any]:
        return {
            "circuit": self.circuit,
            "limits": [Bulkhead(2, name=self.name), RateLimit(1_000, name=f"{self.name}-rate", burst=10)],
            "timeout": 30,
            "retry": None,
            "error_budget": ErrorBudget(name=self.name),
            "fallback": [lambda order: self.answered.append(order)],
            "effect": Effect(key="pay:{order}", verify=self.verify),
        }

    def verify(self, key: str) -> Done | NotDone:
        return Done("verified") if self.sent else NotDone()

    def send(self) -> str:
        self.sent.append(1)
        if self.outcome == "fails":
            raise ConnectionResetError("the answer was lost")
        return "sent"

    def asynchronous(self) -> Callable[[], Coroutine[Any, Any, Any]]:
        @resilient(**self.options())
        async def pay(order: int) -> str:
            await asyncio.sleep(0)
            said = self.send()
            await asyncio.sleep(0)
            return said

        async def call() -> Any:
            with batch(self.name):
                return await pay(7)

        return call

    def synchronous(self) -> Callable[[], Any]:
        @resilient(**self.options())
        def pay(order: int) -> str:
            return self.send()

        def call() -> Any:
            with batch(self.name):
                return pay(7)

        return call

    # -- what is left behind

    def busy(self) -> list[str]:
        found = [
            f"{one['key']} is {one['state']}"
            for one, alive in open_ledger(self.url).effects(self.name)
            if alive or one["state"] == "intended"
        ]
        document = open_store(self.url).load(f"circuit/{self.name}")
        assert document is not None
        found += [f"probe {lease}" for lease in document.value["leases"]]
        for key in (f"bulkhead:{self.name}", f"rate:{self.name}-rate"):
            if in_line(key):
                found.append(f"{key}: {in_line(key)} in line")
        found += [
            f"claim {claim}" for one in owner._owners for claim in one._held if one.store.url == self.url
        ]
        return found

    def comes_to_rest(self) -> None:
        until = time.monotonic() + 20
        while (busy := self.busy()) and time.monotonic() < until:
            time.sleep(0.01)
        assert busy == []
        states = {one["key"]: one["state"] for one, _ in open_ledger(self.url).effects(self.name)}
        allowed = {"done", "unknown", "failed"} if self.outcome == "fails" else {"done", "unknown"}
        if self.sent:
            assert states["pay:7"] in allowed
        else:
            assert states.get("pay:7", "failed") in ("failed", "unknown")


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


@pytest.mark.parametrize("outcome", ["returns", "fails"])
@pytest.mark.parametrize("when", ["waiting", "done"])
def test_cancelled_at_each_step_of_its_task(shared, when, outcome):
    for step in range(1, STEPS + 1):
        world = World(shared, f"{when}-{outcome}-{step}", outcome)
        met = run_cancelled(world.asynchronous(), step, when)
        world.comes_to_rest()
        if not met:
            break
    assert step > 8


@pytest.mark.parametrize("outcome", ["returns", "fails"])
def test_cancelled_at_each_turn_of_the_loop(shared, outcome):
    async def main(call: Callable[[], Coroutine[Any, Any, Any]], turns: int) -> None:
        task = asyncio.ensure_future(call())
        for _ in range(turns):
            await asyncio.sleep(0.0005 if turns % 2 else 0)
        task.cancel()
        await asyncio.wait((task,))

    for turns in range(1, STEPS + 1):
        world = World(shared, f"turn-{outcome}-{turns}", outcome)
        asyncio.run(main(world.asynchronous(), turns))
        world.comes_to_rest()


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
    world.comes_to_rest()
    states = {one["key"]: one["state"] for one, _ in open_ledger(shared).effects(world.name)}
    assert states["pay:7"] == ("done" if outcome == "returns" else "unknown")
