"""A place is held until its call has really ended: what a cancelled coroutine leaves behind."""

import asyncio
import contextlib
import time

import anyio
import pytest

from prefect_resilience.errors.exceptions import AttemptTimeout
from prefect_resilience.guards.limits import line
from prefect_resilience.guards.limits.bulkhead import Bulkhead
from prefect_resilience.guards.limits.guarding import BulkheadFullError
from prefect_resilience.guards.timeouts import overdue
from prefect_resilience.guards.timeouts.timeout import acall_within
from tests.guards.limits.hanging import nothing_is_left as nothing_is_left
from tests.guards.limits.hanging import service as service
from tests.guards.limits.hanging import wait_until
from tests.guards.limits.processes import acall_in_process


async def to_thread(service):
    await asyncio.to_thread(service.hang)


async def gathered(service):
    await asyncio.gather(asyncio.to_thread(service.hang), asyncio.sleep(60))


async def anyio_thread(service):
    await anyio.to_thread.run_sync(service.hang, abandon_on_cancel=True)


async def own_timeout(service):
    await asyncio.wait_for(asyncio.to_thread(service.hang), 0.05)


@pytest.mark.parametrize("start", [to_thread, gathered, anyio_thread, own_timeout])
@pytest.mark.parametrize("how", ["deadline", "cancelled", "block", "decorated"])
def test_a_thread_of_a_cancelled_coroutine_holds_its_place(service, start, how):
    bulkhead = Bulkhead(1, max_wait=0)

    async def block():
        async with bulkhead:
            await start(service)

    ways = {
        "deadline": lambda: bulkhead.acall(acall_within, 0.1, "the call", start, service),
        "cancelled": lambda: bulkhead.acall(start, service),
        "block": block,
        "decorated": lambda: bulkhead(start)(service),
    }

    async def main():
        calling = asyncio.ensure_future(ways[how]())
        await asyncio.to_thread(wait_until, lambda: service.inside)
        if how != "deadline":
            calling.cancel()
        with pytest.raises((asyncio.CancelledError, TimeoutError, asyncio.TimeoutError)):
            await calling
        with pytest.raises(BulkheadFullError, match="abandoned calls hold 1"):
            await bulkhead.acall(int)
        service.go_on.set()
        patient = Bulkhead.model_validate({**bulkhead.model_dump(), "max_wait": 20})
        patient._own = bulkhead._own
        return await patient.acall(int)

    assert asyncio.run(main()) == 0
    assert service.most == 1


@pytest.mark.parametrize("places", [1, 3])
def test_coroutines_that_delay_their_cancellation_never_exceed_the_places(service, places):
    bulkhead = Bulkhead(places)

    async def swallows():
        until = time.monotonic() + 0.2
        with service.counted():
            while (left := until - time.monotonic()) > 0:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(left)

    async def main():
        calls = [bulkhead.acall(acall_within, 0.05, "the call", swallows) for _ in range(3 * places)]
        await asyncio.gather(*calls, return_exceptions=True)

    asyncio.run(main())
    assert (service.most, service.calls, service.inside) == (places, 3 * places, 0)


@pytest.mark.parametrize("wait", [asyncio.shield, lambda task: asyncio.wait([task])])
async def test_a_task_that_a_cancelled_coroutine_left_holds_its_place(service, wait):
    bulkhead, left = Bulkhead(1, max_wait=0), []

    async def leaves_a_task():
        left.append(asyncio.create_task(service.ahang()))
        await wait(left[0])

    with pytest.raises(AttemptTimeout):
        await bulkhead.acall(acall_within, 0.05, "the call", leaves_a_task)
    with pytest.raises(BulkheadFullError, match="abandoned call"):
        await bulkhead.acall(int)
    left[0].cancel()
    await asyncio.to_thread(wait_until, lambda: not line._lines.by_key)


async def test_looks_that_take_long_are_few(service, monkeypatch):
    monkeypatch.setattr(overdue, "_next_look", 0.0)
    monkeypatch.setattr(overdue, "LONG_LOOK", -1.0)
    bulkhead, left = Bulkhead(1, max_wait=0), []

    async def leaves_a_task():
        left.append(asyncio.create_task(service.ahang()))
        await asyncio.shield(left[0])

    with pytest.raises(AttemptTimeout):
        await bulkhead.acall(acall_within, 0.01, "the call", service.ahang)
    assert overdue._next_look > 0
    monkeypatch.setattr(overdue, "_next_look", time.monotonic() + 60)
    with pytest.raises(AttemptTimeout):
        await bulkhead.acall(acall_within, 0.01, "the call", leaves_a_task)
    assert await bulkhead.acall(int) == 0
    left[0].cancel()


async def test_a_service_that_was_started_on_the_side_holds_a_place_for_some_time_only(service, monkeypatch):
    monkeypatch.setattr(overdue, "TASK_SECONDS", 0.1)
    bulkhead = Bulkhead(1)

    async def connects():
        reader = asyncio.create_task(service.ahang())
        await asyncio.sleep(60)
        return reader

    with pytest.raises(AttemptTimeout):
        await bulkhead.acall(acall_within, 0.05, "the call", connects)
    assert await bulkhead.acall(lambda: service.inside) == 1


async def test_a_coroutine_that_ended_at_its_cancellation_gives_its_place_back_at_once(service):
    bulkhead = Bulkhead(1, max_wait=0)

    async def ends():
        # Timers, and the readers of connections, keep the context of the call, and do not run.
        asyncio.get_running_loop().call_later(30, int)
        await asyncio.gather(service.ahang(), service.ahang())

    for _ in range(3):
        with pytest.raises(AttemptTimeout):
            await bulkhead.acall(acall_within, 0.05, "the call", ends)
        assert await bulkhead.acall(int) == 0


async def test_threads_and_tasks_of_others_are_not_taken_for_the_calls_own(service):
    bulkhead = Bulkhead(1, max_wait=0)
    others = [asyncio.create_task(asyncio.to_thread(service.hang)), asyncio.create_task(asyncio.sleep(60))]
    await asyncio.to_thread(wait_until, lambda: service.inside)
    with pytest.raises(AttemptTimeout):
        await bulkhead.acall(acall_within, 0.05, "the call", asyncio.sleep, 60)
    assert await bulkhead.acall(int) == 0
    service.go_on.set()
    others[1].cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def test_a_child_process_holds_its_place_until_it_is_dead():
    bulkhead = Bulkhead(1)
    calling = asyncio.ensure_future(bulkhead.acall(acall_in_process, time.sleep, (60,), {}, 60))
    await asyncio.sleep(0.5)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert await asyncio.wait_for(bulkhead.acall(int), 30) == 0
