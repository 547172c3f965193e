"""Waits that a message asks for in words: "Please try again in 1m30s", "retry after 6 seconds"."""

from __future__ import annotations

import re

from prefect_resilience.base.regexes import Regex

_LIMIT = 8_000
_UNITS = (
    (r"ms|milliseconds?", 0.001),
    (r"s|secs?|seconds?", 1.0),
    (r"m|mins?|minutes?", 60.0),
    (r"h|hours?", 3600.0),
    (r"d|days?", 86400.0),
)
_NUMBER = r"\d{1,9}(?:\.\d{1,9})?"
_UNIT = "|".join(words for words, _ in _UNITS)
_ASKED = Regex(
    r"\b(?:(?:try|retry)\b[^.\n]{0,40}?\b(?:in|after)|retry-after|available in"
    r"|wait(?: for)?(?: at least)?)"
    rf"[\s:='\"]{{0,4}}((?:{_NUMBER}\s?(?:{_UNIT})(?![a-z])(?:,? and |,? )?){{1,4}}|{_NUMBER}(?![\w.:/-]))",
    re.IGNORECASE,
)
_PART = Regex(rf"({_NUMBER})\s?({_UNIT})(?![a-z])", re.IGNORECASE)


def wait_in_text(text: str) -> float | None:
    """The wait in seconds that a message asks for, or None. A number without a unit counts seconds."""
    match = _ASKED.search(text[:_LIMIT])
    if match is None:
        return None
    parts = _PART.findall(match[1])
    return sum(float(number) * _seconds(unit) for number, unit in parts) if parts else float(match[1])


def _seconds(unit: str) -> float:
    return next(seconds for words, seconds in _UNITS if re.fullmatch(words, unit, re.IGNORECASE))
