"""A deadline bounds everything inside: attempts, delays, waits, fallbacks, requests, children."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.deadlines import ALONE, SOON, Outcome, measure
from prefect_resilience import (
    Backoff,
    CircuitBreaker,
    ConfigurationError,
    DeadlineExceeded,
    Fallback,
    Retry,
    classify,
    deadline,
    get_metrics,
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
LATE = 15.0
"""A busy machine may be late; a call that nothing ends takes twice as long."""


@pytest.mark.parametrize("nesting", ALONE, ids=lambda nesting: nesting.__name__)
def test_it_ends_everything_inside_and_nothing_is_begun_after_it(nesting: Any, tmp_path: Any) -> None:
    outcome = measure(nesting.__name__, 0.5, str(tmp_path))
    assert outcome == Outcome(outcome.late, outcome.begun, [])
    assert outcome.late < LATE


def passed() -> CallDeadline:
    return CallDeadline(time.monotonic() - 1, 60, "billing.py:12")


def run_late(call: Any) -> Any:
    with deadlines.setting(current_deadline, passed()):
        return call()


def test_the_error_says_which_deadline_and_is_not_retried_by_any_guard() -> None:
    events: list[Any] = []
    stop, calls = on("deadline.exceeded", events.append), []

    @resilient(retry=Retry(attempts=3, backoff=Backoff.none(), retry_on=[Exception]), name="charge")
    def charge() -> None:
        calls.append(1)
        with deadline(0.05):
            hang()

    @resilient(retry=Retry(attempts=3, retry_on=[DeadlineExceeded]))
    def hang() -> None:
        calls.append(2)
        time.sleep(HANGS)

    before = get_metrics().total_attempts
    with pytest.raises(DeadlineExceeded, match=r"'hang' passed the deadline of 0.05 s set at test_.*:\d+"):
        charge()
    stop()
    assert calls == [1, 2]
    assert get_metrics().total_attempts == before + 2
    assert [(event.name, event.payload["seconds"]) for event in events] == [(events[0].name, 0.05)]
    assert "hang" in events[0].name


def test_it_is_a_timeout_for_policies_and_not_retryable() -> None:
    info = classify(DeadlineExceeded(60, "billing.py:12"))
    assert (info.category, info.code, info.retryable) == ("timeout", "DEADLINE_EXCEEDED", False)
    wrapped = RuntimeError("the step failed")
    wrapped.__cause__ = DeadlineExceeded(60, "billing.py:12")
    for error in (wrapped, ExceptionGroup("two steps", [wrapped])):
        verdict = Retry(retry_on=[Exception]).decide(classify(error), 1, exception=error)
        assert verdict.why == "the deadline has passed"
    back = pickle.loads(pickle.dumps(NotBegun(60, "billing.py:12")))
    assert (str(back), back.set_at) == (
        "not begun: the deadline of 60 s set at billing.py:12 has passed",
        "billing.py:12",
    )


def test_after_it_no_guard_is_asked_and_no_circuit_counts() -> None:
    circuit = CircuitBreaker("after-a-deadline", failure_threshold=1, store="memory://")
    calls: list[int] = []
    guarded = resilient(circuit=circuit, retry=SOON)(lambda: calls.append(1))
    with pytest.raises(NotBegun, match=r"deadline of 60 s set at billing\.py:12"):
        run_late(guarded)
    assert calls == []
    assert circuit.state == "closed"


def test_the_call_of_one_that_waited_for_its_guards_too_long_is_not_begun() -> None:
    class Slow(CircuitBreaker):
        def acquire(self, *waiting: Any) -> Any:
            ticket = yield from super().acquire(*waiting)
            time.sleep(0.2)
            return ticket

    slow = Slow("slow-to-enter", failure_threshold=1, store="memory://")
    calls: list[int] = []
    with pytest.raises(NotBegun):
        resilient(circuit=slow, deadline=0.1, retry=None)(lambda: calls.append(1))()
    assert calls == []
    assert slow.state == "closed"


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
    monkeypatch.setattr(deadlines, "_clock", lambda: "of another machine")
    before = time.monotonic()
    there = pickle.loads(sent)
    assert replace(there, until=0) == replace(limit, until=0)
    assert there.until >= before + 4


def test_a_machine_without_boot_ids_sends_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    deadlines._clock.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(deadlines, "Path", lambda name: _Missing())
        assert deadlines._clock() is None
    deadlines._clock.cache_clear()
    assert deadlines._clock() is not None


class _Missing:
    def read_text(self) -> str:
        raise FileNotFoundError


@pytest.mark.parametrize("value", [0, -1, True, "soon", 1e300])
def test_what_is_no_duration_is_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="duration"):
        deadline(value)


def test_a_delay_that_would_pass_it_is_not_begun() -> None:
    @resilient(retry=Retry(attempts=3, backoff=Backoff.constant(9)), deadline=5)
    def refused() -> None:
        raise ConnectionError("refused")

    began = time.monotonic()
    with pytest.raises(ConnectionError) as caught:
        refused()
    assert time.monotonic() - began < 5
    assert "waiting 9 s would pass the deadline of 5 s set at " in str(caught.value.__notes__)


def test_a_stream_that_is_closed_late_is_closed_in_peace() -> None:
    closed: list[int] = []

    def chunks() -> Any:
        try:
            yield from range(9)
        finally:
            closed.append(1)

    limit = CallDeadline(time.monotonic() + 0.2, 0.2, "a.py:1")
    late = iterate_with_deadline(chunks(), limit=limit)
    assert next(late) == 0
    time.sleep(0.3)
    late.close()
    assert closed == [1]

    async def achunks() -> Any:
        for number in chunks():
            yield number

    async def read() -> list[int]:
        return [number async for number in aiterate_with_deadline(achunks(), limit=passed())]

    with pytest.raises(DeadlineExceeded):
        asyncio.run(read())


@pytest.mark.parametrize("isasync", [False, True])
def test_the_stream_of_a_fallback_is_bounded_too(isasync: bool) -> None:
    def instead() -> Any:
        yield 1
        leave.wait(HANGS)

    async def instead_async() -> Any:
        yield 1
        await asyncio.sleep(HANGS)

    def broken() -> Any:
        yield from ()
        raise ConnectionError("refused")

    async def broken_async() -> Any:
        for chunk in broken():
            yield chunk

    async def read() -> None:
        async for chunk in resilient(deadline=0.3, retry=None, fallback=instead_async)(broken_async)():
            seen.append(chunk)

    bounded = resilient(deadline=0.3, retry=None, fallback=instead)(broken)
    seen: list[int] = []
    leave = threading.Event()
    try:
        with pytest.raises(DeadlineExceeded, match="instead"):
            asyncio.run(read()) if isasync else seen.extend(bounded())
    finally:
        leave.set()
