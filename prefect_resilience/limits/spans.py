"""Spans of time and counts as people write them in a limit."""

from __future__ import annotations

import math
import re
from datetime import timedelta

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
LONGEST = 10 * 365 * 86_400.0
"""Ten years, in seconds: what is longer is a mistake."""


def span(what: str, value: object, *, least: float = 0.0) -> float:
    """`value` in seconds: a number of them, a text such as "500ms" or "1m", or a timedelta.

    Raises ValueError, which says what to write, when it is none of these or not within [least, ten years].
    """
    seconds = _seconds(value)
    if seconds is None:
        raise ValueError(f'{what} is a span of time such as 30 (seconds) or "500ms", "1m", not {value!r}')
    if not least <= seconds <= LONGEST:
        raise ValueError(f"{what} is between {least:g} seconds and ten years, not {value!r}")
    return seconds


def _seconds(value: object) -> float | None:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?|\.\d+)?\s*(ms|s|m|h|d)\s*", value)
        return float(found[1] or 1) * UNITS[found[2]] if found else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def count(what: str, value: object, example: str) -> int:
    """`value` as a whole number from 1 on. Raises ValueError with what to write."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{what} is a whole number from 1 on, as in {example}, not {value!r}")
    return value
