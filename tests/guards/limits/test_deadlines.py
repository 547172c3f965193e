"""A deadline bounds everything inside: attempts, delays, waits, fallbacks, requests, children."""

import asyncio
import pickle
import threading
import time
from collections.abc import AsyncIterator
from contextvars import copy_context
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.deadlines import ALONE, SOON, measure
from prefect_resilience import (
    Backoff,
    CircuitBreaker,
    ConfigurationError,
    DeadlineExceeded,
    Fallback,
    Retry,
    classify,
    deadline,
    resilient,
)
from prefect_resilience.base import deadlines
from prefect_resilience.base.deadlines import CallDeadline, current_deadline, sooner
from prefect_resilience.errors.exceptions import NotBegun
from prefect_resilience.guards.timeouts.stream import aiterate_with_deadline, iterate_with_deadline
from prefect_resilience.telemetry.payloads import on

# The alarm of pytest-timeout would keep a deadline from interrupting the main thread.
pytestmark = pytest.mark.timeout(60, method="thread")

HANGS = 30.0
CLOSED: list[int] = []
LATE = 15.0
"""A busy machine may be late; a call that nothing ends takes twice as long."""


@pytest.mark.parametrize("nesting", ALONE, ids=lambda nesting: nesting.__name__)
def test_it_ends_everything_inside_and_nothing_is_begun_after_it(nesting: Any, tmp_path: Any) -> None:
    outcome = measure(nesting.__name__, 0.5, str(tmp_path))
    assert outcome.begun_after == []
    assert outcome.late < LATE


def passed() -> CallDeadline:
    return CallDeadline(time.monotonic() - 1, 60, "billing.py:12")


def test_the_error_says_which_deadline_and_is_not_retried_by_any_guard() -> None:
    events: list[Any] = []
    stop, calls = on("deadline.exceeded", events.append), []
    patient = resilient(retry=Retry(attempts=3, backoff=Backoff.none(), retry_on=[Exception]))

    @patient
    def charge() -> None:
        with deadline(0.05):
            hang()

    @patient
    def hang() -> None:
        calls.append(1)
        time.sleep(HANGS)

    with pytest.raises(DeadlineExceeded, match=r"hang' passed the deadline of 0.05 s set at test_.*:\d+"):
        charge()
    stop()
    assert calls == [1]
    assert [event.payload["seconds"] for event in events] == [0.05]


def test_it_is_a_timeout_for_policies_and_not_retryable() -> None:
    error = NotBegun(60, "billing.py:12")
    info = classify(error)
    assert (info.category, info.code, info.retryable) == ("timeout", "DEADLINE_EXCEEDED", False)
    wrapped = RuntimeError("the step failed")
    wrapped.__cause__ = error
    group = ExceptionGroup("two steps", [wrapped])
    verdict = Retry(retry_on=[Exception]).decide(classify(group), 1, exception=group)
    assert verdict.why == "the deadline has passed"
    said = "not begun: the deadline of 60 s set at billing.py:12 has passed"
    assert str(pickle.loads(pickle.dumps(error))) == said


def test_no_call_is_begun_after_it_and_no_circuit_counts() -> None:
    class Slow(CircuitBreaker):
        def acquire(self, *waiting: Any) -> Any:
            ticket = yield from super().acquire(*waiting)
            time.sleep(0.2)
            return ticket

    circuit = Slow("slow-to-enter", failure_threshold=1, store="memory://")
    calls: list[int] = []
    guarded = resilient(circuit=circuit, deadline=0.1, retry=SOON)(lambda: calls.append(1))
    with pytest.raises(NotBegun, match=r"deadline of 0.1 s"):
        guarded()
    with deadlines.setting(current_deadline, passed()), pytest.raises(NotBegun, match="set at billing"):
        guarded()
    assert calls == []
    assert circuit.state == "closed"


def test_a_constant_may_answer_after_it_but_no_function() -> None:
    def hang() -> Any:
        time.sleep(HANGS)

    assert resilient(deadline=0.05, retry=None, fallback=Fallback.value("none"))(hang)() == "none"
    with pytest.raises(DeadlineExceeded) as caught:
        resilient(deadline=0.05, retry=None, fallback=Fallback.last_known_good())(hang)()
    assert "NotBegun" in str(caught.value.__notes__)


def test_the_earlier_of_two_counts() -> None:
    with deadline(60), deadline(0.2) as inner, deadline("1h") as limit:
        assert limit is inner
        assert 0 < limit.remaining() <= 0.2
    early, late = (CallDeadline(at, 1, "x") for at in (1.0, 2.0))
    assert sooner(early, late) is sooner(late, early) is sooner(None, early) is early


def test_it_travels_as_what_is_left_and_on_one_machine_as_the_same_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit = CallDeadline(time.monotonic() + 5, 60, "a.py:1")
    sent = pickle.dumps(limit)
    assert pickle.loads(sent) == limit
    monkeypatch.setattr(deadlines, "Path", lambda name: Path("/nowhere"))  # a machine without boot ids
    before = time.monotonic()
    there = pickle.loads(sent)
    assert replace(there, until=0) == replace(limit, until=0)
    assert there.until >= before + 4


def test_a_child_process_begins_with_it() -> None:
    with deadline(60) as limit:
        carried = deadlines.carry_deadline(current_deadline.get)
    assert copy_context().run(carried) == limit
    assert current_deadline.get() is None


async def test_other_code_in_an_async_block_is_cancelled() -> None:
    with pytest.raises(DeadlineExceeded, match=r"the block passed the deadline of 0.05 s"):
        async with deadline(0.05):
            await asyncio.sleep(HANGS)


@pytest.mark.parametrize("value", [0, -1, True, "soon", 1e300])
def test_what_is_no_duration_is_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="duration"):
        deadline(value)


def test_a_delay_that_would_pass_it_is_not_begun() -> None:
    @resilient(retry=Retry(attempts=3, backoff=Backoff.constant(9)), deadline=5)
    def refused() -> None:
        raise ConnectionError("refused")

    with pytest.raises(ConnectionError) as caught:
        refused()
    assert "waiting 9 s would pass the deadline of 5 s set at " in str(caught.value.__notes__)


def chunks() -> Any:
    try:
        yield 0
    finally:
        CLOSED.append(1)


async def chunks_async() -> Any:
    yield 0


def test_a_stream_ends_and_is_closed_in_peace_after_it() -> None:
    late = iterate_with_deadline(chunks(), limit=CallDeadline(time.monotonic() + 0.2, 0.2, "a.py:1"))
    assert next(late) == 0
    time.sleep(0.3)
    late.close()
    assert CLOSED == [1]
    with pytest.raises(DeadlineExceeded):
        asyncio.run(anext(aiterate_with_deadline(chunks_async(), limit=passed())))


def test_the_stream_of_a_fallback_is_bounded_too() -> None:
    leave = threading.Event()

    def instead() -> Any:
        yield 1
        leave.wait(HANGS)

    async def instead_async() -> Any:
        yield 1
        await asyncio.sleep(HANGS)

    def broken() -> Any:
        yield from ()
        raise ConnectionError("refused")

    async def broken_async() -> AsyncIterator[int]:
        for chunk in broken():
            yield chunk

    async def read() -> None:
        async for _ in resilient(deadline=0.3, retry=None, fallback=instead_async)(broken_async)():
            pass

    with pytest.raises(DeadlineExceeded, match="instead"):
        asyncio.run(read())
    with pytest.raises(DeadlineExceeded, match="instead"):
        list(resilient(deadline=0.3, retry=None, fallback=instead)(broken)())
    leave.set()
