"""Generators: each chunk and the whole have a deadline, and the protocol passes through."""

import asyncio
import contextlib
import contextvars
import gc
import logging
import threading
import time
import weakref

import pytest

from prefect_resilience.errors.exceptions import AttemptTimeout
from prefect_resilience.guards.timeouts.stream import aiterate_with_deadline, iterate_with_deadline
from tests.guards.limits.hanging import wait_until


def test_chunks_and_the_returned_value_pass():
    def count():
        yield from range(3)
        return "end"

    seen = []

    def outer():
        seen.append((yield from iterate_with_deadline(count(), 5, 5)))

    assert list(outer()) == [0, 1, 2]
    assert seen == ["end"]


def test_send_and_throw_pass():
    def echo():
        got = yield "ready"
        while True:
            try:
                got = yield got
            except KeyError as error:
                got = ("caught", error)

    stream = iterate_with_deadline(echo(), 5, None)
    assert next(stream) == "ready"
    assert stream.send("a") == "a"
    mine = KeyError("mine")
    assert stream.throw(mine) == ("caught", mine)
    other = ValueError("not caught")
    with pytest.raises(ValueError, match="not caught") as caught:
        stream.throw(other)
    assert caught.value is other


def test_close_runs_the_generators_cleanup_before_it_returns():
    closed = []

    def tidy():
        try:
            yield 1
        finally:
            closed.append(threading.current_thread())

    stream = iterate_with_deadline(tidy(), 5, 5)
    next(stream)
    stream.close()
    assert len(closed) == 1
    assert closed[0] is not threading.current_thread()

    stream = iterate_with_deadline(tidy(), 5, 5)
    next(stream)
    del stream
    gc.collect()
    wait_until(lambda: len(closed) == 2)


def test_all_steps_share_a_thread_and_a_context():
    var = contextvars.ContextVar("var")

    def steps():
        var.set("set inside")
        for _ in range(3):
            yield threading.get_ident(), var.get()

    assert len(set(iterate_with_deadline(steps(), 5, 5))) == 1
    assert var.get("outside") == "outside"


def test_idle_bounds_the_wait_for_each_chunk(caplog):
    caplog.set_level(logging.WARNING, "prefect_resilience.timeout")
    go_on, closed = threading.Event(), threading.Event()

    def stuck():
        try:
            yield 1
            go_on.wait(60)
            yield 2
        finally:
            closed.set()

    stream = iterate_with_deadline(stuck(), 30, 1.5)
    assert next(stream) == 1
    start = time.monotonic()
    with pytest.raises(AttemptTimeout, match=r"wait for the next chunk of 'stuck' took longer than 1\.5 s"):
        next(stream)
    assert time.monotonic() - start < 25
    assert "still running" in caplog.text
    assert not closed.is_set()  # it is blocked, so nobody can close it
    go_on.set()
    assert closed.wait(30)  # it is closed when it comes back
    with pytest.raises(StopIteration):
        next(stream)


def test_total_counts_only_the_wait_for_the_producer():
    def steady():
        while True:
            time.sleep(0.05)
            yield 1

    stream = iterate_with_deadline(steady(), 2, None)
    next(stream)
    time.sleep(2.2)  # the consumer's own time
    next(stream)
    with pytest.raises(AttemptTimeout, match=r"wait for all chunks of 'steady' took longer than 2 s"):
        list(stream)


def test_the_users_timeout_error_passes():
    mine = TimeoutError("mine")

    def fail():
        yield 1
        raise mine

    stream = iterate_with_deadline(fail(), 5, 5)
    next(stream)
    with pytest.raises(TimeoutError) as caught:
        next(stream)
    assert caught.value is mine


class Big:
    pass


def give(value):
    yield value


def fail(value):
    yield 1
    raise ValueError(value)


def throw_back(value):
    yield 1


@pytest.mark.parametrize("producer", [give, fail, throw_back])
def test_nothing_is_kept_alive(producer):
    """Neither by the producer's thread, nor by a reference cycle that waits for the collector."""
    big = Big()
    ref = weakref.ref(big)
    gc.disable()
    try:
        stream = iterate_with_deadline(producer(big), 5, 5)
        with contextlib.suppress(ValueError):
            next(stream)
            if producer is throw_back:
                stream.throw(ValueError(big))
            next(stream, None)
        del stream, big
        wait_until(lambda: ref() is None)
    finally:
        gc.enable()


async def drain(stream):
    async for _ in stream:
        pass


async def test_async_chunks_pass_and_asend_and_athrow():
    async def echo():
        got = yield "ready"
        while got != "stop":
            try:
                got = yield got
            except KeyError:
                got = "caught"

    stream = aiterate_with_deadline(echo(), 5, 5)
    assert await anext(stream) == "ready"
    assert await stream.asend("a") == "a"
    assert await stream.athrow(KeyError("x")) == "caught"
    with pytest.raises(StopAsyncIteration):
        await stream.asend("stop")


async def test_async_idle_cancels_and_closes():
    closed = []

    async def stuck():
        try:
            yield 1
            await asyncio.sleep(30)
        finally:
            closed.append(True)

    stream = aiterate_with_deadline(stuck(), 30, 0.1)
    assert await anext(stream) == 1
    start = time.monotonic()
    with pytest.raises(AttemptTimeout, match=r"wait for the next chunk of 'stuck' took longer than 0\.1 s"):
        await anext(stream)
    assert time.monotonic() - start < 10
    assert closed == [True]


async def test_async_total_counts_only_the_wait_for_the_producer():
    async def steady():
        while True:
            await asyncio.sleep(0.05)
            yield 1

    stream = aiterate_with_deadline(steady(), 2, None)
    await anext(stream)
    await asyncio.sleep(2.2)
    await anext(stream)
    with pytest.raises(AttemptTimeout, match="wait for all chunks of 'steady'"):
        await drain(stream)


async def test_async_close_closes():
    closed = []

    async def tidy():
        try:
            yield 1
        finally:
            await asyncio.sleep(0)
            closed.append(True)

    stream = aiterate_with_deadline(tidy(), 5, 5)
    await anext(stream)
    await stream.aclose()
    assert closed == [True]


async def test_async_errors_pass():
    mine = TimeoutError("mine")

    async def fail():
        yield 1
        raise mine

    stream = aiterate_with_deadline(fail(), 5, 5)
    await anext(stream)
    with pytest.raises(TimeoutError) as caught:
        await anext(stream)
    assert caught.value is mine
