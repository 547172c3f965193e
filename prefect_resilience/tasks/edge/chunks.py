"""The chunks of a stream on their way: what was handed on, and a reader that may go away at any time."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, cast

from prefect_resilience.errors.context import PartialOutput
from prefect_resilience.guards.partials.bounds import partial_output
from prefect_resilience.guards.timeouts.stream import aiterate_with_deadline

T = TypeVar("T")

MOST_CHARACTERS = 100_000
MOST_CHUNKS = 10_000
"""What is kept of a stream in case it breaks; of a longer one the beginning."""

_closing: ContextVar[list[AsyncGenerator[Any, None]] | None] = ContextVar("closing", default=None)


class ChunksSoFar:
    """What a stream has handed on, within bounds. True once there is a chunk."""

    __slots__ = ("_kept", "_left", "number")

    def __init__(self) -> None:
        self.number: int = 0
        self._kept: list[Any] = []
        self._left = MOST_CHARACTERS

    def __bool__(self) -> bool:
        return self.number > 0

    def add(self, chunk: Any) -> None:
        self.number += 1
        if self._left > 0 and len(self._kept) < MOST_CHUNKS:
            self._kept.append(chunk)
            self._left -= len(cast("str", chunk)) if isinstance(chunk, str | bytes) else 1

    def told(self) -> PartialOutput | None:
        """One text of chunks that are texts, else a list of them as plain data; secrets masked."""
        texts = all(isinstance(chunk, str) for chunk in self._kept)
        output = partial_output("".join(self._kept) if texts else self._kept)
        if output is None or self.number == len(self._kept) or output.truncated:
            return output
        return output.model_copy(update={"truncated": True, "original_size": self.number})


class EngineStream(AsyncGenerator[Any, None]):
    """An async generator with the `throw` that Prefect's engine calls when its reader has gone."""

    def __init__(self, chunks: AsyncGenerator[Any, None]) -> None:
        self._chunks = chunks

    def asend(self, value: None, /) -> Any:
        return self._chunks.asend(value)

    def athrow(self, *error: Any) -> Any:
        return self._chunks.athrow(*error)

    def aclose(self) -> Any:
        return self._chunks.aclose()

    def throw(self, error: BaseException) -> None:
        """Let the engine go on; whoever reads closes the chunks when it has ended."""
        waiting = _closing.get()
        if waiting is not None:
            waiting.append(self._chunks)
        raise error


def in_one_task(source: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """The same async generator, whose whole life takes place in one asyncio task of its own.

    A reader that leaves its loop early closes a generator from wherever the event loop happens to be, where
    Prefect could not leave its contexts: the run would fail although nothing did. Here everything, the
    closing too, is done where it began, and over when the reader's `aclose()` returns.
    """
    return aiterate_with_deadline(source, around=_closing_what_is_left())


@asynccontextmanager
async def _closing_what_is_left() -> AsyncGenerator[None, None]:
    left: list[AsyncGenerator[Any, None]] = []
    _closing.set(left)
    try:
        yield
    finally:
        for chunks in left:
            await chunks.aclose()
