"""Parses durations: 30 (seconds), "500ms", "1m", "1h30m", or a timedelta.

Every option that is a duration is parsed here, and kept as a number of seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field

from prefect_resilience.base.text import Regex

Duration = float | str | timedelta
"""The accepted types of a duration."""

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 7 * 86_400.0}
LONGEST = 10 * 365 * 86_400.0
"""The longest duration, in seconds: ten years. Dates overflow with much longer ones."""

DEFAULT_OPERATIONS: Mapping[str, float] = {
    "default": 30.0,
    "llm-call": 60.0,
    "tool-execution": 120.0,
    "file-read": 5.0,
    "web-fetch": 30.0,
}
"""Seconds by the name of an operation; the settings may change them and add more."""

FORMS = '30 (seconds), "500ms", "30s", "1m", "1h30m" or a timedelta'

_NUMBER = r"\d+(?:\.\d*)?|\.\d+"
_PART = Regex(rf"({_NUMBER})\s*(ms|s|m|h|d|w)\s*")
_TEXT = Regex(rf"\s*(?:(?:{_NUMBER})\s*(?:ms|[smhdw])\s*)+")
_PLAIN = Regex(rf"\s*(?:{_NUMBER})\s*")


def seconds_of(value: object) -> float | None:
    """`value` in seconds; None when it is not a duration. The sign of a number or a timedelta is kept.

    Example:
        >>> seconds_of("1h30m"), seconds_of(0.5), seconds_of("soon")
        (5400.0, 0.5, None)
    """
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        return _seconds_of_text(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # An int may be too large for a float.
    seconds = float(value) if abs(value) <= 1e300 else math.inf
    return seconds if math.isfinite(seconds) else None


def moment_of(when: datetime | timedelta, now: datetime) -> datetime:
    """A time (without an offset: in UTC), or a span before `now`, as a time in UTC."""
    if isinstance(when, timedelta):
        return now - when
    return when.astimezone(UTC) if when.tzinfo else when.replace(tzinfo=UTC)


def _seconds_of_text(text: str) -> float | None:
    if len(text) > 100:
        return None
    if text.strip() in UNITS:
        return UNITS[text.strip()]  # "m" for a minute, as in RateLimit(60, per="m")
    if _PLAIN.fullmatch(text):
        return float(text.strip())  # `float` keeps some of the white space that `\s` matches
    if not _TEXT.fullmatch(text):
        return None
    return math.fsum(float(number) * UNITS[unit] for number, unit in _PART.findall(text))


def seconds(what: str, value: object, *, least: float = 0.0, most: float = LONGEST) -> float:
    """`value` in seconds. Raises ValueError, in one sentence, if it is not a duration in [least, most]."""
    number = seconds_of(value)
    if number is None:
        raise ValueError(f"{what} must be a duration such as {FORMS}, not {value!r}")
    if not least <= number <= most:
        longest = "ten years" if most == LONGEST else f"{most:g} seconds"
        raise ValueError(f"{what} must be between {least:g} seconds and {longest}, not {value!r}")
    return number


def as_seconds(value: Any) -> Any:
    """For pydantic: a duration as a number of seconds, whose bounds are checked afterwards."""
    number = seconds_of(value)
    if number is None:
        raise ValueError(f"{value!r} is not a duration: write {FORMS}")
    return number


if TYPE_CHECKING:
    # Options accept every form of a duration; the policy keeps a number.
    Seconds = Any
else:
    Seconds = Annotated[float, BeforeValidator(as_seconds), Field(ge=0, le=LONGEST)]
