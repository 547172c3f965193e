"""What an async generator holds over a `yield` is left where it was entered, with a deadline and without."""

import asyncio
import contextlib
import contextvars

import anyio
import pytest

from prefect_resilience.errors.exceptions import AttemptTimeout
from prefect_resilience.guards.timeouts import stream
from prefect_resilience.guards.timeouts.stream import aiterate_with_deadline

LONG = 60.0
WITHIN = {"no deadline": (None, None), "total": (LONG, None), "idle": (None, LONG)}

within = pytest.mark.parametrize("bounds", WITHIN.values(), ids=WITHIN)

_var: contextvars.ContextVar[str] = contextvars.ContextVar("var")


@contextlib.asynccontextmanager
async def reply():
    """A reply that is read by a task of its own, as clients of models have it."""
    send, receive = anyio.create_memory_object_stream(0)

    async def read():
        async with send:
            for word in ("a", "b", "c"):
                await asyncio.sleep(0)
                await send.send(word)
        await anyio.sleep_forever()

    async with anyio.create_task_group() as group, receive:
        group.start_soon(read)
        try:
            yield receive
        finally:
            group.cancel_scope.cancel()


@within
async def test_task_groups_scopes_and_context_variables(bounds):
    tasks = set()

    async def words():
        token = _var.set("inside")
        with anyio.fail_after(LONG):
            async with reply() as stream:
                async for word in stream:
                    tasks.add(asyncio.current_task())
                    assert _var.get() == "inside"
                    with anyio.CancelScope():
                        yield word
        tasks.add(asyncio.current_task())
        _var.reset(token)
        yield "end"

    heard = []
    async for word in aiterate_with_deadline(words(), *bounds):
        heard.append(word)
        await asyncio.sleep(0)
    assert heard == ["a", "b", "c", "end"]
    assert len(tasks) == 1
    assert _var.get("outside") == "outside"


async def test_an_overdue_step_that_comes_to_something_hands_it_on():
    async def stubborn():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(LONG)
        yield "late"
        with anyio.move_on_after(0.01):
            yield "then"
        yield "last"

    source = aiterate_with_deadline(stubborn(), None, 0.1)
    assert await anext(source) == "late"
    assert await anext(source) == "then"
    await asyncio.sleep(0.02)
    assert await anext(source) == "last"

    async def fails():
        try:
            await asyncio.sleep(LONG)
        finally:
            raise RuntimeError("could not be closed")
        yield

    with pytest.raises(RuntimeError, match="could not be closed"):
        await anext(aiterate_with_deadline(fails(), None, 0.01))


async def test_a_step_that_cannot_be_cancelled_is_left_alone(monkeypatch, caplog):
    monkeypatch.setattr(stream, "PATIENCE", 0.05)
    done = asyncio.Event()

    async def shielded():
        with anyio.CancelScope(shield=True):
            while not done.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await done.wait()
        yield 1

    with pytest.raises(AttemptTimeout):
        await anext(aiterate_with_deadline(shielded(), 0.01))
    assert "was cancelled while it cleaned up" in caplog.text
    done.set()


@within
async def test_a_reader_that_is_cancelled_cancels_the_step(bounds):
    order = []
    begun = asyncio.Event()

    async def waits():
        try:
            with anyio.CancelScope():
                begun.set()
                await asyncio.sleep(LONG)
                yield
        finally:
            await asyncio.sleep(0)
            order.append("closed")

    async def read():
        async for _ in aiterate_with_deadline(waits(), *bounds):
            pass

    reader = asyncio.create_task(read())
    await begun.wait()
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert order == ["closed"]
    order.clear()
    with pytest.raises(TimeoutError), anyio.fail_after(0.05):
        await read()
    assert order == ["closed"]  # although the reader's scope cancels every wait of the reader


async def test_a_group_that_is_open_may_be_closed_but_not_hide_an_error():
    async def beside():
        async with anyio.create_task_group():
            yield 1

    async def untidy():
        async with anyio.create_task_group():
            try:
                yield 1
            finally:
                raise KeyError("mine")

    source = aiterate_with_deadline(beside())
    await anext(source)
    await source.aclose()
    source = aiterate_with_deadline(untidy())
    await anext(source)
    with pytest.raises(BaseException, match="unhandled errors in a TaskGroup") as caught:
        await source.aclose()
    assert [type(error) for error in caught.value.exceptions] == [KeyError]


async def test_after_the_end_there_are_no_steps():
    async def one():
        yield 1

    life = stream.OneTask(source := one())
    assert await life.step(source.__anext__) == ("yielded", 1)
    assert await life.close()
    assert (await life.step(source.__anext__))[0] == "cancelled"
    assert await life.close()
