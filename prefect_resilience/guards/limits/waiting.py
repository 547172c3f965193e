"""Waiting, written once for both drivers: a sync caller blocks its thread, an async one never its loop.

`drive.Blocking` is no way to wait for long: `adrive` runs it on the event loop's few threads, and callers who
wait there for a place would keep those who have one from giving it back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from prefect_resilience.base.drive import Invoke, Sequence

T = TypeVar("T")

SLICE_SECONDS = 0.25
"""The longest single wait of a thread: in between, an exception that was injected into it comes through."""


@dataclass(frozen=True, slots=True, eq=False)
class Wait(Generic[T]):
    """One thing to wait for, in both manners."""

    block: Callable[[], T]
    start: Callable[[], Awaitable[T]]

    def __await__(self) -> Generator[Any, Any, T]:
        return self.start().__await__()


def waited_for(wait: Wait[T]) -> Sequence[T]:
    """Wait as whoever drives this can: `adrive` awaits what is yielded, `drive` hands it back as it is."""
    outcome = yield Invoke(_same, (wait,))
    return wait.block() if outcome is wait else outcome


def slept(seconds: float) -> Sequence[None]:
    yield from waited_for(Wait(lambda: _sleep(seconds), lambda: asyncio.sleep(seconds)))


def _same(wait: Wait[T]) -> Wait[T]:
    return wait


def _sleep(seconds: float) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, SLICE_SECONDS))
