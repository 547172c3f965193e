"""An awaitable is cancelled at its deadline, and nothing else is mistaken for that."""

import asyncio
import time

import anyio
import pytest

from prefect_resilience.errors.exceptions import AttemptTimeout
from prefect_resilience.guards.timeouts.timeout import acall_within


async def test_an_overdue_task_is_really_cancelled():
    seen = []

    async def slow():
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    start = time.monotonic()
    with pytest.raises(AttemptTimeout, match=r"'slow' took longer than 0\.1 s"):
        await acall_within(0.1, "'slow'", slow)
    assert time.monotonic() - start < 10
    assert seen == ["cancelled"]
    await asyncio.sleep(0)  # the task itself may go on
    assert not asyncio.current_task().cancelled()


async def test_a_timeout_error_of_the_users_own_passes():
    mine = TimeoutError("mine")

    async def fail():
        raise mine

    with pytest.raises(TimeoutError) as caught:
        await acall_within(5, "the call", fail)
    assert caught.value is mine

    with pytest.raises(asyncio.TimeoutError) as caught:
        await acall_within(5, "the call", lambda: asyncio.wait_for(asyncio.sleep(30), 0.05))
    assert not isinstance(caught.value, AttemptTimeout)


async def test_a_cancellation_from_outside_stays_one():
    begun = asyncio.Event()

    async def slow():
        begun.set()
        await asyncio.sleep(30)

    task = asyncio.create_task(acall_within(20, "the call", slow))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_nested_deadlines_each_end_their_own():
    async def inner():
        with pytest.raises(AttemptTimeout, match="the inner"):
            await acall_within(0.05, "the inner", anyio.sleep_forever)
        return "went on"

    assert await acall_within(5, "the outer", inner) == "went on"

    async def outer():
        await acall_within(5, "the inner", anyio.sleep_forever)

    with pytest.raises(AttemptTimeout, match="the outer"):
        await acall_within(0.05, "the outer", outer)

    with anyio.move_on_after(0.05) as scope:
        await acall_within(5, "the call", anyio.sleep_forever)
    assert scope.cancelled_caught
