"""Comparison of plain values: strict, exact, and bounded in steps and seconds.

A bool is not a number; int, float and Decimal compare by their exact value; NaN equals nothing. Two
date-times, as objects or as RFC 3339 strings, are compared as instants if both have an offset or neither has
one; otherwise they are different and have no order. Other strings compare by code point.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, cast

from prefect_resilience.base.plain import shortly, unfold
from prefect_resilience.base.text import Regex
from prefect_resilience.errors.exceptions import ResilienceError

if TYPE_CHECKING:
    import regex


class ConditionError(ResilienceError, ValueError):
    """A condition that cannot be evaluated: its path does not exist, or it takes too long.

    `path` is the missing path, None if there is none. Can be pickled.
    """

    def __init__(self, message: str, path: str | None = None) -> None:
        self.path = path
        super().__init__(message)


STEPS = 1_000_000
"""The most parts of a value that one evaluation may visit."""

SECONDS = 0.5
"""The CPU time of one evaluation."""

PATTERN_SECONDS = 0.25
"""The time that one regular expression may search."""

_LOOKS_AT_CLOCK_EVERY = 1_024


class EvaluationBounds:
    """The bounds of one evaluation.

    The clock is the CPU time of this thread, so that no condition fails because the machine is busy.
    """

    def __init__(self, *, steps: int = STEPS, clock: Callable[[], float] = time.thread_time) -> None:
        self._steps = steps
        self._clock = clock
        self._ends = clock() + SECONDS

    def step(self) -> None:
        """Count one visited part. Raises `ConditionError` past the bounds."""
        self._steps -= 1
        if self._steps < 0:
            raise ConditionError("the value has too many parts for the condition to check")
        if self._steps % _LOOKS_AT_CLOCK_EVERY == 0:
            self.left()

    def left(self) -> float:
        """The seconds that are left. Raises `ConditionError` if there are none."""
        seconds = self._ends - self._clock()
        if seconds <= 0:
            raise ConditionError(f"the condition took longer than {SECONDS:g} s to evaluate")
        return seconds


_INSTANT = Regex(
    r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:\.(\d{1,18}))?(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)?",
    re.ASCII,
)
_DATE = Regex(r"\d{4}-\d\d-\d\d", re.ASCII)
_START = datetime(1, 1, 1)

Instant = tuple[bool, int]
"""Whether the time has an offset, and the attoseconds since the year 1 (in UTC if it has one)."""


def equal(left: Any, right: Any, bounds: EvaluationBounds, *, instants: bool = True) -> bool:
    """Whether two values are equal, with all their parts. Without `instants`, texts are never times."""
    waiting = [(left, right)]
    while waiting:
        bounds.step()
        value, other = (unfold(side) for side in waiting.pop())
        if isinstance(value, list) and isinstance(other, list):
            first, second = cast("list[Any]", value), cast("list[Any]", other)
            if len(first) != len(second):
                return False
            waiting.extend(zip(first, second, strict=True))
        elif isinstance(value, dict) and isinstance(other, dict):
            ours, theirs = cast("dict[str, Any]", value), cast("dict[str, Any]", other)
            if ours.keys() != theirs.keys():
                return False
            waiting.extend((item, theirs[key]) for key, item in ours.items())
        elif not _equal_scalars(value, other, instants):
            return False
    return True


def _equal_scalars(one: Any, other: Any, instants: bool) -> bool:
    if one is None or isinstance(one, bool):
        return one is other
    pair = _comparable(one, other, instants)
    return pair is not None and pair[0] == pair[1]


def ordered(left: Any, right: Any, holds: Callable[[Any, Any], bool], *, instants: bool = True) -> bool:
    """Whether `holds(left, right)`; False if the two values have no order."""
    pair = _comparable(left, right, instants)
    return pair is not None and holds(*pair)


def _comparable(one: Any, other: Any, instants: bool) -> tuple[Any, Any] | None:
    """Both converted so that Python compares them correctly; None if they cannot be compared."""
    if is_number(one) and is_number(other):
        return None if _is_nan(one) or _is_nan(other) else (one, other)
    first, second = (instant(one), instant(other)) if instants else (None, None)
    if first is not None and second is not None:
        return (first[1], second[1]) if first[0] == second[0] else None
    if isinstance(one, str) and isinstance(other, str):
        return one, other
    days = _day(one), _day(other)
    return None if None in days else days


def is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _is_nan(value: int | float | Decimal) -> bool:
    return value.is_nan() if isinstance(value, Decimal) else value != value


def instant(value: Any) -> Instant | None:
    """The instant of a datetime or an RFC 3339 text; None for other values."""
    finer = 0
    try:
        if isinstance(value, str) and (match := _INSTANT.fullmatch(value)) is not None:
            finer = int((match[1] or "").ljust(18, "0")[6:])
            value = datetime.fromisoformat(value.upper())
        if not isinstance(value, datetime):
            return None
        offset = value.utcoffset()
        # Computed with integers and without a time zone, so that no instant is out of the range of years.
        since = value.replace(tzinfo=None) - _START - (offset or timedelta())
        return offset is not None, since // timedelta(microseconds=1) * 10**12 + finer
    except Exception:  # noqa: BLE001 - no such day, a tzinfo of the user's, or pandas' NaT
        return None


def _day(value: Any) -> date | None:
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    if isinstance(value, str) and _DATE.fullmatch(value):
        try:
            return date.fromisoformat(value)
        except ValueError:
            return None
    return None


# Regular expressions, bounded when they are compiled and while they search.
#
# The syntax is that of the `regex` library without recursion, in which it looks at its clock too late.

LONGEST_PATTERN = 1_000
LONGEST_TEXT = 1_000_000
_MOST_PIECES = 10_000
_DEEPEST = 50

_RECURSION = Regex(r"\(\?(?:R|[+-]?\d|&|P>)")
_LITERAL = Regex(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
"""An escape or a class of characters, in which brackets and braces mean nothing."""
_TIMES = Regex(r"(\)?)\{(\d+)", re.ASCII)


class PatternMistake(ValueError):
    """A pattern that is not accepted; the message says why."""


@lru_cache(maxsize=200)
def compiled_pattern(pattern: str) -> regex.Pattern[str]:
    """The compiled pattern. Raises `PatternMistake`."""
    _affordable(pattern)
    import regex  # slow to load

    try:
        return regex.compile(pattern, cache_pattern=False)
    except (regex.error, ValueError, LookupError, OverflowError, RecursionError) as error:
        raise PatternMistake(f"{shortly(pattern)} is not a valid regular expression: {error}") from None


def matches(pattern: str, text: str, bounds: EvaluationBounds, *, whole: bool = False) -> bool:
    """Whether the pattern is found in `text`, or matches all of it.

    Raises `ConditionError` when that takes longer than the bounds allow, or the text is too long.
    """
    if len(text) > LONGEST_TEXT:
        raise ConditionError(
            f"a string of {len(text):,} characters is too long to match: at most {LONGEST_TEXT:,}"
        )
    ready = compiled_pattern(pattern)
    seconds = min(bounds.left(), PATTERN_SECONDS)
    try:
        return bool((ready.fullmatch if whole else ready.search)(text, timeout=seconds))
    except TimeoutError:
        pass
    raise ConditionError(f"the pattern {shortly(pattern)} took longer than {seconds:g} s to match")


def _affordable(pattern: str) -> None:
    """Raise PatternMistake for a pattern that is slow to compile: the library expands `{n}` n times."""
    if len(pattern) > LONGEST_PATTERN:
        raise PatternMistake(
            f"a pattern may have at most {LONGEST_PATTERN:,} characters, not {len(pattern):,}"
        )
    bare = _LITERAL.sub(lambda literal: "x" * len(literal[0]), pattern)
    if _RECURSION.search(bare) is not None:
        raise PatternMistake(f"{shortly(pattern)} has a recursion, such as (?R), which is not supported")
    pieces = len(bare) + sum(int(times) for of_group, times in _TIMES.findall(bare) if not of_group)
    pieces *= math.prod(max(int(times), 1) for of_group, times in _TIMES.findall(bare) if of_group)
    levels = accumulate((letter == "(") - (letter == ")") for letter in bare)
    if pieces > _MOST_PIECES or max(levels, default=0) > _DEEPEST:
        raise PatternMistake(f"{shortly(pattern)} has too many repetitions or groups to be compiled")
