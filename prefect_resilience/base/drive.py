"""A sync and an async driver for the same sequence of steps.

A sequence is a generator that yields commands and receives their outcomes (the idea of httpx's auth
flows). The same generator then runs in a plain function and in a coroutine.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Hashable, Mapping
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from prefect_resilience.base.deadlines import current_deadline
from prefect_resilience.base.outcomes import PLAIN, UnawaitedResult, is_awaitable
from prefect_resilience.base.process import start_thread
from prefect_resilience.errors.secrets.redact import redact

T = TypeVar("T")


@dataclass(eq=False, slots=True)  # not frozen: two are made for each call, and frozen ones are slower to make
class Blocking:
    """A function that may block, such as a store's: `drive` calls it in place, `adrive` in a thread."""

    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(eq=False, slots=True)
class Invoke:
    """A user's function: called in place. `adrive` awaits an awaitable result, and `drive` rejects it."""

    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])


Command = Blocking | Invoke
Steps = Generator[Command, Any, T]


def drive(sequence: Steps[T]) -> T:
    """Run a sequence to its end in this thread, and return its result."""
    outcome: Any = None
    failed: list[BaseException] = []  # thrown outside of `except`, so that it is no context of later errors
    try:
        while True:
            command = sequence.throw(failed.pop()) if failed else sequence.send(outcome)
            try:
                outcome = command.fn(*command.args, **command.kwargs)
                if type(outcome) not in PLAIN and is_awaitable(outcome) and not isinstance(outcome, Wait):
                    raise UnawaitedResult(outcome, command.fn).close()
            except BaseException as error:  # noqa: BLE001 - the sequence handles every exception
                failed.append(error)
    except StopIteration as stop:
        return stop.value
    finally:
        sequence.close()  # if Ctrl-C struck between two steps


async def adrive(sequence: Steps[T]) -> T:
    """Run a sequence to its end on the event loop without blocking the loop, and return its result."""
    import asyncio

    outcome: Any = None
    failed: list[BaseException] = []
    try:
        while True:
            command = sequence.throw(failed.pop()) if failed else sequence.send(outcome)
            try:
                if isinstance(command, Blocking):
                    outcome = await asyncio.to_thread(command.fn, *command.args, **command.kwargs)
                else:
                    outcome = command.fn(*command.args, **command.kwargs)
                while type(outcome) not in PLAIN and is_awaitable(outcome):
                    outcome = await outcome
            except BaseException as error:  # noqa: BLE001 - the sequence handles every exception
                failed.append(error)
    except StopIteration as stop:
        return stop.value


logger: logging.Logger = logging.getLogger("prefect_resilience")

K = TypeVar("K", bound=Hashable)


AT_ONCE = 4
TRIES = 3
PAUSE = 0.2
"""A failing job gets TRIES attempts, PAUSE seconds apart: a server on SQLite rejects concurrent writes."""


def answers(jobs: Mapping[K, Callable[[], T]], until: float, at_once: int = AT_ONCE) -> dict[K, T]:
    """The answers of the jobs by `until`, a reading of `time.monotonic()`. A job without one is missing.

    The jobs run in daemon threads, in the caller's context: a job that hangs delays neither the caller nor
    the end of the process. Exceptions of jobs are not raised.
    """
    waiting = deque(jobs.items())
    results: dict[K, T] = {}
    busy = threading.Semaphore(0)

    def work() -> None:
        while True:
            try:
                key, job = waiting.popleft()
            except IndexError:
                break
            for tries_left in reversed(range(TRIES)):
                if time.monotonic() >= until:
                    break
                try:
                    results[key] = job()
                    break
                except Exception as failure:  # noqa: BLE001 - a failed job has no answer
                    logger.debug("a request failed: %s", redact(repr(failure)))
                    if tries_left:
                        time.sleep(PAUSE)
        busy.release()

    threads = min(at_once, len(jobs))
    for _ in range(threads):
        start_thread("request", work, context=copy_context())
    for _ in range(threads):
        if not busy.acquire(timeout=max(until - time.monotonic(), 0.0)):
            break
    return {key: results[key] for key in jobs if key in results}


# Waiting for both drivers: a sync caller blocks its thread, an async caller never blocks its loop.
#
# Do not use `Blocking` for long waits: `adrive` runs it on the event loop's few threads. Callers that wait
# there for a place would keep other callers from releasing theirs.

SLICE_SECONDS = 0.25
"""The longest single wait of a thread: an exception injected into the thread is raised between two waits."""


@dataclass(eq=False, slots=True)
class Wait(Generic[T]):
    """A wait with two forms: `block` blocks the thread, `start` returns an awaitable."""

    block: Callable[[], T]
    start: Callable[[], Awaitable[T]]

    def __await__(self) -> Generator[Any, Any, T]:
        return self.start().__await__()


def perform_wait(wait: Wait[T]) -> Steps[T]:
    """Wait under either driver: `adrive` awaits the yielded `wait`; under `drive` the thread blocks."""
    outcome = yield Invoke(_same, (wait,))
    return wait.block() if outcome is wait else outcome


class Signal:
    """Wakes one caller, which waits in a thread or on an event loop. Then a later wait ends at once."""

    __slots__ = ("_event", "_wake")

    def __init__(self) -> None:
        self._event = threading.Event()
        self._wake: Callable[[], object] | None = None

    def wake(self) -> None:
        """Wake the caller. Raises RuntimeError when its event loop is closed."""
        self._event.set()
        if self._wake is not None:
            self._wake()

    def wait(self, seconds: float, over: Callable[[], bool] = lambda: False) -> Steps[None]:
        """Wait for at most `seconds`. A thread stops waiting as soon as `over()` is true.

        Raises `NotBegun` if the deadline around the call has passed.
        """
        seconds = _until_deadline(seconds)
        yield from perform_wait(Wait(partial(self._block, seconds, over), partial(self._start, seconds)))

    def _block(self, seconds: float, over: Callable[[], bool]) -> None:
        until = time.monotonic() + seconds
        while (remaining := until - time.monotonic()) > 0 and not over():
            if self._event.wait(min(remaining, SLICE_SECONDS)):
                return

    async def _start(self, seconds: float) -> None:
        import asyncio

        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        self._wake = lambda: loop.call_soon_threadsafe(woken.set)
        if not self._event.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(woken.wait(), seconds)


def sleep_for(seconds: float) -> Steps[None]:
    yield from sleep_unless(seconds, lambda: False)


def sleep_unless(seconds: float, over: Callable[[], bool]) -> Steps[bool]:
    """Whether the whole time has passed. A thread stops waiting as soon as `over()` is true.

    Waits until the deadline around the call at most. Raises `NotBegun` if that has passed.
    """
    seconds = _until_deadline(seconds)

    async def sleep() -> bool:
        import asyncio

        await asyncio.sleep(seconds)
        return True

    return (yield from perform_wait(Wait(lambda: _sleep(seconds, over), sleep)))


def _until_deadline(seconds: float) -> float:
    limit = current_deadline.get()
    return seconds if limit is None else min(seconds, limit.check())


def _same(wait: Wait[T]) -> Wait[T]:
    return wait


def _sleep(seconds: float, over: Callable[[], bool]) -> bool:
    until = time.monotonic() + seconds
    while (remaining := until - time.monotonic()) > 0:
        if over():
            return False
        time.sleep(min(remaining, SLICE_SECONDS))
    return True
