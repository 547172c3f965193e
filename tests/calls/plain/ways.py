"""One function in every form that `@resilient` takes, called the same way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from prefect_resilience import Backoff, Retry, resilient

FAST = Retry(attempts=3, backoff=Backoff.constant(0.001, jitter=0))


class Script:
    """Answers by a script: an exception is raised, any other value is returned; the last one for ever."""

    def __init__(self, *answers: Any) -> None:
        self.answers = [*answers]
        self.calls = 0

    def __call__(self) -> Any:
        answer = self.answers[min(self.calls, len(self.answers) - 1)]
        self.calls += 1
        if isinstance(answer, BaseException):
            raise answer
        return answer


def function(script: Script, **options: Any) -> Callable[[], Any]:
    @resilient(**options)
    def call() -> Any:
        return script()

    return call


def coroutine(script: Script, **options: Any) -> Callable[[], Any]:
    @resilient(**options)
    async def call() -> Any:
        await asyncio.sleep(0)
        return script()

    return lambda: asyncio.run(call())


def method(script: Script, **options: Any) -> Callable[[], Any]:
    class Client:
        @resilient(**options)
        def call(self) -> Any:
            assert isinstance(self, Client)
            return script()

    return Client().call


def class_method(script: Script, **options: Any) -> Callable[[], Any]:
    class Client:
        @resilient(**options)
        @classmethod
        def call(cls) -> Any:
            assert cls is Client
            return script()

    return Client.call


def static_method(script: Script, **options: Any) -> Callable[[], Any]:
    class Client:
        @resilient(**options)
        @staticmethod
        def call() -> Any:
            return script()

    return Client().call


def generator(script: Script, **options: Any) -> Callable[[], Any]:
    @resilient(**options)
    def call() -> Any:
        yield script()

    return lambda: next(iter([*call()]))


def async_generator(script: Script, **options: Any) -> Callable[[], Any]:
    @resilient(**options)
    async def call() -> Any:
        yield script()

    async def read() -> Any:
        return await anext(call())

    return lambda: asyncio.run(read())


def block(script: Script, **options: Any) -> Callable[[], Any]:
    def call() -> Any:
        found = None
        for attempt in resilient(**options):
            with attempt:
                found = script()
        return found

    return call


def async_block(script: Script, **options: Any) -> Callable[[], Any]:
    async def call() -> Any:
        async for attempt in resilient(**options):
            async with attempt:
                return script()
        return None

    return lambda: asyncio.run(call())


CALLS = [function, coroutine, method, class_method, static_method]
STREAMS = [generator, async_generator]
BLOCKS = [block, async_block]


def every_way(*ways: Callable[..., Any]) -> Any:
    found = ways or (*CALLS, *STREAMS, *BLOCKS)
    return pytest.mark.parametrize("way", found, ids=[one.__name__ for one in found])
