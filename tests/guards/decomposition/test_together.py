"""Several calls at a time: order kept, none begun after a failure, none left behind."""

from __future__ import annotations

import asyncio
import threading

import pytest

from prefect_resilience.calls.decomposing import NOT_RUN, Raised, atogether, together


def fails():
    raise ValueError("no")


@pytest.mark.parametrize("parallel", [1, 2])
def test_in_threads(parallel):
    assert together([lambda: 1, lambda: 2, lambda: 3], parallel) == [1, 2, 3]


def test_none_is_begun_after_a_failure():
    first, second, third = together([lambda: 1, fails, lambda: 3], 1)
    assert (first, isinstance(second, Raised), third) == (1, True, NOT_RUN)


def test_the_end_of_the_program_is_raised():
    def ends():
        raise KeyboardInterrupt

    for parallel in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            together([ends, lambda: 1, lambda: 1], parallel)


def test_on_the_loop():
    async def one():
        return 1

    async def bad():
        raise ValueError("no")

    async def scenario():
        first, second, third = await atogether([one, bad, one], 1)
        return first, isinstance(second, Raised), third

    assert asyncio.run(scenario()) == (1, True, NOT_RUN)


def test_cancelled_it_cancels_what_runs():
    ended = threading.Event()

    async def waits():
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    async def scenario():
        running = asyncio.ensure_future(atogether([waits], 2))
        await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(scenario())
    assert ended.is_set()
