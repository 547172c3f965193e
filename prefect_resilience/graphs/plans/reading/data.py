"""Whether a value is data that a plan can carry: bounded in depth and size, and what JSON can write."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from prefect_resilience.graphs.plans.reading.mistakes import quoted, shortened
from prefect_resilience.graphs.plans.reading.wrong import Place

DEEPEST = 100
"""Levels of objects and lists in a plan, the plan itself included."""

MOST_VALUES = 100_000
"""Values in one node or one field of a plan, each entry of a list or of an object counted."""


TOO_MANY = f"has more than {MOST_VALUES:,} values: a plan names its data, and carries little of it"


class Repeated(dict[str, Any]):
    """An object in which keys were written more than once: `keys` are those; the last value stands."""

    keys_repeated: tuple[str, ...] = ()


def wrong_data(value: Any, depth: int = 0) -> Iterator[tuple[Place, str]]:
    """What in a value is no data, with its place. What lies too deep is not looked at."""
    if not isinstance(value, _HOLDS):
        says = _wrong_scalar(value)
        if says:
            yield (), says
        return
    waiting: list[tuple[Place, Any, int]] = [((), value, depth)]
    left = MOST_VALUES
    while waiting:
        place, found, level = waiting.pop()
        if level >= DEEPEST:
            yield place, f"is nested more than {DEEPEST} levels deep: write it flatter"
            continue
        left -= len(found)
        if left < 0:
            yield place, TOO_MANY
            return
        keyed = isinstance(found, Mapping)
        if isinstance(found, Repeated):
            for key in found.keys_repeated:
                yield (*place, key), f"{quoted(key)} is written more than once: write it once"
        parts: Iterable[tuple[Any, Any]] = (
            cast("Mapping[Any, Any]", found).items() if keyed else enumerate(cast("list[Any]", found))
        )
        inside: list[tuple[Place, Any, int]] = []
        for key, part in parts:
            if keyed and (not isinstance(key, str) or not key.isascii()) and (says := _wrong_key(key)):
                yield place, says
            elif isinstance(part, _HOLDS):
                inside.append(((*place, key), cast("Any", part), level + 1))
            elif (type(part) is not str or not part.isascii()) and (says := _wrong_scalar(part)):
                yield (*place, key), says
        waiting.extend(reversed(inside))


_HOLDS = (dict, list, tuple, Mapping)


def _wrong_key(key: Any) -> str:
    if not isinstance(key, str):
        return f"{quoted(key)} is no key: write a text"
    return "has half a character in a key (a lone surrogate): write valid text" if _odd(key) else ""


def _wrong_scalar(value: Any) -> str:
    """What is wrong with a value that holds no others."""
    if value is None:
        return ""
    if isinstance(value, str):
        return "has half a character (a lone surrogate): write valid text" if _odd(value) else ""
    if isinstance(value, float):
        return "" if math.isfinite(value) else f"write a finite number, not {value}"
    if isinstance(value, int):
        return "is a number of too many digits: write it as a text" if value.bit_length() > 4096 else ""
    return f"write data that JSON knows, not {shortened(quoted(value))}"


def _odd(text: str) -> bool:
    """Whether a text cannot be written down."""
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
