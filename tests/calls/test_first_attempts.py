"""A first attempt with only a circuit around it takes a shorter way: nothing else may be different."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from prefect_resilience import CircuitBreaker, Retry
from prefect_resilience.calls.edge.call_options import make_guard
from prefect_resilience.calls.edge.local import LocalRun, call_guarded, current_call
from prefect_resilience.calls.edge.resilient import resilient
from prefect_resilience.calls.first import FirstAttempt
from prefect_resilience.guards.retries.backoff import Backoff
from prefect_resilience.testing import inject

NUMBERS = itertools.count()
TWICE = Retry(2, backoff=Backoff.none())


class Interrupted(BaseException):
    pass


@pytest.fixture
def breaker() -> CircuitBreaker:
    return CircuitBreaker(f"first-{next(NUMBERS)}", failure_threshold=3, open_for=60, store="memory://first")


def outcomes(breaker: CircuitBreaker) -> tuple[int, int]:
    seen = breaker.snapshot()
    return seen.window_calls, seen.window_failures


@pytest.fixture(params=["sync", "async"])
def call(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Calls a plain function, decorated with these options, or a coroutine that does the same."""

    def made(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        if request.param == "sync":
            return resilient(**options)(fn)

        async def coroutine(*args: Any) -> Any:
            await asyncio.sleep(0)
            return fn(*args)

        guarded = resilient(**options)(coroutine)
        return lambda *args: asyncio.run(guarded(*args))

    return made


def test_each_outcome_is_counted(call: Callable[..., Any], breaker: CircuitBreaker) -> None:
    errors: list[BaseException | None] = []

    def work() -> int:
        if errors and (error := errors.pop(0)) is not None:
            raise error
        return 1

    guarded = call(work, retry=TWICE, circuit=breaker)
    assert [guarded() for _ in range(5)] == [1] * 5
    assert outcomes(breaker) == (5, 0)
    errors[:] = [ConnectionError(), None]
    assert guarded() == 1
    assert outcomes(breaker) == (7, 1)
    errors[:] = [Interrupted()]
    with pytest.raises(Interrupted):
        guarded()
    assert outcomes(breaker) == (7, 1), "an interrupted call has no outcome"
    errors[:] = [ConnectionError(), ConnectionError()]
    with pytest.raises(ConnectionError) as raised:
        guarded()
    assert "gave up after 2 attempts" in raised.value.__notes__[0]
    assert outcomes(breaker) == (9, 3)
    assert current_call.get() is None


def test_faults_are_injected(call: Callable[..., Any], breaker: CircuitBreaker) -> None:
    def work() -> int:
        return 1

    for options in ({"circuit": breaker}, {}):
        guarded = call(work, retry=None, name=f"faulty-{next(NUMBERS)}", **options)
        assert guarded() == 1
        with inject(fault=ConnectionError), pytest.raises(ConnectionError):
            guarded()


def test_a_success_after_a_change_does_not_count(breaker: CircuitBreaker) -> None:
    steps: list[str] = []

    def change() -> int:
        breaker.force_closed("again")
        return 1

    def with_generators(run: LocalRun, failed: object) -> Any:
        steps.append("asked")
        return call_guarded(run)

    guard = make_guard(change, False, TWICE, {"circuit": breaker})
    for _ in range(2):
        run = LocalRun("first", guard, (), {})
        assert FirstAttempt(guard).call(run, (), {}, with_generators) == 1
        breaker.call(int)
    assert steps == ["asked"], "the first time, the circuit had not been seen yet"
    breaker.reset()
    breaker.call(int)
    assert outcomes(breaker) == (1, 0)
    assert FirstAttempt(guard).call(run, (), {}, with_generators) == 1
    assert outcomes(breaker) == (0, 0)
