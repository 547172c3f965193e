"""What an effect returned, as JSON in the ledger, so that a replay gives an equal value back.

{"as": "json", "value": ...}     plain JSON
{"as": "typed", "value": ...}    JSON that the function's return type turns back into the value
{"as": "stored", "ref": ...}     where else it is kept: it is no JSON, or too long
{"as": "told", "value": ...}     JSON that a person gave, of which the function's return type makes the value
{"as": "lost", "why": ...}       it could not be kept at all
"""

from __future__ import annotations

import json
import math
import typing
from collections.abc import Callable
from functools import lru_cache
from typing import Any, cast

from pydantic import TypeAdapter

from prefect_resilience.durable.effects.policy import Done

MOST_BYTES = 1_000_000
"""The longest JSON of a result that stands in the ledger itself."""

LONGEST_INTEGER = 10**4000

Packed = dict[str, Any]


def pack(value: Any, fn: Callable[..., Any] | None = None) -> Packed | None:
    """The value as JSON from which `unpack` makes an equal one; None when there is no such JSON.

    `fn` is the function that returned it: its return type counts.
    """
    if _is_plain(value):
        return _short({"as": "json", "value": value})
    adapter = _adapter(fn)
    if adapter is None:
        return None
    try:
        dumped = adapter.dump_python(value, mode="json", warnings=False)
        back = adapter.validate_python(dumped)
        same = type(back) is type(value) and bool(back == value)
    except Exception:  # noqa: BLE001 - the user's types may raise anything
        return None
    return _short({"as": "typed", "value": dumped}) if same and _is_plain(dumped) else None


def pack_told(value: Any) -> Packed | None:
    """What somebody says that the function returned, as plain JSON; None when it is none."""
    packed = pack(value)
    return None if packed is None else {**packed, "as": "told"}


def rebuilt(value: Any, fn: Callable[..., Any] | None) -> Any:
    """JSON as the function's return type has it; unchanged where it does not fit, or is no JSON."""
    adapter = _adapter(fn) if _is_plain(value) else None
    try:
        return value if adapter is None or value is None else adapter.validate_python(value)
    except Exception:  # noqa: BLE001 - the user's types may raise anything
        return value


def unpack(packed: Packed, fn: Callable[..., Any] | None = None) -> Any:
    """The value of a result with a "value". LookupError when the function's type does not fit, or is gone.

    What was told by somebody is taken as it is where there is no type, and None in any case.
    """
    if packed["as"] == "json":
        return packed["value"]
    adapter = _adapter(fn)
    if packed["as"] == "told" and (adapter is None or packed["value"] is None):
        return packed["value"]
    if adapter is None:
        raise LookupError("the function has no return type any more that could rebuild it")
    try:
        return adapter.validate_python(packed["value"])
    except Exception as error:
        raise LookupError(f"it does not fit the function's return type any more: {error}") from error


def shown(packed: Packed | None) -> Any:
    """What an operator sees of a result: its JSON, or None."""
    return None if packed is None else packed.get("value")


def _short(packed: Packed) -> Packed | None:
    text = json.dumps(packed["value"], ensure_ascii=False, allow_nan=False)
    return packed if len(text.encode("utf-8", "surrogatepass")) <= MOST_BYTES else None


def _is_plain(value: Any, depth: int = 200) -> bool:
    """Whether JSON gives back exactly this: no tuples, no subclasses, no keys that are not strings."""
    kind = cast("type[Any]", type(value))
    if value is None or kind in (bool, str):
        return True
    if kind is int:
        return -LONGEST_INTEGER < value < LONGEST_INTEGER
    if kind is float:
        return math.isfinite(value)
    if depth and kind is list:
        return all(_is_plain(item, depth - 1) for item in value)
    if depth and kind is dict:
        items = cast("dict[Any, Any]", value).items()
        return all(type(name) is str and _is_plain(item, depth - 1) for name, item in items)
    return False


@lru_cache(maxsize=1_000)
def _adapter(fn: Callable[..., Any] | None) -> TypeAdapter[Any] | None:
    """What dumps and rebuilds values of the function's return type, or None."""
    try:
        wanted = typing.get_type_hints(fn, include_extras=True)["return"] if fn else Any
        return None if wanted in (Any, None, type(None), Done) else TypeAdapter(wanted)
    except Exception:  # noqa: BLE001 - hints that cannot be read say nothing
        return None
