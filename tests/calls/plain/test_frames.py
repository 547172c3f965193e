"""Frames of failed attempts end with the call, without the garbage collector: they hold the user's data."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from prefect_resilience import (
    Bulkhead,
    CircuitBreaker,
    Fallback,
    Hedge,
    Retry,
    RetryBudget,
    resilient,
)

RETRY = Retry(3, backoff="none", retry_on=Exception)
kept: list[weakref.ref[Any]] = []


class Data:
    """A local object of an attempt."""


def hold() -> Data:
    data = Data()
    kept.append(weakref.ref(data))
    return data


def fails_first() -> None:
    if len(kept) % 2:
        raise ConnectionError("refused")


def flaky() -> int:
    data = hold()
    fails_first()
    return len(kept) if data else 0


async def aflaky() -> int:
    data = hold()
    fails_first()
    return len(kept) if data else 0


def chained() -> int:
    data = hold()
    try:
        fails_first()
    except ConnectionError as error:
        raise RuntimeError("outer") from error
    return len(kept) if data else 0


def fails() -> int:
    data = hold()
    raise ConnectionError(f"refused {data is None}")


async def afails() -> int:
    data = hold()
    raise ConnectionError(f"refused {data is None}")


def stream() -> Iterator[int]:
    data = hold()
    fails_first()
    yield len(kept) if data else 0


async def astream() -> Any:
    data = hold()
    fails_first()
    yield len(kept) if data else 0


def breaks() -> Iterator[int]:
    data = hold()
    yield 1
    raise ConnectionError(f"refused {data is None}")


def loop() -> None:
    for attempt in resilient(retry=RETRY):
        with attempt:
            flaky()


async def aloop() -> None:
    async for attempt in resilient(retry=RETRY):
        async with attempt:
            await aflaky()


async def drained(chunks: Any) -> list[Any]:
    return [chunk async for chunk in chunks]


def breaker() -> CircuitBreaker:
    return CircuitBreaker(
        "frames", store="memory://", failure_threshold=1000, failure_rate=1.0, minimum_calls=1000
    )


CALLS: dict[str, Any] = {
    "retried": lambda: resilient(retry=RETRY)(flaky)(),
    "retried, with a cause": lambda: resilient(retry=RETRY)(chained)(),
    "failed at once": lambda: resilient(retry=None)(fails)(),
    "failed": lambda: resilient(retry=RETRY)(fails)(),
    "a circuit": lambda: resilient(retry=RETRY, circuit=breaker())(flaky)(),
    "a breaker": lambda: breaker().call(fails),
    "limits": lambda: resilient(retry=RETRY, limits=[Bulkhead(3)])(flaky)(),
    "a timeout": lambda: resilient(retry=RETRY, timeout=60)(flaky)(),
    "a hedge": lambda: resilient(retry=RETRY, hedge=Hedge(after=60))(flaky)(),
    "a budget": lambda: resilient(retry=RETRY.model_copy(update={"budget": RetryBudget()}))(flaky)(),
    "a fallback": lambda: resilient(retry=None, fallback=Fallback.value(3))(fails)(),
    "fallbacks that fail": lambda: resilient(retry=None, fallback=[lambda: fails(), lambda: 3])(fails)(),
    "a good result": lambda: resilient(retry=RETRY, fallback=Fallback.last_known_good())(fails)(),
    "nested": lambda: resilient(retry=RETRY)(lambda: resilient(retry=None)(flaky)())(),
    "a loop": loop,
    "a stream": lambda: list(resilient(retry=RETRY)(stream)()),
    "a stream that breaks": lambda: list(resilient(retry=RETRY)(breaks)()),
    "a stream and a fallback": lambda: list(resilient(retry=None, fallback=lambda: iter([1]))(breaks)()),
    "async: retried": lambda: resilient(retry=RETRY)(aflaky)(),
    "async: failed": lambda: resilient(retry=RETRY)(afails)(),
    "async: a circuit": lambda: resilient(retry=RETRY, circuit=breaker())(aflaky)(),
    "async: a breaker": lambda: breaker().acall(afails),
    "async: a timeout": lambda: resilient(retry=RETRY, timeout=60)(aflaky)(),
    "async: a hedge": lambda: resilient(retry=RETRY, hedge=Hedge(after=60))(aflaky)(),
    "async: a fallback": lambda: resilient(retry=None, fallback=lambda: 3)(afails)(),
    "async: a loop": aloop,
    "async: a stream": lambda: drained(resilient(retry=RETRY)(astream)()),
}


async def awaited(call: Any) -> None:
    with suppress(ConnectionError):
        await call()


def made(call: Any, isasync: bool, runner: asyncio.Runner) -> None:
    kept.clear()
    if isasync:
        runner.run(awaited(call))
        return
    with suppress(ConnectionError):
        call()


@pytest.mark.parametrize("name", CALLS)
def test_no_frame_of_a_failed_attempt_outlives_the_call(name: str) -> None:
    with asyncio.Runner() as runner:
        isasync = name.startswith("async")
        made(CALLS[name], isasync, runner)  # imports and caches of the first call
        gc.collect()
        gc.disable()
        try:
            made(CALLS[name], isasync, runner)
            assert kept
            assert [data for ref in kept if (data := ref()) is not None] == []
        finally:
            gc.enable()
