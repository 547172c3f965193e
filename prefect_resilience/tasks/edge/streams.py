"""Generator tasks: one attempt in its task run (see `calls.streams`), as Prefect's engine reads it."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from prefect_resilience.base.drive import adrive, drive
from prefect_resilience.calls.model import Guard
from prefect_resilience.calls.streams import Stream, aone_attempt, one_attempt
from prefect_resilience.guards.timeouts.stream import aiterate_with_deadline
from prefect_resilience.tasks.edge.answers import as_answer
from prefect_resilience.tasks.edge.task_runs import apply_policy, surroundings_of

T = TypeVar("T")

_closing: ContextVar[list[AsyncGenerator[Any, None]] | None] = ContextVar("closing", default=None)


class EngineStream(AsyncGenerator[Any, None]):
    """An async generator with the `throw` that Prefect's engine calls when the reader has stopped."""

    def __init__(self, chunks: AsyncGenerator[Any, None]) -> None:
        self._chunks = chunks

    def asend(self, value: None, /) -> Any:
        return self._chunks.asend(value)

    def athrow(self, *error: Any) -> Any:
        return self._chunks.athrow(*error)

    def aclose(self) -> Any:
        return self._chunks.aclose()

    def throw(self, error: BaseException) -> None:
        """Raise the error for the engine. The chunks are closed at the end, by `_closing_what_is_left`."""
        waiting = _closing.get()
        if waiting is not None:
            waiting.append(self._chunks)
        raise error


def in_one_task(source: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """The same async generator, run from start to close in one asyncio task of its own.

    A reader that leaves its loop early closes the generator from another asyncio task. Prefect could not
    leave its contexts there, and the run would fail although nothing went wrong. Here every step, including
    the close, takes place in the task in which the generator began, and ends before the reader's `aclose()`
    returns.
    """
    return aiterate_with_deadline(source, around=_closing_what_is_left())


@asynccontextmanager
async def _closing_what_is_left() -> AsyncGenerator[None, None]:
    generators: list[AsyncGenerator[Any, None]] = []
    _closing.set(generators)
    try:
        yield
    finally:
        for chunks in generators:
            await chunks.aclose()


def stream(guard: Guard, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Generator[Any, Any, Any]:
    """Run one attempt of a generator function in its task run."""
    run = surroundings_of(guard)
    if run is None:
        alone: Generator[Any, Any, Any] = guard.fn(*args, **kwargs)
        return (yield from alone)
    if guard.policy is not None:
        guard = drive(apply_policy(guard, run))
    attempt = Stream(guard, run, time.monotonic())
    return as_answer((yield from one_attempt(attempt, args, kwargs)), run)


def astream(guard: Guard, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AsyncGenerator[Any, None]:
    """Run one attempt of an async generator function in its task run."""
    run = surroundings_of(guard)
    if run is None:
        return EngineStream(guard.fn(*args, **kwargs))

    async def open_stream() -> Stream:
        now = guard if guard.policy is None else await adrive(apply_policy(guard, run))
        return Stream(now, run, time.monotonic())

    return EngineStream(aone_attempt(open_stream, args, kwargs))
