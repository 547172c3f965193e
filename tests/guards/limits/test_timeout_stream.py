"""Generators: each chunk and the whole have a deadline, and the protocol passes through."""

import asyncio
import threading
import time
from typing import Any

import pytest

from prefect_resilience.errors.exceptions import AttemptTimeout
from prefect_resilience.guards.timeouts.stream import aiterate_with_deadline, iterate_with_deadline

LONG = 60.0


class Stream:
    """A sync or async generator with deadlines, and its reader. It plays a script: a float is a pause, an
    exception is raised, anything else is a chunk."""

    def __init__(self, isasync, runner, script, total, idle):
        self.isasync, self.script, self._runner = isasync, script, runner
        self.go_on, self.closed = threading.Event(), threading.Event()
        self._source: Any = (
            aiterate_with_deadline(self.aplay(), total, idle)
            if isasync
            else iterate_with_deadline(self.play(), total, idle)
        )

    def play(self):
        try:
            for step in self.script:
                if isinstance(step, float):
                    self.go_on.wait(step)
                elif isinstance(step, BaseException):
                    raise step
                else:
                    yield step
        finally:
            self.closed.set()

    async def aplay(self):
        try:
            for step in self.script:
                if isinstance(step, float):
                    await asyncio.sleep(step)
                elif isinstance(step, BaseException):
                    raise step
                else:
                    yield step
        finally:
            await asyncio.sleep(0)
            self.closed.set()

    def _wait(self, step):
        async def awaited():
            return await step

        return self._runner.run(awaited()) if self.isasync else step

    def next(self):
        """The next chunk; None after the last one."""
        return self._wait(anext(self._source, None)) if self.isasync else next(self._source, None)

    def rest(self):
        while self.next() is not None:
            pass

    def close(self):
        self._wait(self._source.aclose() if self.isasync else self._source.close())


@pytest.fixture(params=["sync", "async"])
def stream(request):
    with asyncio.Runner() as runner:
        yield lambda script, total, idle: Stream(request.param == "async", runner, script, total, idle)


def test_chunks_and_the_users_own_timeout_error_pass(stream):
    mine = TimeoutError("mine")
    made = stream([1, 2, mine], 5, 5)
    assert [made.next(), made.next()] == [1, 2]
    with pytest.raises(TimeoutError) as caught:
        made.next()
    assert caught.value is mine


def test_close_runs_the_generators_cleanup_before_it_returns(stream):
    made = stream([1, 2], 5, 5)
    made.next()
    made.close()
    assert made.closed.is_set()


def test_idle_bounds_the_wait_for_each_chunk(stream, caplog):
    made = stream([1, LONG, 2], LONG, 0.5)
    assert made.next() == 1
    with pytest.raises(AttemptTimeout, match=r"wait for the next chunk of 'a?play' took longer than 0\.5 s"):
        made.next()
    # A thread is blocked, so its generator cannot be closed before it comes back.
    assert made.closed.is_set() is made.isasync
    assert ("still running" in caplog.text) is not made.isasync
    made.go_on.set()
    assert made.closed.wait(LONG)
    assert made.next() is None


def test_total_counts_only_the_wait_for_the_producer(stream):
    made = stream([0.05, 1] * 200, 1, None)
    made.next()
    time.sleep(1.1)  # the consumer's own time
    made.next()
    with pytest.raises(AttemptTimeout, match=r"wait for all chunks of 'a?play' took longer than 1 s"):
        made.rest()


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
