"""A place is held until its call has really ended: threads left at a deadline, and what coroutines leave."""

import asyncio
import contextlib
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest

from prefect_resilience.errors.exceptions import AttemptTimeout
from prefect_resilience.guards.limits import line
from prefect_resilience.guards.limits.bulkhead import Bulkhead
from prefect_resilience.guards.limits.guarding import BulkheadFullError
from prefect_resilience.guards.timeouts import overdue
from prefect_resilience.guards.timeouts.stream import iterate_with_deadline
from prefect_resilience.guards.timeouts.threads import call_with_deadline, overdue_calls
from prefect_resilience.guards.timeouts.timeout import acall_within
from tests.guards.limits.hanging import nothing_is_left as nothing_is_left
from tests.guards.limits.hanging import service as service
from tests.guards.limits.hanging import wait_until
from tests.guards.limits.processes import acall_in_process


def within(service, seconds=20.0, deadline=0.05):
    """A call that is left at its deadline."""
    call_with_deadline(service.hang, (seconds,), {}, deadline)


@pytest.mark.parametrize("places", [1, 2, 5])
def test_overdue_threads_never_exceed_the_places(service, places):
    bulkhead = Bulkhead(places)

    def attempts():
        for _ in range(2):
            with pytest.raises(AttemptTimeout):
                bulkhead.call(within, service, 1.0)

    with ThreadPoolExecutor(2 * places) as pool:
        for call in [pool.submit(attempts) for _ in range(2 * places)]:
            call.result()
    wait_until(lambda: not service.inside)
    assert (service.most, service.calls) == (places, 4 * places)


def test_a_refusal_says_that_overdue_calls_hold_the_places(service):
    bulkhead = Bulkhead(2, max_wait=0.05, name="narrow")
    with pytest.raises(AttemptTimeout):
        bulkhead.call(within, service)
    bulkhead.call(int)
    with bulkhead, pytest.raises(BulkheadFullError, match="; abandoned calls hold 1 of them until") as one:
        bulkhead.call(int)
    with pytest.raises(AttemptTimeout):
        bulkhead.call(within, service)
    with pytest.raises(BulkheadFullError, match="; abandoned calls hold 2 of them until they end") as two:
        bulkhead.call(int)
    assert (one.value.overdue, two.value.overdue) == (1, 2)
    assert pickle.loads(pickle.dumps(two.value)).overdue == 2
    assert "abandoned" not in str(BulkheadFullError("narrow", 2, 0.05))
    service.go_on.set()
    wait_until(lambda: not line._lines.by_key)
    assert bulkhead.call(int) == 0


def test_without_a_max_wait_the_wait_behind_overdue_calls_is_bounded(service, monkeypatch):
    monkeypatch.setattr(line, "OVERDUE_SECONDS", 0.3)
    monkeypatch.setattr(line, "LOOK_SECONDS", 0.05)
    bulkhead = Bulkhead(1)
    with pytest.raises(AttemptTimeout):
        bulkhead.call(within, service)
    with pytest.raises(BulkheadFullError, match="abandoned calls hold 1"):
        bulkhead.call(int)
    with pytest.raises(BulkheadFullError, match="abandoned calls hold 1"):
        asyncio.run(bulkhead.acall(int))


def test_every_limit_around_an_overdue_call_is_held(service):
    outer, inner = Bulkhead(1, max_wait=0), Bulkhead(1, max_wait=0)

    @outer
    def answers():
        with contextlib.suppress(AttemptTimeout):
            inner.call(within, service)
        return "went on without it"

    assert answers() == "went on without it"
    for limit in (outer, inner):
        with pytest.raises(BulkheadFullError, match="abandoned call"):
            limit.call(int)


# -- generators


def test_a_generator_that_hangs_holds_its_place(service):
    bulkhead, closed = Bulkhead(1, max_wait=0), threading.Event()

    def chunks():
        try:
            yield 1
            service.hang()
            yield 2
        finally:
            closed.set()

    @bulkhead
    def read():
        yield from iterate_with_deadline(chunks(), None, 0.1)

    reading = read()
    assert next(reading) == 1
    with pytest.raises(AttemptTimeout):
        next(reading)
    assert overdue_calls() == 1
    with pytest.raises(BulkheadFullError, match="abandoned call"):
        bulkhead.call(int)
    service.go_on.set()
    assert closed.wait(20)
    wait_until(lambda: not line._lines.by_key)
    assert list(iterate_with_deadline(iter_of(2), 5, 5)) == [0, 1]
    assert overdue_calls() == 0


def iter_of(number):
    yield from range(number)


# -- the way it is known


def test_a_place_that_cannot_be_given_back_is_told_and_the_others_are(service, caplog):
    given_back = threading.Event()

    def fails():
        raise RuntimeError("no")

    def leave(then):
        ticket = object()
        overdue.begins(ticket)
        with pytest.raises(AttemptTimeout) as caught:
            within(service)
        assert overdue.still_runs(ticket, caught.value, then)

    leave(fails)
    leave(given_back.set)
    service.go_on.set()
    assert given_back.wait(20)
    wait_until(lambda: "could not be released" in caplog.text)


# -- coroutines


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
