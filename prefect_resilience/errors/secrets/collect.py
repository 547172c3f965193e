"""Finding the secrets that a task was handed, so that they can be registered before it runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, cast

from pydantic import BaseModel

from prefect_resilience.errors.classify.shapes import read

_ITEMS = 10_000
_DEPTH = 12


def collect_secrets(value: Any) -> list[str]:
    """The plain values of every SecretStr, SecretBytes and the like (with `get_secret_value()`) in `value`.

    Walks mappings, lists, tuples, sets, dataclasses and pydantic models, to a depth of 12 and 10,000 items,
    each object once. Never raises; what cannot be read is passed over.
    """
    found: dict[str, None] = {}
    seen: set[int] = set()
    left = [(value, 0)]
    for _ in range(_ITEMS):
        if not left:
            break
        item, depth = left.pop()
        if id(item) in seen or isinstance(item, str | bytes | int | float | None):
            continue
        seen.add(id(item))
        _take(item, found)
        if depth < _DEPTH:
            left.extend((child, depth + 1) for child in _children(item))
    return list(found)


def _take(item: Any, found: dict[str, None]) -> None:
    reveal = read(cast("object", type(item)), "get_secret_value")
    if not callable(reveal):
        return
    try:
        secret = reveal(item)
    except Exception:  # noqa: BLE001 - somebody else's method
        return
    if isinstance(secret, bytes):
        secret = secret.decode("utf-8", "replace")
    if isinstance(secret, str) and secret:
        found[secret] = None


def _children(item: Any) -> list[Any]:
    try:
        return list(_parts(item))[:_ITEMS]
    except Exception:  # noqa: BLE001 - somebody else's container
        return []


def _parts(item: Any) -> Iterable[Any]:
    if isinstance(item, Mapping):
        return cast("Mapping[Any, Any]", item).values()
    if isinstance(item, list | tuple | set | frozenset):
        return cast("list[Any]", item)
    if isinstance(item, BaseModel):
        return [*item.__dict__.values(), *(item.__pydantic_extra__ or {}).values()]
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        return [read(item, field.name) for field in dataclasses.fields(item)]
    return ()
