"""Generator tasks: retried before the first chunk, never restarted after it."""

from __future__ import annotations

import asyncio
import time

import pytest
from prefect import task

from prefect_resilience import (
    ResilientTask,
    resilient_task,
)

pytestmark = pytest.mark.api


def breaking(calls):
    def body():
        calls.append(1)
        yield "a"
        raise ValueError("bad")

    return body


def test_prefects_own_retries_restart_it_as_in_prefect(mode):
    chunks, error = mode.read(mode.stream(breaking([]), retries=1))
    assert chunks == ["a", "a"]
    assert isinstance(error, ValueError)
    wrapped = ResilientTask.wrap(task(retries=1)(mode.stream(breaking([])).guard.fn))
    assert mode.read(wrapped)[0] == ["a", "a"]
    assert mode.read(wrapped.with_options(name="other"))[0] == ["a", "a"]


def test_a_stream_that_prefects_own_timeout_cut_off_is_not_restarted(mode):
    if mode.isasync:

        @resilient_task(timeout_seconds=0.2)
        async def slow():
            yield 1
            await asyncio.sleep(60)
    else:

        @resilient_task(timeout_seconds=0.2)
        def slow():
            yield 1
            for _ in range(600):  # in a thread, a timeout takes effect between two statements
                time.sleep(0.1)

    chunks, error = mode.read(slow)
    assert chunks == [1]
    assert isinstance(error, TimeoutError)


def test_a_fallback_streams_in_its_place(mode):
    def body():
        raise ConnectionResetError("cut")
        yield

    def instead():
        yield from [7, 8]

    assert mode.read(mode.stream(body, retry=None, fallback=instead)) == ([7, 8], None)
    assert mode.read(mode.stream(body, retry=None, fallback=lambda: 9)) == ([9], None)
