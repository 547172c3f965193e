"""Any value as plain data: mappings with string keys, lists, strings, numbers and times; and copies of data.

    pydantic model, dataclass, NamedTuple   its fields, in a mapping
    mapping                                 with the keys as JSON would write them
    tuple, set, range, deque, numpy array   a list (a set in the order of its texts)
    Enum                                    its value
    numpy's and other numbers               int or float; a Decimal stays one
    datetime, date                          unchanged; a time is its ISO text, a timedelta its seconds
    UUID, bytes, Path, URL, anything else   a string; secrets stay masked

Attributes of other objects are never read.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from base64 import b64encode
from collections import deque
from collections.abc import Iterable, Mapping, Set
from copy import deepcopy
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any, cast
from uuid import UUID

from pydantic import BaseModel

CUT = "…"
"""Replaces a part that was cut: too deep, too large, or inside itself."""

_EXACT = frozenset({str, int, float, bool, type(None), Decimal, datetime, date, list})
_LISTS = (list, tuple, range, deque)
_TEXT_LIMIT = 10_000


def plain(value: Any, *, depth: int = 100, items: int = 100_000) -> Any:
    """`value` as plain data, copied. Never raises.

    A part deeper than `depth` levels and a value that contains itself become `…`. Parts after the first
    `items` are left out.
    """
    return plain_or_cut(value, depth=depth, items=items)[0]


def plain_or_cut(value: Any, *, depth: int, items: int) -> tuple[Any, bool]:
    """As `plain`, and whether anything was cut."""
    copy = _Copy(items)
    return copy.of(value, depth), copy.cut


def unfold(value: Any) -> Any:
    """The outermost level of `value` as plain data; the items of a mapping or a list stay unchanged."""
    kind = cast("type[Any]", type(value))
    if kind in _EXACT or (kind is dict and all(type(key) is str for key in value)):
        return value
    try:
        return _unfold(value)
    except Exception:  # noqa: BLE001 - the code of a user's class may raise anything
        return f"<{kind.__name__}>"


class _Copy:
    """The state of one copy: the number of parts left, and the values that contain the current one."""

    def __init__(self, items: int) -> None:
        self.left = items
        self.cut = False
        self._inside: set[int] = set()

    def of(self, value: Any, depth: int) -> Any:
        level = unfold(value)
        if not isinstance(level, dict | list):
            return level
        if depth <= 0 or id(value) in self._inside:
            self.cut = True
            return CUT
        self._inside.add(id(value))
        try:
            return self._parts(cast("dict[str, Any] | list[Any]", level), depth - 1)
        finally:
            self._inside.discard(id(value))

    def _parts(self, level: dict[str, Any] | list[Any], depth: int) -> Any:
        if isinstance(level, list):
            return [self.of(item, depth) for item in self._take(level)]
        return {key: self.of(level[key], depth) for key in self._take(level)}

    def _take(self, parts: Iterable[Any]) -> Iterable[Any]:
        for part in parts:
            if self.left <= 0:
                self.cut = True
                return
            self.left -= 1
            yield part


def _unfold(value: Any) -> Any:
    if isinstance(value, Enum):
        return unfold(value.value)
    if isinstance(value, (BaseModel, Mapping)) or _has_fields(value):
        return _mapping(value)
    if isinstance(value, _LISTS):
        return list(cast("Iterable[Any]", value))
    if isinstance(value, Set):
        return sorted(cast("Iterable[Any]", value), key=_order)
    return _scalar(value)


def _has_fields(value: Any) -> bool:
    kind = cast("type[Any]", type(value))
    return dataclasses.is_dataclass(kind) or (
        isinstance(value, tuple) and hasattr(cast("Any", kind), "_fields")
    )


def _mapping(value: Any) -> dict[str, Any]:
    if isinstance(value, BaseModel):
        computed = {name: getattr(value, name) for name in type(value).model_computed_fields}
        return {**dict(value), **computed}
    if isinstance(value, Mapping):
        return {_key(key): item for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, tuple):
        items = cast("Any", value)
        return dict(zip(items._fields, items, strict=True))
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _key(key: Any) -> str:
    """A key as JSON would write it."""
    if key is None or isinstance(key, bool):
        return {None: "null", True: "true", False: "false"}[key]
    scalar = unfold(key)
    return scalar if isinstance(scalar, str) else str(scalar)[:_TEXT_LIMIT]


def _order(item: Any) -> tuple[str, str]:
    return type(item).__name__, str(item)[:_TEXT_LIMIT]


def _scalar(value: Any) -> Any:
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Decimal | datetime | date):
        return value
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, time):
        return value.isoformat()
    if isinstance(value, bytes | bytearray | memoryview):
        return _text(bytes(cast("bytes", value)))
    if type(value).__module__.partition(".")[0] == "numpy" and hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, numbers.Integral):
        return int.__int__(int(value))
    if isinstance(value, numbers.Real):
        return float.__float__(float(value))
    return str(value)[:_TEXT_LIMIT]


def _text(value: bytes) -> str:
    """The text of UTF-8 bytes; base64 for other bytes."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return b64encode(value).decode()


DEPTH = 100
PARTS = 10_000
LETTERS = 1_000_000
_BIGGEST = 10**1_000


class ValueMistake(ValueError):
    """A value that a condition cannot hold. The message says what to write instead."""


def json_value(value: Any) -> Any:
    """`value` as JSON data: times as ISO texts, tuples as lists. Raises `ValueMistake`.

    NaN and the infinities stay: conditions can compare with them, but JSON cannot hold them.
    """
    return _Reading().of(value, DEPTH)


def not_json(value: Any) -> str | None:
    """A sentence about a NaN or an infinity in a result of `json_value`; None if there is none."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"JSON has no {value}: write a finite number, or compare in Python"
    if isinstance(value, dict):
        value = list(cast("dict[str, Any]", value).values())
    parts = cast("list[Any]", value) if isinstance(value, list) else []
    return next(filter(None, map(not_json, parts)), None)


class _Reading:
    def __init__(self) -> None:
        self._parts = PARTS
        self._letters = LETTERS

    def of(self, value: Any, depth: int) -> Any:
        self._parts -= 1
        if self._parts < 0:
            raise ValueMistake(f"a value may have at most {PARTS:,} parts")
        if isinstance(value, Mapping | list | tuple):
            if depth == 0:
                raise ValueMistake(f"a value may be at most {DEPTH} levels deep")
            return self._inside(value, depth - 1)
        return self._scalar(value)

    def _inside(self, value: Any, depth: int) -> Any:
        if not isinstance(value, Mapping):
            return [self.of(item, depth) for item in value]
        pairs = cast("Mapping[Any, Any]", value)
        return {self._key(key): self.of(item, depth) for key, item in pairs.items()}

    def _key(self, key: Any) -> str:
        if not isinstance(key, str):
            raise ValueMistake(f"the keys of a value must be strings, not {shortly(key)}")
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
            f"a value must be a JSON value (null, true, a number, a string, a list, a mapping) "
            f"or a time, not {type(value).__name__}"
        )

    def _text(self, text: str) -> str:
        self._letters -= len(text)
        if self._letters < 0:
            raise ValueMistake(f"the strings of a value may have at most {LETTERS:,} characters")
        if not can_be_written(text):
            raise ValueMistake(
                f"{shortly(text)} contains a lone surrogate (half a character): write valid Unicode"
            )
        return str.__str__(text)


def can_be_written(text: str) -> bool:
    """Whether `text` can be written as UTF-8: half of a surrogate pair cannot."""
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
        raise ValueMistake("a whole number may have at most 1,000 digits")
    return int.__int__(value)


def _of_decimal(value: Decimal) -> int | float:
    """The equal JSON number. Raises ValueMistake for a Decimal that no JSON number equals exactly."""
    number = float(value) if not value.is_snan() else math.nan
    if math.isnan(number) or value.is_infinite() or value == Decimal.from_float(number):
        return number
    if abs(value.adjusted()) < 1_000 and value == value.to_integral_value():
        return int(value)
    raise ValueMistake(f"{shortly(value)} is not exact as a JSON number: write a float or a string")


def _iso(value: date) -> str:
    """The ISO text. RFC 3339 has no offsets with seconds: such a time is converted to UTC."""
    if isinstance(value, datetime):
        offset = value.utcoffset()
        if offset is not None and offset % timedelta(minutes=1):
            value = value.astimezone(UTC)
    return value.isoformat()


def shortly(value: Any, limit: int = 60) -> str:
    """`value` in a few characters, for a sentence. Never raises, and never formats a huge value."""
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


# -- copies of a call's arguments, made before the call can change them

SCALARS = frozenset(
    {type(None), bool, int, float, complex, str, bytes, date, datetime, time, timedelta, Decimal, UUID}
)


def is_fixed(value: Any) -> bool:
    """Whether a value cannot change: a scalar, or a tuple or frozenset of scalars.

    Example:
        >>> is_fixed((1, "a")), is_fixed([1]), is_fixed(([1],))
        (True, False, False)
    """
    kind = cast("type[Any]", type(value))
    if kind in SCALARS or isinstance(value, PurePath):
        return True
    return kind in (tuple, frozenset) and all(map(is_fixed, cast("tuple[Any, ...]", value)))


def snapshot(value: Any) -> Any:
    """A deep copy of data: of containers, pydantic models, dataclasses and attrs classes.

    Anything else, such as a client, and what cannot be copied, is the object itself. Never raises.

    Example:
        >>> order = {"lines": [1]}
        >>> before = snapshot(order)
        >>> order["lines"].append(2)
        >>> before
        {'lines': [1]}
    """
    try:
        return _copy(value)
    except RecursionError:
        return value


def _copy(value: Any) -> Any:
    if is_fixed(value):
        return value
    kind = cast("type[Any]", type(value))
    if kind in (list, tuple, set):
        make: Any = kind
        return make(map(_copy, value))
    if kind is dict:
        return {name: _copy(item) for name, item in value.items()}
    try:
        return deepcopy(value) if _is_data(kind) else value
    except Exception:  # noqa: BLE001 - copying the user's objects may raise anything
        return value


def _is_data(kind: type[Any]) -> bool:
    own = issubclass(kind, dict | list | set | bytearray | BaseModel)
    return own or dataclasses.is_dataclass(kind) or hasattr(kind, "__attrs_attrs__")
