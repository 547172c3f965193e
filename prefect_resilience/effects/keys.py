"""Keys of effects: canonical JSON, hashed, or a template filled in; the same in every process, for ever."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import math
import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from pathlib import PurePath
from typing import Any, cast
from urllib.parse import quote
from uuid import UUID

from pydantic import BaseModel, SecretBytes, SecretStr
from pydantic_core import to_jsonable_python

from prefect_resilience.effects.policy import BATCH_FIELD, Effect
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.naming import fill, shorten

EXACT = 2**53
"""Up to here a float and an integer of the same value are the same JSON number, as in RFC 8785."""

DEEPEST = 100
_SCALARS = (date, datetime, time, timedelta, Decimal, UUID, SecretStr, SecretBytes)


def canonical_json(value: Any) -> str:
    """`value` as the one JSON text that all equal values share.

    As RFC 8785, with two differences: integers may be of any size (ids of 64 bits are), and names are sorted
    by code points. Pydantic models, dataclasses, dates, UUIDs, decimals, enums, paths and bytes count as
    their JSON; sets are sorted. Raises TypeError for what is no JSON, ValueError for NaN and infinities.
    """
    return _text(_plain(value, DEEPEST))


def digest_of(value: Any) -> str:
    """SHA-256 of the canonical JSON, 64 hexadecimal digits."""
    return hashlib.sha256(canonical_json(value).encode("utf-8", "surrogatepass")).hexdigest()


def effect_key(effect: Effect, task: str, parameters: Mapping[str, Any], batch_id: str) -> str:
    """The key of one effect: printable ASCII without spaces at its ends, fit for an HTTP header.

    `task` names the function. Raises ConfigurationError when a field cannot be filled in, and where without
    a template a parameter is no JSON.
    """
    if effect.key is not None:
        filled = fill(effect.key, {BATCH_FIELD: batch_id, **parameters}, "effect key")
        return shorten(_printable(filled))
    scope = f"{effect.scope}:" if effect.scope else ""
    try:
        digest = digest_of([batch_id, scope, task, dict(parameters)])
    except (TypeError, ValueError) as error:
        raise _no_json(task, parameters, error) from None
    return f"{shorten(_printable(scope + task))}:{digest}"


def _no_json(task: str, parameters: Mapping[str, Any], error: Exception) -> ConfigurationError:
    which = "one of its parameters"
    for name, value in parameters.items():
        try:
            canonical_json(value)
        except (TypeError, ValueError) as its_own:
            which, error = f"its parameter {name!r}", its_own
            break
    return ConfigurationError(
        f"the effect of {task!r} has no key: {which} is {error}; "
        f'write a key over the others, such as Effect(key="{task}:{{id}}")'
    )


def _printable(text: str) -> str:
    """Whatever a header cannot carry, percent-encoded; distinct texts stay distinct."""
    return (
        quote(text, errors="surrogatepass", safe="!\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~")
        if not _fits(text)
        else text
    )


_fits = re.compile(r"[!-$&-~]*").fullmatch


def _text(plain: Any) -> str:
    return _canonical(plain)


_canonical = json.JSONEncoder(
    ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False
).encode


def _plain(value: Any, depth: int) -> Any:
    """The value as dicts, lists, strings, numbers, booleans and None."""
    if depth == 0:
        raise ValueError(f"nested more than {DEEPEST} levels deep")
    if isinstance(value, Enum):
        return _plain(value.value, depth - 1)
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, float)):
        return _number(value)
    if isinstance(value, (bytes, bytearray)):
        return value.hex()
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, _SCALARS):
        return to_jsonable_python(value)
    if isinstance(value, BaseModel):
        return _plain(value.model_dump(), depth - 1)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: _plain(getattr(value, one.name), depth - 1) for one in dataclasses.fields(value)}
    return _container(value, depth - 1)


def _number(value: float) -> int | float:
    if isinstance(value, int):
        return int(value)
    if not math.isfinite(value):
        raise ValueError(f"{value!r}, which is no JSON number")
    return int(value) if value.is_integer() and abs(value) <= EXACT else float(value)


def _container(value: Any, depth: int) -> Any:
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        named = {_name(name): _plain(item, depth) for name, item in items}
        if len(named) != len(items):
            raise ValueError("a mapping in which two names are the same in JSON")
        return named
    if isinstance(value, (list, tuple)):
        return [_plain(item, depth) for item in cast("list[Any]", value)]
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(item, depth) for item in cast("set[Any]", value)), key=_text)
    raise TypeError(f"a {type(value).__name__}, which is no JSON")


def _name(name: Any) -> str:
    if isinstance(name, str) and not isinstance(name, Enum):
        return name
    plain = _plain(name, 2)
    return plain if isinstance(plain, str) else _text(plain)


def task_name(fn: Callable[..., Any]) -> str:
    """How keys call a function: by its file's name and its own, which a changed body does not change.

    Where it was loaded from does not count either: a worker may clone the code anywhere.
    """
    function = inspect.unwrap(fn)
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return _prefix(getattr(getattr(function, "__code__", None), "co_filename", "")) + name


@lru_cache(maxsize=1_000)
def _prefix(file: str) -> str:
    path = PurePath(file)
    return f"{path.stem}." if path.suffix == ".py" and "ipykernel" not in str(path) else ""
