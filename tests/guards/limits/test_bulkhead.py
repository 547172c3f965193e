"""At most so many calls at a time, in one process: threads, event loops, and both in one line."""

import asyncio
import contextlib
import copy
import gc
import pickle
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from prefect_resilience.base.drive import drive
from prefect_resilience.guards.limits import line
from prefect_resilience.guards.limits.bulkhead import Bulkhead
from prefect_resilience.guards.limits.guarding import BulkheadFullError
from tests.guards.limits.hanging import Service, wait_until


def waiting(bulkhead):
    key = f"bulkhead:{bulkhead.name or bulkhead._own}"
    return len(line._lines.by_key[key].waiting) if key in line._lines.by_key else 0


@pytest.fixture(autouse=True)
def nothing_is_left(little_to_collect):
    yield
    gc.collect()
    assert line._lines.by_key == {}


async def test_tasks_share_the_places_and_the_loop_goes_on():
    room, bulkhead = Service(), Bulkhead(2)
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.001)

    ticking = asyncio.create_task(tick())
    # More callers than the loop has threads: none of them may wait in one.
    await asyncio.gather(*(bulkhead.acall(room.ahang, 0.005) for _ in range(60)))
    ticking.cancel()
    assert (room.most, room.calls) == (2, 60)
    assert ticks > 20


def test_the_first_to_come_is_the_first_to_go_in():
    bulkhead, order = Bulkhead(1), []
    with ThreadPoolExecutor(8) as pool, bulkhead:
        for number in range(8):
            pool.submit(bulkhead.call, order.append, number)
            wait_until(lambda expected=number + 1: waiting(bulkhead) == expected)
    assert order == list(range(8))


@pytest.mark.parametrize("max_wait", [0, 0.05])
def test_no_place_in_time(max_wait):
    bulkhead = Bulkhead(1, max_wait=max_wait, name="narrow")
    with bulkhead:
        began = time.monotonic()
        with pytest.raises(BulkheadFullError, match=r"bulkhead 'narrow' is full: its only place") as caught:
            bulkhead.call(int)
        assert time.monotonic() - began >= max_wait
    assert caught.value.waited >= max_wait
    assert (caught.value.name, caught.value.max_concurrent) == ("narrow", 1)
    assert bulkhead.call(int) == 0  # and nothing was lost


def test_the_place_of_a_loop_that_was_closed_passes_on():
    bulkhead = Bulkhead(1)
    ticket = drive(bulkhead.acquire())
    loop = asyncio.new_event_loop()
    task = loop.create_task(bulkhead.acall(asyncio.sleep, 0))
    loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()
    with ThreadPoolExecutor(1) as pool:
        after = pool.submit(bulkhead.call, int)
        wait_until(lambda: waiting(bulkhead) == 2)
        drive(bulkhead.finish(ticket))
        assert after.result(10) == 0
    task.get_coro().close()


def test_without_a_name_each_is_its_own_and_copies_are_the_same():
    bulkhead = Bulkhead(1, max_wait=0)
    with bulkhead:
        assert Bulkhead(1, max_wait=0).call(int) == 0
        for same in (copy.copy(bulkhead), copy.deepcopy(bulkhead), pickle.loads(pickle.dumps(bulkhead))):
            with pytest.raises(BulkheadFullError):
                same.call(int)


def test_an_edited_limit_holds_at_once():
    wider = Bulkhead(2, max_wait=0, name="edited")
    with Bulkhead(1, name="edited"), wider, pytest.raises(BulkheadFullError):
        wider.call(int)


def test_callers_who_come_and_go_lose_no_place():
    room, until, dice = Service(), time.monotonic() + 1, random.Random(7)
    patience = (None, 0, 0.001, 0.01)

    def bulkhead():
        return Bulkhead(3, max_wait=dice.choice(patience), name="busy")

    def thread():
        while time.monotonic() < until:
            with contextlib.suppress(BulkheadFullError):
                bulkhead().call(room.hang, dice.random() / 500)

    async def visit():
        async with bulkhead():
            await room.ahang(dice.random() / 500)

    async def tasks():
        while time.monotonic() < until:
            visits = [asyncio.create_task(visit()) for _ in range(10)]
            await asyncio.sleep(dice.random() / 200)
            for task in visits:
                if dice.random() < 0.4:
                    task.cancel()
            await asyncio.gather(*visits, return_exceptions=True)

    threads = [threading.Thread(target=thread) for _ in range(4)]
    threads += [threading.Thread(target=lambda: asyncio.run(tasks())) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(20)
    assert not any(each.is_alive() for each in threads)
    assert (room.most, room.inside) == (3, 0)
