"""Guarding calls: every spelling, many threads, and an event loop that never waits."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from prefect_resilience import CircuitBreaker
from prefect_resilience.errors.exceptions import CircuitOpenError, ConfigurationError
from prefect_resilience.testing.stores import wait_until
from tests.guards.circuits.tripping import failing, trip

# -- spellings


async def test_acall_takes_plain_and_async_functions(breaker: CircuitBreaker) -> None:
    async def later(a: int) -> int:
        await asyncio.sleep(0)
        return a

    assert await breaker.acall(later, 1) == 1
    assert await breaker.acall(lambda a: a, 2) == 2
    for _ in range(5):
        with pytest.raises(TimeoutError):
            await breaker.acall(failing(TimeoutError()))
    with pytest.raises(CircuitOpenError):
        await breaker.acall(later, 1)


@pytest.mark.parametrize("sync_interval", [1e-9, 60])
def test_call_refuses_an_async_function(store: Any, sync_interval: float) -> None:
    async def later() -> None: ...

    breaker = CircuitBreaker("service", store=store, sync_interval=sync_interval)
    breaker.call(int)
    for function in (later, lambda: later()):
        with pytest.raises(ConfigurationError, match="acall"):
            breaker.call(function)


# -- threads


def test_many_threads_lose_no_count(store: Any) -> None:
    breaker = CircuitBreaker("service", store=store, window=10_000, sync_interval=0.01)
    start = threading.Barrier(8)

    def work() -> None:
        start.wait()
        for _ in range(500):
            breaker.call(int)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert breaker.snapshot().window_calls == 8 * 500


def test_one_of_many_threads_probes(store: Any) -> None:
    breaker = CircuitBreaker("service", store=store, open_for=0, success_threshold=1)
    trip(breaker)
    made, refused = [], []
    start, answered = threading.Barrier(16), threading.Event()

    def work() -> None:
        start.wait()
        try:
            breaker.call(lambda: (made.append(1), answered.wait(30)))
        except CircuitOpenError:
            refused.append(1)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(refused) == 15)
    answered.set()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert breaker.state == "closed"


async def test_the_event_loop_never_waits_for_a_store(store: Any) -> None:
    breaker = CircuitBreaker("service", store=store, sync_interval=1e-9)

    async def work() -> int:
        return threading.get_ident()

    for _ in range(3):
        assert await breaker.acall(work) == threading.get_ident()
        async with breaker:
            pass
    with pytest.raises(TimeoutError):
        await breaker.acall(failing(TimeoutError()))
    assert store.contacts > 3
    assert threading.get_ident() not in store.threads


async def test_a_task_cancelled_while_it_asks_leaves_no_lease(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaker = CircuitBreaker("service", store=store, sync_interval=1e-9)
    trip(breaker)
    store.time += 30
    asking, go_on = threading.Event(), threading.Event()
    swap = store.swap

    def slowly(*args: Any, **kwargs: Any) -> int:
        asking.set()
        go_on.wait(30)
        return swap(*args, **kwargs)

    store.swap = slowly
    task = asyncio.create_task(breaker.acall(int))
    await asyncio.to_thread(asking.wait, 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go_on.set()
    await asyncio.to_thread(
        wait_until, lambda: breaker.state == "half_open" and breaker.snapshot().probes_in_flight == 0
    )


async def test_a_probe_that_is_cancelled_makes_room(store: Any) -> None:
    breaker = CircuitBreaker("service", store=store, sync_interval=1e-9)
    trip(breaker)
    store.time += 30
    task = asyncio.create_task(breaker.acall(asyncio.sleep, 60))
    await asyncio.to_thread(wait_until, lambda: breaker.snapshot().probes_in_flight == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(wait_until, lambda: breaker.snapshot().probes_in_flight == 0)
    assert breaker.state == "half_open"
