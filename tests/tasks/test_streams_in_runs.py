"""Generator tasks: retried before the first chunk, never restarted after it."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from prefect import flow, task

from prefect_resilience import (
    AttemptTimeout,
    Backoff,
    CircuitBreaker,
    ResilientTask,
    Retry,
    Timeout,
    resilient_task,
)

pytestmark = pytest.mark.api

QUICK = Retry(attempts=3, backoff=Backoff.none())


def collect(mode, made, *args):
    """All chunks of a generator task in a flow, and the error that ended them, if any."""
    held = []

    async def atake():
        async for chunk in made(*args):
            held.append(chunk)

    def take():
        held.extend(iter_all(made(*args)))

    def iter_all(source):
        for chunk in source:
            held.append(chunk)
        return ()

    error = []
    if mode.isasync:

        @flow
        async def scenario():
            try:
                await atake()
            except Exception as caught:
                error.append(caught)

        asyncio.run(scenario())
    else:

        @flow
        def scenario():
            try:
                take()
            except Exception as caught:
                error.append(caught)

        scenario()
    return held, error[0] if error else None


def generator(mode, body, **options):
    """A generator task of this mode from a plain generator function."""
    if not mode.isasync:
        return resilient_task(**options)(body)

    async def stream():
        for chunk in body():
            await asyncio.sleep(0)
            yield chunk

    return resilient_task(**options)(stream)


def test_chunks_come_through(mode):
    assert collect(mode, generator(mode, lambda: (yield from [1, 2, 3]))) == ([1, 2, 3], None)


@pytest.mark.smoke
def test_before_the_first_chunk_it_is_retried(mode):
    calls = []

    def body():
        calls.append(1)
        if len(calls) < 3:
            raise ConnectionResetError("cut")
        yield from "ab"

    assert collect(mode, generator(mode, body, retry=QUICK)) == (["a", "b"], None)
    assert len(calls) == 3


@pytest.mark.smoke
def test_a_stream_that_broke_in_the_middle_is_not_restarted(mode):
    calls = []

    def body():
        calls.append(1)
        yield "a"
        raise ConnectionResetError("cut")

    chunks, error = collect(mode, generator(mode, body, retry=QUICK, fallback=lambda: ["never"]))
    assert chunks == ["a"]
    assert isinstance(error, ConnectionResetError)
    assert any("not restarted" in note for note in error.__notes__)
    assert len(calls) == 1


def breaking(calls):
    def body():
        calls.append(1)
        yield "a"
        raise ValueError("bad")

    return body


def test_prefects_own_retries_restart_it_as_in_prefect(mode):
    chunks, error = collect(mode, generator(mode, breaking([]), retries=1))
    assert chunks == ["a", "a"]
    assert isinstance(error, ValueError)
    wrapped = ResilientTask.wrap(task(retries=1)(generator(mode, breaking([])).guard.fn))
    assert collect(mode, wrapped)[0] == ["a", "a"]
    assert collect(mode, wrapped.with_options(name="other"))[0] == ["a", "a"]


def test_restart_stream_can_forbid_it(mode):
    made = generator(mode, breaking([]), retries=1, restart_stream=False)
    assert collect(mode, made)[0] == ["a"]


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

    chunks, error = collect(mode, slow)
    assert chunks == [1]
    assert isinstance(error, TimeoutError)


def test_a_fallback_streams_in_its_place(mode):
    def body():
        raise ConnectionResetError("cut")
        yield

    def instead():
        yield from [7, 8]

    assert collect(mode, generator(mode, body, retry=None, fallback=instead)) == ([7, 8], None)
    assert collect(mode, generator(mode, body, retry=None, fallback=lambda: 9)) == ([9], None)


def test_circuits_count_streams(mode):
    calls = []

    def body():
        calls.append(1)
        raise ConnectionResetError("cut")
        yield

    circuit = CircuitBreaker(f"stream-{mode.name}", failure_threshold=2)
    made = generator(mode, body, retry=None, circuit=circuit)
    for _ in range(4):
        collect(mode, made)
    assert len(calls) == 2
    assert circuit.state == "open"


def test_idle_bounds_the_gap_between_two_chunks(mode):
    if mode.isasync:

        @resilient_task(retry=None, timeout=Timeout(idle=0.2))
        async def slow():
            yield 1
            await asyncio.sleep(60)
            yield 2
    else:

        @resilient_task(retry=None, timeout=Timeout(idle=0.2))
        def slow():
            yield 1
            leave.wait(60)
            yield 2

    leave = threading.Event()
    started = time.monotonic()
    try:
        chunks, error = collect(mode, slow)
    finally:
        leave.set()
    assert chunks == [1]
    assert isinstance(error, AttemptTimeout)
    assert time.monotonic() - started < 50


def test_what_a_generator_returns_is_kept():
    @resilient_task(retry=QUICK)
    def counting():
        got = yield 1
        return ("returned", got)

    @resilient_task(retry=None, fallback=lambda: [5])
    def broken():
        raise ConnectionResetError("cut")
        yield

    @flow
    def scenario():
        def ended(source):
            chunks = []
            try:
                while True:
                    chunks.append(next(source))
            except StopIteration as stop:
                return chunks, stop.value

        return ended(counting()), ended(broken())

    assert scenario() == (([1], ("returned", None)), ([[5]], [5]))


@pytest.mark.parametrize("how_many", [0, 1])
def test_a_reader_that_stops_early_frees_the_circuit(mode, how_many):
    circuit = CircuitBreaker(f"early-{mode.name}-{how_many}", failure_threshold=1)
    made = generator(mode, lambda: (yield from range(10)), retry=None, circuit=circuit)
    if mode.isasync:

        @flow
        async def scenario():
            source = made()
            for _ in range(how_many):
                await source.__anext__()
            await source.aclose()

        asyncio.run(scenario())
    else:

        @flow
        def scenario():
            source = made()
            for _ in range(how_many):
                next(source)
            source.close()

        scenario()
    assert circuit.state == "closed"
