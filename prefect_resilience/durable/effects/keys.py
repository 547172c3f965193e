"""Keys of effects and their recipes. They must stay the same in every process and every version."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
import string
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from enum import Enum
from functools import cached_property, partial
from operator import itemgetter
from pathlib import PurePath
from types import FunctionType
from typing import Any, TypeVar, cast
from urllib.parse import quote
from uuid import UUID

from pydantic import BaseModel, Secret, SecretBytes, SecretStr

from prefect_resilience.base.naming import fill_with, shorten
from prefect_resilience.durable.effects.policy import BATCH_FIELD, Effect, names_and_defaults
from prefect_resilience.durable.effects.recipes import Recipe, class_name, task_name
from prefect_resilience.errors.exceptions import ConfigurationError

# Two encodings of arguments as JSON: `typed(17)` and `typed("17")` differ, `loose(17)` and `loose("17")`
# agree. A secret is encoded as a keyed hash, made by `hasher`; it never appears in a key.
#
# Processes of two versions may share a ledger. So a change of `typed` may give a value another encoding only
# if the old one was also that of a different value, or failed; and `loose` keeps its encodings: by them an
# effect is found whose key the other version made.

DIGEST = 2
"""The version of `typed`. Recipes of version 1 do not contain it."""
DEEPEST = 100
_LONGEST = 10**4300
"""From here on Python does not write an integer in decimal."""
Hasher = Callable[[str], str]
Number = TypeVar("Number", float, Decimal)
_DECIMAL = re.compile(r"-?\d+\.\d+", re.ASCII).fullmatch
_TEXTS = (date, timedelta, Decimal, UUID, PurePath)
_BUILTINS = (str, int, float, bytes, bytearray, dict, list, tuple, set, frozenset)
_STATEFUL = (*_BUILTINS, date, time, timedelta, Decimal)
"""Types whose subclasses may have attributes besides the value."""
_WITHOUT_VALUE = (TypeError, ValueError, RecursionError)
_SECRETS = (SecretStr, SecretBytes, Secret)

canonical: Callable[[Any], str] = json.JSONEncoder(
    ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False
).encode
"""The canonical JSON text of what `typed` or `loose` returned."""


def digest(plain: Any, size: int = 32) -> str:
    """Hexadecimal digits of the SHA-256 of a canonical text; `size` is in bytes."""
    return hashlib.sha256(canonical(plain).encode("utf-8", "surrogatepass")).hexdigest()[: 2 * size]


def typed(value: Any, hasher: Hasher, depth: int = DEEPEST) -> Any:
    """The value as JSON in which values of different types always differ.

    Raises TypeError for an object without a comparable value, ValueError for NaN, infinities and values
    nested too deep.
    """
    if depth == 0:
        raise ValueError(f"nested more than {DEEPEST} levels deep")
    kind = cast("type[Any]", type(value))
    if value is None or kind in (bool, str):
        return value
    if kind is int:
        return value if -_LONGEST < value < _LONGEST else {"type": "int", "is": hex(value)}
    if kind is float:
        return _finite(value)
    if kind is list:
        return [typed(item, hasher, depth - 1) for item in value]
    encode = partial(typed, hasher=hasher, depth=depth - 1)
    whole = {"type": class_name(kind), "is": _inside(value, encode, hasher)}
    beside = {} if kind.__module__ == "builtins" else _beside(value, encode)
    return {**whole, "beside": beside} if beside else whole


def _beside(value: Any, each: Callable[[Any], Any]) -> dict[str, Any]:
    """The parts of a value that `_inside` leaves out. Most values have none."""
    if isinstance(value, Enum | Secret | SecretStr | SecretBytes):
        return {}
    if isinstance(value, BaseModel):
        return _private(value, each)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name for field in dataclasses.fields(value)}
        tried = {name: _try_all(item, each) for name, item in _state(value).items() if name not in fields}
        return {name: item for name, item in tried.items() if item is not None}
    if not isinstance(value, _STATEFUL):
        return {}
    beside = {name: each(item) for name, item in _state(cast("object", value)).items()}
    if isinstance(value, datetime | time) and value.utcoffset() is None:
        # Two readings of a clock that was set back, and a time whose text does not show its zone.
        beside |= {"fold": 1} if value.fold else {}
        beside |= {} if value.tzinfo is None else {"zone": each(value.tzinfo)}
    if isinstance(value, OrderedDict):
        items = [[each(name), each(item)] for name, item in cast("OrderedDict[Any, Any]", value).items()]
        beside |= {"order": items} if items != sorted(items, key=canonical) else {}
    if isinstance(value, str) and (text := str.__str__(value)) != str(value):
        beside["text"] = text
    return beside


def _state(value: object) -> dict[str, Any]:
    """The attributes of an object in `__dict__` and slots, without cached properties."""
    state: Any = object.__getstate__(value)
    parts: list[dict[str, Any] | None] = [*state] if isinstance(state, tuple) else [state]
    return {
        name: item
        for part in parts
        for name, item in (part or {}).items()
        if not isinstance(getattr(type(value), name, None), cached_property)
    }


def _private(model: BaseModel, each: Callable[[Any], Any]) -> dict[str, Any]:
    """The private attributes that differ from their defaults; those without a value, such as a client, do not
    count. Those of a Prefect block say where it is saved."""
    if hasattr(type(model), "get_block_type_slug"):
        return {}
    declared = type(model).__private_attributes__
    tried = {name: _try_all(item, each) for name, item in (model.__pydantic_private__ or {}).items()}
    return {
        name: item
        for name, item in tried.items()
        if item is not None and (name not in declared or item != _try_all(declared[name].get_default(), each))
    }


def _try_all(value: Any, each: Callable[[Any], Any]) -> list[Any] | None:
    """The encoded value in a list; None if it has none."""
    try:
        return [each(value)]
    except _WITHOUT_VALUE:
        return None


def loose(value: Any, hasher: Hasher, depth: int = DEEPEST) -> Any:
    """The value as JSON in which a number and its text, a list and a tuple, a model and a dict look alike."""
    if depth == 0:
        raise ValueError(f"nested more than {DEEPEST} levels deep")
    if isinstance(value, Enum):
        return loose(value.value, hasher, depth - 1)
    if isinstance(value, str):
        return _number(Decimal(value)) if _DECIMAL(value) else value
    if value is None:
        return value
    if isinstance(value, int):
        return str(int(value)) if -_LONGEST < value < _LONGEST else hex(value)
    if isinstance(value, float):
        return _number(Decimal(repr(_finite(float(value)))))
    if isinstance(value, Decimal):
        return _number(_finite(value))
    if isinstance(value, bytes | bytearray):
        return value.decode("utf-8", "backslashreplace")
    inside = _inside(value, partial(loose, hasher=hasher, depth=depth - 1), hasher)
    if isinstance(inside, dict):
        inside = [[name, item] for name, item in cast("dict[str, Any]", inside).items()]
        return {"fields": sorted(inside, key=canonical)}
    if isinstance(value, Mapping):
        named = [[name if isinstance(name, str) else canonical(name), item] for name, item in inside]
        return {"fields": sorted(named, key=canonical)}
    return inside


def _inside(value: Any, each: Callable[[Any], Any], hasher: Hasher) -> Any:
    """The parts of a value that is not plain JSON: fields as a dict, the items of a mapping as pairs."""
    if isinstance(value, Enum):
        return each(value.value)
    if isinstance(value, _SECRETS):
        return hasher(canonical(each(cast("Any", value).get_secret_value())))
    if isinstance(value, BaseModel):
        return _fields_of_model(value, each)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: each(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return sorted(([each(name), each(item)] for name, item in items), key=canonical)
    if isinstance(value, list | tuple):
        return [each(item) for item in cast("list[Any]", value)]
    if isinstance(value, set | frozenset):
        return sorted((each(item) for item in cast("set[Any]", value)), key=canonical)
    return _scalar(value)


def _fields_of_model(model: BaseModel, each: Callable[[Any], Any]) -> dict[str, Any]:
    fields = {name: each(getattr(model, name)) for name in type(model).model_fields}
    more = {name: each(item) for name, item in (model.model_extra or {}).items()}
    return {**fields, **more}


def _scalar(value: Any) -> Any:
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, int):
        return int(value) if -_LONGEST < value < _LONGEST else hex(value)
    if isinstance(value, float):
        return _finite(float(value))
    if isinstance(value, bytes | bytearray):
        return value.hex()
    if isinstance(value, datetime | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(_finite(value))
    # The default repr shows an address, which differs between processes.
    if isinstance(value, _TEXTS) or (
        isinstance(value, tzinfo) and type(value).__repr__ is not object.__repr__
    ):
        return str(value)
    if isinstance(value, type):
        return class_name(cast("type[Any]", value))
    if isinstance(value, FunctionType) and value.__closure__ is None and "<" not in value.__qualname__:
        return task_name(value)
    raise TypeError(f"a {type(value).__name__}, which has no value that can be compared")


def _number(value: Decimal) -> str:
    """A number's canonical text: no trailing zeros and no exponent."""
    text = format(value, "f")
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def _finite(value: Number) -> Number:
    if not value.is_finite() if isinstance(value, Decimal) else not math.isfinite(value):
        raise ValueError(f"{value!r}, which is not a number")
    return value if isinstance(value, Decimal) else value + 0.0  # no -0.0


SHORT = 8
"""Bytes of the digest of one argument."""


@dataclass(frozen=True, slots=True)
class MadeKey:
    """The key of one effect, and its recipe."""

    key: str
    recipe: Recipe


def effect_key(
    effect: Effect,
    task: str,
    parameters: Mapping[str, Any],
    batch_id: str,
    *,
    fn: Callable[..., Any] | None = None,
    hasher: Hasher,
    digests: bool = True,
) -> MadeKey:
    """The key of one effect: printable ASCII without spaces at its ends, fit for an HTTP header.

    Without a template it is a digest of the task's dotted name and of the arguments with their types;
    arguments that equal their defaults do not count. `task` is the dotted name of the function; the signature
    of `fn` has the defaults. Without `digests` the recipe has none. Raises ConfigurationError when a field
    cannot be filled in, or when an argument has no comparable value and there is no template.
    """
    names, defaults = ((*parameters,), {}) if fn is None else names_and_defaults(fn)
    fields = frozenset(effect.fields)
    args = {
        name: (_argument(value, name in fields, hasher) if digests else {})
        | ({"default": True} if name in defaults and _is(value, defaults[name], hasher) else {})
        for name, value in parameters.items()
    }
    recipe: Recipe = {
        "task": task,
        "scope": effect.scope,
        "template": effect.key,
        "names": list(names),
        "args": args,
        "digest": DIGEST,
    }
    if effect.key is not None:
        arguments = {BATCH_FIELD: batch_id, **parameters}
        formatter = _Escaping(effect.key, hasher)
        filled = fill_with(formatter, effect.key, arguments, "effect key")
        recipe["fields"] = {
            name: args[name] if name in args else _argument(value, True, hasher)
            for name, value in (formatter.values.items() if digests else ())
        }
        return MadeKey(shorten(_printable(filled)), recipe)
    return MadeKey(_digest_key(effect, task, parameters, batch_id, args, hasher), recipe)


def _digest_key(
    effect: Effect,
    task: str,
    parameters: Mapping[str, Any],
    batch_id: str,
    args: Mapping[str, Mapping[str, Any]],
    hasher: Hasher,
) -> str:
    scope = f"{effect.scope}:" if effect.scope else ""
    pairs: list[Any] = []
    for name in sorted(parameters):
        if args[name].get("default"):
            continue
        try:
            pairs.append([name, typed(parameters[name], hasher)])
            canonical(pairs[-1])
        except _WITHOUT_VALUE as error:
            raise ConfigurationError(
                f"the effect of {task!r} has no key: its parameter {name!r} is {error}; "
                f'write a key with the others, such as key="{task}:{{id}}"'
            ) from None
    return f"{shorten(_printable(scope + task))}:{digest([batch_id, scope, task, pairs])}"


def _argument(value: Any, in_key: bool, hasher: Hasher) -> dict[str, Any]:
    """One argument, or one field of the template, of a recipe."""
    digests = {"typed": short_digest(value, hasher), "loose": short_digest(value, hasher, loose)}
    return {"type": type(value).__name__, **digests, **({"key": True} if in_key else {})}


def short_digest(value: Any, hasher: Hasher, encode: Callable[..., Any] = typed) -> str | None:
    """The digest of one argument; None if it has no value."""
    try:
        return digest(encode(value, hasher), SHORT)
    except _WITHOUT_VALUE:
        return None


def _is(value: Any, default: Any, hasher: Hasher) -> bool:
    if value is default:
        return True
    try:
        # The user's types may call different values equal.
        equal = type(value) is type(default) and bool(value == default)
        return equal and canonical(typed(value, hasher)) == canonical(typed(default, hasher))
    except Exception:  # noqa: BLE001 - comparing the user's types may raise anything
        return False


class _Escaping(string.Formatter):
    """Fills in a template. In the values, it escapes the punctuation that separates the template's fields."""

    def __init__(self, template: str, hasher: Hasher) -> None:
        literal = "".join(map(itemgetter(0), string.Formatter().parse(template)))
        self._special = re.compile("[" + re.escape("".join(sorted({*literal, "%"} - _WORD))) + "]")
        self._hasher = hasher
        self.values: dict[str, Any] = {}
        """The values of the template's fields."""

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        value, first = super().get_field(field_name, args, kwargs)
        if first != BATCH_FIELD:
            self.values[field_name] = value
        return value, first

    def convert_field(self, value: Any, conversion: Any) -> Any:
        # All secrets have the same text: asterisks.
        if isinstance(value, _SECRETS):
            return cast("Any", value)
        return super().convert_field(value, conversion)

    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, _SECRETS):
            secret: Any = cast("Any", value).get_secret_value()
            return self._hasher(canonical(typed(secret, self._hasher)))[:32]
        return self._special.sub(_percent, cast("str", super().format_field(value, format_spec)))


_WORD = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.")


def _percent(found: re.Match[str]) -> str:
    return (
        quote(found[0], safe="", errors="surrogatepass") if found[0] not in "-~" else f"%{ord(found[0]):02X}"
    )


def _printable(text: str) -> str:
    """The text with percent-encoding for characters not allowed in a header; distinct texts stay distinct."""
    return (
        text
        if _fits(text)
        else quote(text, errors="surrogatepass", safe="!\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~%")
    )


_fits = re.compile(r"[!-$&-~%]*").fullmatch
