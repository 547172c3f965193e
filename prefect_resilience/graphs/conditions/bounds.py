"""How long the evaluation of a condition may take, in steps and in seconds."""

from __future__ import annotations

import time
from collections.abc import Callable

from prefect_resilience.errors.exceptions import ResilienceError


def computing_clock() -> float:
    """Seconds that this thread has computed: a busy machine makes no condition fail."""
    return time.thread_time()


class ConditionError(ResilienceError, ValueError):
    """A condition that has no answer: its path leads nowhere, or its pattern or value takes too long.

    `path` is the path that was followed, None when there was none. Can be pickled.
    """

    def __init__(self, message: str, path: str | None = None) -> None:
        self.path = path
        super().__init__(message)

    def __reduce__(self) -> tuple[type[ConditionError], tuple[str, str | None]]:
        return type(self), (str(self), self.path)


STEPS = 1_000_000
"""Parts of a value that one evaluation may look at."""

SECONDS = 0.5
"""How long one evaluation may compute."""

PATTERN_SECONDS = 0.25
"""How long one regular expression may search."""

_LOOKS_AT_CLOCK_EVERY = 1_024


class Bounds:
    """One evaluation's bounds. `clock` gives seconds; without one, steps and each pattern are bounded."""

    __slots__ = ("_clock", "_ends", "_seconds", "_steps")

    def __init__(
        self,
        *,
        seconds: float = SECONDS,
        steps: int = STEPS,
        clock: Callable[[], float] | None = computing_clock,
    ) -> None:
        self._seconds = seconds
        self._steps = steps
        self._clock = clock
        self._ends = seconds if clock is None else clock() + seconds

    def step(self) -> None:
        """Count one part looked at; raises `ConditionError` past the bounds."""
        self._steps -= 1
        if self._steps < 0:
            raise ConditionError("the condition has too many parts of the value to look at")
        if self._steps % _LOOKS_AT_CLOCK_EVERY == 0:
            self.left()

    def left(self) -> float:
        """The seconds that are left; raises `ConditionError` when none are."""
        if self._clock is None:
            return self._seconds
        left = self._ends - self._clock()
        if left <= 0:
            raise self.passed()
        return left

    def passed(self) -> ConditionError:
        return ConditionError(f"the condition took longer than {self._seconds:g} s to evaluate")
