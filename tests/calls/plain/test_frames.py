"""Frames of failed attempts end with the call, without the garbage collector: they hold the user's data."""

import asyncio
import functools
import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from uuid import uuid4

import httpx
import pytest
import requests
from requests.adapters import HTTPAdapter

from prefect_resilience import (
    Bulkhead,
    CircuitBreaker,
    Decompose,
    Effect,
    Expect,
    Fallback,
    Hedge,
    InDoubt,
    NotDone,
    Retry,
    RetryBudget,
    Timeout,
    batch,
    iterate,
    resilient,
    split_text,
)
from prefect_resilience.http import AsyncResilientTransport, ResilientAdapter, ResilientTransport
from tests.prefect_runs import until

pytestmark = pytest.mark.usefixtures("little_to_collect")

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


def other() -> None:
    data = hold()
    raise ValueError(f"not here either {data is None}")


def promise() -> str | int:
    return 3 if hold() and len(kept) % 2 else "three"


class TooBig(Exception):
    status_code = 413


def measure(text: str, room: int = 2) -> int:
    data = hold()
    if len(text) > room:
        raise TooBig(f"context length exceeded {data is None}")
    return len(text)


def in_child(data: Data, attempt: list[int]) -> None:
    raise ConnectionError(f"refused {data is None}")


def payment(**options: Any) -> dict[str, Any]:
    """The options of an effect with a key of its own."""
    return {"effect": Effect(key=f"pay:{uuid4()}", **options), "retry": RETRY}


def not_done(key: str) -> NotDone:
    return NotDone()


def respond(request: httpx.Request) -> httpx.Response:
    data = hold()
    if request.url.host == "broken" or (request.url.host == "flaky" and len(kept) % 2):
        raise httpx.ConnectError(f"refused {data is None}")
    return httpx.Response(503 if request.url.host == "busy" and len(kept) % 2 else 200)


def get(host: str, **options: Any) -> None:
    guards = {"retry": RETRY, "circuit": None, "transport": httpx.MockTransport(respond), **options}
    with httpx.Client(transport=ResilientTransport(**guards)) as client:
        client.get(f"http://{host}/")


async def aget(host: str, **options: Any) -> None:
    guards = {"retry": RETRY, "circuit": None, "transport": httpx.MockTransport(respond), **options}
    async with httpx.AsyncClient(transport=AsyncResilientTransport(**guards)) as client:
        await client.get(f"http://{host}/")


class Receiver(HTTPAdapter):
    """Stands for the network under a `ResilientAdapter`."""

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        response = requests.Response()
        response.url = request.url or ""
        response.request = request
        try:
            response.status_code = respond(httpx.Request("GET", response.url)).status_code
        except httpx.ConnectError:
            raise requests.ConnectionError("refused") from None
        return response


class Adapter(ResilientAdapter, Receiver):
    """A guarded adapter without a network."""


def session(host: str, **options: Any) -> None:
    with requests.Session() as client:
        client.mount("http://", Adapter(**{"retry": RETRY, "circuit": None, **options}))
        client.get(f"http://{host}/")


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


PARTS = Decompose(split_text("text"), merge=sum)
PROCESS = Timeout(60, mode="process")
ENDS = (ConnectionError, ValueError, InDoubt, httpx.ConnectError, requests.ConnectionError)
"""The errors of calls that fail: what stays behind when the caller has dropped them."""

GUARDED: dict[str, tuple[Callable[..., Any], Callable[[], dict[str, Any]]]] = {
    "retried": (flaky, lambda: {"retry": RETRY}),
    "failed": (fails, lambda: {"retry": RETRY}),
    "a circuit": (flaky, lambda: {"retry": RETRY, "circuit": breaker()}),
    "limits": (flaky, lambda: {"retry": RETRY, "limits": [Bulkhead(3)]}),
    "a timeout": (flaky, lambda: {"retry": RETRY, "timeout": 60}),
    "a hedge": (flaky, lambda: {"retry": RETRY, "hedge": Hedge(after=60)}),
    "a budget": (flaky, lambda: {"retry": RETRY.model_copy(update={"budget": RetryBudget()})}),
    "a good result": (fails, lambda: {"retry": RETRY, "fallback": Fallback.last_known_good()}),
    "nested": (lambda: resilient(retry=None)(flaky)(), lambda: {"retry": RETRY}),
    "retries and fallbacks that fail": (fails, lambda: {"retry": RETRY, "fallback": [other, other]}),
    "a malformed output": (promise, lambda: {"retry": None, "expect": Expect("string", repair=True)}),
    "parts": (measure, lambda: {"retry": None, "decompose": PARTS}),
    "an effect": (flaky, lambda: payment(verify=not_done)),
    "an effect, guarded": (
        flaky,
        lambda: payment(verify=not_done) | {"circuit": breaker(), "limits": [Bulkhead(3)], "timeout": 60},
    ),
    "an effect in doubt": (fails, lambda: payment()),
}
"""Functions and their options, called as they are and as coroutines."""
ARGUMENTS = {measure: ("ab cd ef",)}


def guarded(name: str) -> Any:
    body, options = GUARDED[name]
    return resilient(**options())(body)(*ARGUMENTS.get(body, ()))


async def aguarded(name: str) -> Any:
    body, options = GUARDED[name]

    @functools.wraps(body)
    async def later(*args: Any) -> Any:
        await asyncio.sleep(0)
        return body(*args)

    return await resilient(**options())(later)(*ARGUMENTS.get(body, ()))


CALLS: dict[str, Any] = {
    **{name: functools.partial(guarded, name) for name in GUARDED},
    **{f"async: {name}": functools.partial(aguarded, name) for name in GUARDED},
    "a breaker": lambda: breaker().call(fails),
    "a child": lambda: resilient(retry=RETRY, timeout=PROCESS, fallback=lambda data: 3)(in_child)(hold(), []),
    "rounds": lambda: iterate(resilient(retry=RETRY)(flaky), bool, 3),
    "a request": lambda: get("flaky"),
    "a request with guards": lambda: get("flaky", circuit=breaker(), limits=[Bulkhead(3)], timeout=60),
    "a response that is a failure": lambda: get("busy"),
    "a request to another server": lambda: get("broken", fallback="http://good/"),
    "requests": lambda: session("flaky"),
    "requests with guards": lambda: session("busy", circuit=breaker(), limits=[Bulkhead(3)], timeout=60),
    "a loop": loop,
    "a stream": lambda: list(resilient(retry=RETRY)(stream)()),
    "a stream that breaks": lambda: list(resilient(retry=RETRY)(breaks)()),
    "async: a breaker": lambda: breaker().acall(afails),
    "async: a request": lambda: aget("flaky"),
    "async: a response that is a failure": lambda: aget("busy"),
    "async: a request to another server": lambda: aget("broken", fallback=["http://broken/", "http://good/"]),
    "async: a loop": aloop,
    "async: a stream": lambda: drained(resilient(retry=RETRY)(astream)()),
}


async def awaited(call: Any) -> None:
    with suppress(*ENDS), batch(uuid4().hex):
        await call()


def made(call: Any, isasync: bool, runner: asyncio.Runner) -> None:
    kept.clear()
    if isasync:
        runner.run(awaited(call))
        return
    with suppress(*ENDS), batch(uuid4().hex):
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
            # A thread of the call, such as that of a hedge, may take a moment to let go.
            until(lambda: all(ref() is None for ref in kept), 10)
        finally:
            gc.enable()
