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


async def test_a_late_value_is_handed_on():
    async def late():
        with anyio.CancelScope(shield=True):
            await anyio.sleep(0.1)
        return "done"

    assert await acall_within(0.02, "the call", late) == "done"


def test_deadlines_of_one_loop_end_each_call_at_its_time():
    async def call(seconds):
        with pytest.raises(AttemptTimeout):
            await acall_within(seconds, "the call", anyio.sleep_forever)
        ended.append(seconds)

    async def several():
        await acall_within(20, "the call", asyncio.sleep, 0)  # its timer is left behind
        await asyncio.gather(*map(call, (0.15, 0.05, 0.1)))

    for _ in range(2):  # the second loop of this thread
        ended = []
        asyncio.run(asyncio.wait_for(several(), 30))
        assert ended == [0.05, 0.1, 0.15]
