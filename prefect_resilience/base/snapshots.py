"""Copies of a call's arguments, made before the call can change them."""

from __future__ import annotations

import dataclasses
from copy import deepcopy
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import PurePath
from typing import Any, cast
from uuid import UUID

from pydantic import BaseModel

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
