"""The value that a condition compares with, as JSON can carry it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any, cast
from uuid import UUID

DEPTH = 100
PARTS = 10_000
LETTERS = 1_000_000
_BIGGEST = 10**1_000


class ValueMistake(ValueError):
    """A value that a condition cannot hold; the message says what to write."""


def json_value(value: Any) -> Any:
    """`value` as JSON carries it: times as ISO texts, tuples as lists. Raises `ValueMistake`.

    NaN and the infinities stay: they can be compared with, but not written as JSON.
    """
    return _Reading().of(value, DEPTH)


def not_json(value: Any) -> str | None:
    """The sentence about a NaN or an infinity in a value that `json_value` gave, None if there is none."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, float) and not math.isfinite(item):
            return f"JSON has no {item}: write a number that it has, or compare in Python"
        if isinstance(item, dict):
            waiting.extend(cast("dict[str, Any]", item).values())
        elif isinstance(item, list):
            waiting.extend(cast("list[Any]", item))
    return None


class _Reading:
    def __init__(self) -> None:
        self._parts = PARTS
        self._letters = LETTERS

    def of(self, value: Any, depth: int) -> Any:
        self._parts -= 1
        if self._parts < 0:
            raise ValueMistake(f"a value may have {PARTS:,} parts at most")
        if isinstance(value, Mapping | list | tuple):
            if depth == 0:
                raise ValueMistake(f"a value may be {DEPTH} levels deep at most")
            return self._inside(value, depth - 1)
        return self._scalar(value)

    def _inside(self, value: Any, depth: int) -> Any:
        if not isinstance(value, Mapping):
            return [self.of(item, depth) for item in value]
        pairs = cast("Mapping[Any, Any]", value)
        return {self._key(key): self.of(item, depth) for key, item in pairs.items()}

    def _key(self, key: Any) -> str:
        if not isinstance(key, str):
            raise ValueMistake(f"the keys of a value must be texts, not {shortly(key)}")
        return self._text(key)

    def _scalar(self, value: Any) -> Any:
        if isinstance(value, Enum):
            return self._scalar(value.value)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, int | float | Decimal):
            return _number(value)
        if isinstance(value, date):
            return _iso(value)
        if isinstance(value, UUID):
            return str(value)
        raise ValueMistake(
            f"a value must be what JSON can carry (null, true, a number, a text, a list, a mapping) "
            f"or a time, not {type(value).__name__}"
        )

    def _text(self, text: str) -> str:
        self._letters -= len(text)
        if self._letters < 0:
            raise ValueMistake(f"the texts of a value may have {LETTERS:,} characters at most")
        if not can_be_written(text):
            raise ValueMistake(f"{shortly(text)} has half of a surrogate pair, which no JSON can carry")
        return str.__str__(text)


def can_be_written(text: str) -> bool:
    """Whether UTF-8 has a form for it: half of a surrogate pair has none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _number(value: int | float | Decimal) -> int | float:
    if isinstance(value, Decimal):
        return _of_decimal(value)
    if isinstance(value, float):
        return float.__float__(value)
    if abs(value) >= _BIGGEST:
        raise ValueMistake("a whole number may have 1,000 digits at most")
    return int.__int__(value)


def _of_decimal(value: Decimal) -> int | float:
    """A Decimal is kept only if JSON's numbers can mean exactly the same."""
    number = float(value) if not value.is_snan() else math.nan
    if math.isnan(number) or value.is_infinite() or value == Decimal.from_float(number):
        return number
    if abs(value.adjusted()) < 1_000 and value == value.to_integral_value():
        return int(value)
    raise ValueMistake(f"{shortly(value)} is no exact number in JSON: write a float or a text")


def _iso(value: date) -> str:
    """RFC 3339 as far as it goes: an offset with seconds becomes UTC."""
    if isinstance(value, datetime):
        offset = value.utcoffset()
        if offset is not None and offset % timedelta(minutes=1):
            value = value.astimezone(timezone.utc)
    return value.isoformat()


def shortly(value: Any, limit: int = 60) -> str:
    """`value` in a few characters, for a sentence. Never raises, and never writes out what is huge."""
    if isinstance(value, str):
        return repr(value if len(value) <= limit else value[: limit - 1] + "…")
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**limit:
        return "a huge number"
    if isinstance(value, list | tuple | Mapping):
        return f"a {type(cast('Any', value)).__name__}"
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - the code of a user's class
        text = f"<{type(value).__name__}>"
    return text if len(text) <= limit else text[: limit - 1] + "…"
