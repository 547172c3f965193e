"""Deadlines: the time by which a call, and everything that it calls, must have ended.

The deadline around some code is in a context variable, as a time of this machine's monotonic clock. On its
way to another process it is the seconds that are left, so that the clocks of machines do not matter.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextvars import ContextVar, Token
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from prefect_resilience.base.durations import FORMS, LONGEST, Duration, seconds_of
from prefect_resilience.base.process import setting
from prefect_resilience.errors.exceptions import (
    AttemptTimeout,
    ConfigurationError,
    DeadlineExceeded,
    NotBegun,
)

R = TypeVar("R")

GRACE = 0.2
"""Seconds after the deadline until a whole block or flow is interrupted: guarded calls inside end first."""


@dataclass(frozen=True, slots=True)
class CallDeadline:
    """The end of a call by `time.monotonic()`, the seconds that were allowed, and where it was set."""

    until: float
    seconds: float
    set_at: str

    def __str__(self) -> str:
        return f"deadline of {self.seconds:g} s set at {self.set_at}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrive, (self.until, self.remaining(), self.seconds, self.set_at, _clock())

    def remaining(self) -> float:
        """The seconds until the deadline; below 0 after it."""
        return self.until - monotonic()

    def check(self) -> float:
        """The seconds until the deadline. Raises `NotBegun` after it."""
        seconds = self.remaining()
        if seconds <= 0:
            raise NotBegun(self.seconds, self.set_at)
        return seconds


def _arrive(until: float, remaining: float, seconds: float, set_at: str, clock: str | None) -> CallDeadline:
    """A deadline from another process. On the same machine the time on the way counts."""
    is_same = clock is not None and clock == _clock()
    return CallDeadline(until if is_same else monotonic() + remaining, seconds, set_at)


def _clock() -> str | None:
    """Identifies the monotonic clock, which the processes of one boot share on Linux; None if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        return f"{boot} {Path('/proc/self/ns/time').readlink()}"
    except OSError:
        return None


current_deadline: ContextVar[CallDeadline | None] = ContextVar("prefect_resilience_deadline", default=None)


def sooner(around: CallDeadline | None, own: CallDeadline) -> CallDeadline:
    return own if around is None or own.until < around.until else around


def read_deadline(value: Any) -> float | None:
    """`deadline=` in seconds. Raises ConfigurationError."""
    seconds = seconds_of(value)
    if value is not None and (seconds is None or not 0 < seconds <= LONGEST):
        raise ConfigurationError(
            f"deadline={value!r} must be a duration above 0, of at most ten years: write {FORMS}"
        )
    return seconds


def limit_steps(limit: CallDeadline, steps: Generator[Any, Any, R]) -> Generator[Any, Any, R]:
    """The same generator, with this deadline around all its steps."""
    with setting(current_deadline, limit):
        return (yield from steps)


def carry_deadline(fn: Callable[..., R]) -> Callable[..., R]:
    """The function for a child process, where the deadline around this code will be around it."""
    limit = current_deadline.get()
    return fn if limit is None else partial(_call_in_child, limit, fn)


def _call_in_child(limit: CallDeadline, fn: Callable[..., R], *args: Any, **kwargs: Any) -> R:
    current_deadline.set(limit)  # not reset: a coroutine runs after the return, and each call has a context
    return fn(*args, **kwargs)


def overdue(seconds: float, what: str) -> AttemptTimeout:
    """The error of `what`, which took longer than `seconds`: that of the deadline if it has passed."""
    limit = current_deadline.get()
    if limit is None or limit.remaining() > 0.001:  # a timer may fire a little early
        return AttemptTimeout(seconds, what)
    return DeadlineExceeded(limit.seconds, limit.set_at, what)


class deadline:  # noqa: N801 - it is used like a function
    """A deadline for everything inside the block: `with deadline(60):` or `async with deadline("1m"):`.

    Guarded calls inside get the time that is left: tasks, `@resilient`, transports, process mode, and tasks
    in other processes. When it has passed they end with `DeadlineExceeded`, which is not retried, and none
    begins. A delay that would pass it is not begun. Of two deadlines the earlier one counts. `async with`
    also cancels other code inside; `with` does not interrupt it. `with deadline(60) as limit` has the
    seconds that are left: `limit.remaining()`.

    Raises ConfigurationError for an invalid duration.

    Example:
        >>> with deadline("1m") as limit:
        ...     print(limit.remaining() > 59)
        True
    """

    def __init__(self, seconds: Duration) -> None:
        frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        self._set_at = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        self._seconds = read_deadline(seconds) or 0.0
        self._tokens: list[Token[CallDeadline | None]] = []
        self._timeout: Any = None

    def __enter__(self) -> CallDeadline:
        own = CallDeadline(monotonic() + self._seconds, self._seconds, self._set_at)
        limit = sooner(current_deadline.get(), own)
        self._tokens.append(current_deadline.set(limit))
        return limit

    def __exit__(self, *error: object) -> None:
        current_deadline.reset(self._tokens.pop())

    async def __aenter__(self) -> CallDeadline:
        import asyncio

        limit = self.__enter__()
        self._timeout = asyncio.timeout(limit.remaining() + GRACE)
        await self._timeout.__aenter__()
        return limit

    async def __aexit__(self, *error: Any) -> None:
        try:
            await self._timeout.__aexit__(*error)
        except TimeoutError:
            raise overdue(self._seconds, "the block") from None
        finally:
            self.__exit__()
