"""A call's parameters as JSON without the secrets in them, and back.

Plain JSON is kept unchanged. Other values become an object with a `$kind`: the scalars of `kinds`, tuples,
sets, mappings with keys that are not strings, enumerations, pydantic models, dataclasses and named tuples.

A value that is secret, too large, recursive, or of an unknown kind is left out and replaced by a
`LeftOut`. Reading runs no pickle and no validator of a model. It calls the constructors of dataclasses and
named tuples, which must give an equal object when the letter is made.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from functools import cached_property
from typing import Any, Literal, cast

import pydantic
from pydantic import BaseModel, TypeAdapter

from prefect_resilience.durable.letters.kinds import (
    SCALARS,
    DeadLetterError,
    FindModule,
    check_fields,
    class_path,
    find_class,
    hides,
    kind_of_class,
    scalar_of,
)
from prefect_resilience.errors.classify.shapes import read
from prefect_resilience.errors.secrets.redact import argument_names, redact

KIND = "$kind"
LEFT_OUT = "left-out"
LARGEST = 4_000_000
"""The most JSON, in characters, that a letter keeps of a call's parameters."""
DEEPEST = 60
HINT = 120
MOST_BITS = 10_000
"""Python's JSON does not read longer integers."""
_CONTAINERS: dict[str, type[Any]] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
_SIZED = (str, bytes, bytearray, dict, *_CONTAINERS.values())

Why = Literal["secret", "too large", "too deep", "inside itself", "unknown kind"]


class LeftOut(BaseModel, frozen=True):
    """A placeholder for a value left out of a letter. A replay needs the value from another source.

    `path` is its place, as in "order.card.number"; `type` is the value's class; `hint` is the redacted
    beginning of the value.
    """

    path: str
    why: Why
    type: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Encoded:
    """The parameters of a call as JSON, and the values left out of them. `size` is in characters of JSON."""

    parameters: dict[str, Any]
    left_out: tuple[LeftOut, ...]
    size: int


class _Unknown(Exception):
    """There is no JSON for a value."""


def encode_parameters(parameters: Mapping[str, Any], largest: int = LARGEST) -> Encoded:
    """A call's parameters as JSON of at most `largest` characters; larger values are left out.

    Never raises: a value that cannot be encoded is left out.
    """
    encoded: dict[str, Any] = {}
    left_out: list[LeftOut] = []
    total = 0
    for name, value in parameters.items():
        encoder = _Encoder(largest - total)
        written = encoder.value(value, str(name), str(name))
        size = len(json.dumps(written, separators=(",", ":")))
        if size > encoder.room:
            encoder.left_out.clear()
            written = encoder.leave_out(str(name), "too large", value)
            size = len(json.dumps(written))
        encoded[str(name)] = written
        left_out += encoder.left_out
        total += size
    return Encoded(encoded, (*left_out,), total)


class _Encoder:
    """Encodes one parameter as JSON. `room` is the number of characters that are left."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.left_out: list[LeftOut] = []
        self._around: list[int] = []

    def value(self, value: Any, path: str, name: str | None = None) -> Any:
        """A value as JSON, or its placeholder. `name` may show that the value is a secret."""
        if len(self._around) >= DEEPEST:
            return self.leave_out(path, "too deep", value)
        if id(value) in self._around:
            return self.leave_out(path, "inside itself", value)
        missing = len(self.left_out)
        self._around.append(id(value))
        try:
            if name is not None and hides(name, value):
                return self.leave_out(path, "secret", value)
            return self._encode(value, path)
        except Exception:  # noqa: BLE001 - reading a user's object may raise anything
            del self.left_out[missing:]  # entries of its parts: now the whole value is missing
            return self.leave_out(path, "unknown kind", value)
        finally:
            self._around.pop()

    def _encode(self, value: Any, path: str) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if callable(read(cast("object", type(value)), "get_secret_value")):  # a SecretStr or the like
            return self.leave_out(path, "secret", value)
        if isinstance(value, Enum):
            return _enum(value)
        if isinstance(value, int | float):
            return _number(value)
        if isinstance(value, _SIZED) and len(value) > self.room:
            return self.leave_out(path, "too large", cast("object", value))
        is_raw = isinstance(value, bytes | bytearray)
        kind = "text" if isinstance(value, str) else scalar_of(value)
        if kind is None:
            return self._structure(value, path)
        text = value.decode("latin-1") if is_raw else str.__str__(value) if kind == "text" else str(value)
        if (shown := redact(text)) != text:
            return self.leave_out(path, "secret", value, "" if is_raw else shown)
        return text if kind == "text" else {KIND: kind, "value": SCALARS[kind].write(value)}

    def _structure(self, value: Any, path: str) -> Any:
        cls = cast("type[Any]", type(value))
        kind = kind_of_class(cls)
        if kind == "model":
            return self._model(value, path)
        if isinstance(value, dict):
            return self._mapping(cast("dict[Any, Any]", value), path)
        if kind == "namedtuple":
            return self._object(kind, value, value._asdict(), path)
        if kind == "dataclass":
            names = [part.name for part in dataclasses.fields(cls) if part.init]
            return self._object(kind, value, {name: getattr(value, name) for name in names}, path)
        for kind, container in _CONTAINERS.items():
            if isinstance(value, container):
                # Sets are sorted, so that the same call makes the same letter whatever the hash seed.
                items = sorted(value, key=repr) if "set" in kind else list(value)
                named = zip(items, argument_names(items), strict=True)
                encoded = [self.value(item, f"{path}.{n}", name) for n, (item, name) in enumerate(named)]
                return encoded if kind == "list" else {KIND: kind, "value": encoded}
        raise _Unknown

    def _model(self, value: BaseModel, path: str) -> Any:
        cls = type(value)
        members = {
            name: member
            for name, member in value.__dict__.items()
            if not isinstance(getattr(cls, name, None), cached_property)
        }
        fields = self._members(members | (value.__pydantic_extra__ or {}), path)
        return {
            KIND: "model",
            "class": class_path(cls),
            "fields": fields,
            "set": sorted(value.model_fields_set),
        }

    def _object(self, kind: str, value: Any, members: dict[str, Any], path: str) -> dict[str, Any]:
        """An object that its constructor makes again from these members."""
        cls = cast("type[Any]", type(value))
        copy = cls(**members)
        if [getattr(copy, name) for name in members] != list(members.values()):
            raise _Unknown
        return {KIND: kind, "class": class_path(cls), "fields": self._members(members, path)}

    def _members(self, members: Mapping[str, Any], path: str) -> dict[str, Any]:
        return {name: self.value(member, f"{path}.{name}", name) for name, member in members.items()}

    def _mapping(self, value: dict[Any, Any], path: str) -> Any:
        pairs: list[Any] = []
        before = len(self.left_out)
        for key, item in value.items():
            missing = len(self.left_out)
            written = self.value(key, f"{path}.{key}")
            if len(self.left_out) > missing:  # a mapping without one of its keys would be a different mapping
                why = self.left_out[missing].why
                del self.left_out[before:]
                return self.leave_out(path, why, value)
            pairs.append([written, self.value(item, f"{path}.{key}", str(key))])
        is_plain = KIND not in value and all(type(key) is str for key in value)
        return dict(pairs) if is_plain else {KIND: "dict", "value": pairs}

    def leave_out(self, path: str, why: Why, value: Any, hint: str = "") -> Any:
        """The placeholder of a value."""
        cls = cast("type[Any]", type(value))
        name = cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
        mark = LeftOut(path=path, why=why, type=name, hint=hint[:HINT])
        self.left_out.append(mark)
        return {KIND: LEFT_OUT, **mark.model_dump(exclude={"path"}, exclude_defaults=True)}


def _enum(value: Enum) -> Any:
    cls = type(value)
    where = {KIND: "enum", "class": class_path(cls)}
    if cls.__members__.get(str(value.name)) is value:
        return {**where, "name": value.name}
    if isinstance(value.value, int):  # several flags together
        return {**where, "value": value.value}
    raise _Unknown


def _number(value: int | float) -> Any:
    if isinstance(value, float):
        exact = float(value)
        return exact if math.isfinite(exact) else {KIND: "float", "value": str(exact)}
    if value.bit_length() > MOST_BITS:
        raise _Unknown
    return int(value)


# -- reading


@dataclass
class Reader:
    """How to read one letter.

    `values` replace the values that were left out, by path. `missing` collects those that
    are not in `values`.
    """

    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    find_module: FindModule = importlib.import_module
    missing: list[LeftOut] = field(default_factory=list[LeftOut])

    def parameters(self, encoded: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters of the call. Raises DeadLetterError for a value that cannot be read."""
        read: dict[str, Any] = {}
        for name, value in encoded.items():
            try:
                read[name] = self.value(value, name)
            except Exception as error:
                why = str(error) if isinstance(error, DeadLetterError) else repr(error)
                raise DeadLetterError(f"the parameter {name!r} cannot be read: {why}") from error
        return read

    def value(self, encoded: Any, path: str) -> Any:
        """One value, from its place in the letter."""
        if isinstance(encoded, list):
            return self._items(cast("list[Any]", encoded), path)
        if not isinstance(encoded, dict):
            return encoded
        members = cast("dict[str, Any]", encoded)
        kind = members.get(KIND)
        return self._members(members, path) if kind is None else self._special(str(kind), members, path)

    def _special(self, kind: str, encoded: dict[str, Any], path: str) -> Any:
        if kind == LEFT_OUT:
            return self._read_left_out(encoded, path)
        if "class" in encoded and kind in ("enum", "model", "dataclass", "namedtuple"):
            return self._instance(kind, encoded, path)
        value = encoded.get("value")
        if kind in SCALARS:
            return SCALARS[kind].read(value)
        if kind in _CONTAINERS:
            return _CONTAINERS[kind](self._items(value, path))
        if kind == "dict":
            return self._dict(value, path)
        raise DeadLetterError(f"unknown kind of value {kind!r}: another version wrote the letter")

    def _read_left_out(self, encoded: Mapping[str, Any], path: str) -> Any:
        mark = LeftOut.model_validate({**encoded, "path": path})
        if path in self.values:
            return of_text(self.values[path], mark.type)
        self.missing.append(mark)
        return mark

    def _items(self, encoded: Any, path: str) -> list[Any]:
        return [self.value(item, f"{path}.{place}") for place, item in enumerate(encoded)]

    def _members(self, encoded: Mapping[str, Any], path: str) -> dict[str, Any]:
        return {name: self.value(member, f"{path}.{name}") for name, member in encoded.items()}

    def _dict(self, pairs: Any, path: str) -> dict[Any, Any]:
        decoded: dict[Any, Any] = {}
        for written, item in pairs:
            key = self.value(written, path)
            decoded[key] = self.value(item, f"{path}.{key}")
        return decoded

    def _instance(self, kind: str, encoded: dict[str, Any], path: str) -> Any:
        cls: Any = find_class(encoded["class"], kind, self.find_module)
        if kind == "enum":
            return cls[encoded["name"]] if "name" in encoded else cls(encoded["value"])
        missing = len(self.missing)
        members = self._members(encoded["fields"], path)
        if kind == "model":
            check_fields(cls, members)
            return cls.model_construct(_fields_set=set(encoded["set"]), **members)
        # A constructor may refuse the placeholder of a missing value.
        return cls(**members) if len(self.missing) == missing else members


def of_text(value: Any, type_name: str) -> Any:
    """The text given for a value that was left out, converted to that value's type."""
    kind = _OF_TEXT.get(type_name)
    return value if kind is None or not isinstance(value, str) else TypeAdapter(kind).validate_python(value)


_OF_TEXT: dict[str, Any] = {
    **{f"pydantic.types.{kind.__name__}": kind for kind in (pydantic.SecretStr, pydantic.SecretBytes)},
    "pydantic.types.Secret": pydantic.Secret[Any],
    **{"bytes": bytes, "int": int, "float": float, "decimal.Decimal": Decimal},
}
