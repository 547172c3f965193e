"""Parameters as JSON, without the secrets in them.

Plain JSON stands as it is. Everything else is an object with a `$kind`: bytes, dates, tuples, sets, mappings
whose keys are no texts, enumerations, pydantic models, dataclasses, attrs classes, named tuples, saved
Prefect blocks (by name: their secrets stay with Prefect). `decoding` reads it back into equal values.

What is secret, too large, inside itself, or of no known kind is left out, and marked in its place by a
`LeftOut`.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cached_property
from typing import Any, ClassVar, Literal, cast

from pydantic import BaseModel, ConfigDict

from prefect_resilience.durable.letters.codec.classes import (
    class_path,
    hides,
    is_named_tuple,
    is_secret_holder,
    masked,
    masked_bytes,
)
from prefect_resilience.durable.letters.codec.scalars import plain_number, scalar_of

KIND = "$kind"
LEFT_OUT = "left-out"
LARGEST = 4_000_000
"""The most JSON, in characters, that a letter keeps of a call's parameters."""
DEEPEST = 60
HINT = 120
_NODE = 4

Why = Literal["secret", "too large", "too deep", "inside itself", "unknown kind"]


class LeftOut(BaseModel):
    """What stands where a value was left out of a letter.

    `path` leads there, as in "order.card.number"; `type` is the value's class; `hint` shows, redacted, what
    it was like. A replay needs it from elsewhere.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    path: str
    why: Why
    type: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Encoded:
    """The parameters of a call as JSON, and what is missing from them. `size` is in characters of JSON."""

    parameters: dict[str, Any]
    left_out: tuple[LeftOut, ...]
    size: int


class _TooLarge(Exception):
    pass


class _Unknown(Exception):
    """There is no JSON for a value."""


def encode_parameters(parameters: Mapping[str, Any], largest: int = LARGEST) -> Encoded:
    """A call's parameters as JSON of at most `largest` characters; the longest make room for the others.

    Never raises: what goes wrong with one value leaves that one out.
    """
    done: dict[str, tuple[Any, list[LeftOut], int]] = {}
    for name, value in parameters.items():
        done[name] = _encode_parameter(str(name), value, largest)
    total = sum(size for _, _, size in done.values())
    for name in sorted(done, key=lambda name: -done[name][2]):
        if total <= largest:
            break
        total -= done[name][2]
        done[name] = _left_out_whole(name, parameters[name], "too large")
        total += done[name][2]
    missing = tuple(one for _, left_out, _ in done.values() for one in left_out)
    return Encoded({name: encoded for name, (encoded, _, _) in done.items()}, missing, total)


def _encode_parameter(name: str, value: Any, largest: int) -> tuple[Any, list[LeftOut], int]:
    encoder = _Encoder(largest)
    try:
        encoded = encoder.named(name, value, name, DEEPEST)
        size = len(json.dumps(encoded, separators=(",", ":")))
    except _TooLarge:
        return _left_out_whole(name, value, "too large")
    except Exception:  # noqa: BLE001 - the user's objects may raise anything when they are looked at
        return _left_out_whole(name, value, "unknown kind")
    if size > largest:
        return _left_out_whole(name, value, "too large")
    return encoded, encoder.left_out, size


def _left_out_whole(name: str, value: Any, why: Why) -> tuple[Any, list[LeftOut], int]:
    mark = LeftOut(path=name, why=why, type=_type_name(value))
    encoded = _marked(mark)
    return encoded, [mark], len(json.dumps(encoded))


def _marked(mark: LeftOut) -> dict[str, Any]:
    return {KIND: LEFT_OUT, **mark.model_dump(exclude={"path"}, exclude_defaults=True)}


def _type_name(value: Any) -> str:
    kind = cast("type[Any]", type(value))
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


class _Encoder:
    """One parameter on its way into JSON. `left` is the room that there still is."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.left_out: list[LeftOut] = []
        self._around: set[int] = set()

    def named(self, name: str, value: Any, path: str, depth: int) -> Any:
        """A value under a name, which may say that it is secret."""
        if hides(name, value):
            return self._leave_out(path, "secret", value)
        return self.value(value, path, depth)

    def value(self, value: Any, path: str, depth: int) -> Any:
        """A value as JSON, or the mark that it was left out."""
        self._spend(_NODE)
        if depth <= 1:
            return self._leave_out(path, "too deep", value)
        if id(value) in self._around:
            return self._leave_out(path, "inside itself", value)
        missing = len(self.left_out)
        self._around.add(id(value))
        try:
            return self._known(value, path, depth - 1)
        except (_Unknown, RecursionError):
            del self.left_out[missing:]  # of its parts; now it is missing as a whole
            return self._leave_out(path, "unknown kind", value)
        finally:
            self._around.discard(id(value))

    def _known(self, value: Any, path: str, depth: int) -> Any:
        if value is None or value is True or value is False:
            return value
        if is_secret_holder(value):
            return self._leave_out(path, "secret", value)
        if isinstance(value, Enum):
            return self._enum(value)
        if isinstance(value, str):
            return self._text(str.__str__(value), path)
        if isinstance(value, int | float):
            return _number(value)
        if isinstance(value, bytes | bytearray):
            self._spend(len(value))
            if masked_bytes(value):
                return self._leave_out(path, "secret", value)
        scalar = scalar_of(value)
        if scalar is None:
            return self._structure(value, path, depth)
        written = scalar.write(value)
        if not isinstance(value, bytes | bytearray) and (shown := masked(str(value))) is not None:
            return self._leave_out(path, "secret", value, shown)
        self._spend(len(str(written)))
        return {KIND: scalar.name, "value": written}

    def _text(self, text: str, path: str) -> Any:
        self._spend(len(text))
        shown = masked(text)
        return text if shown is None else self._leave_out(path, "secret", text, shown)

    def _enum(self, value: Enum) -> Any:
        cls = type(value)
        where = {KIND: "enum", "class": class_path(cls)}
        if cls.__members__.get(str(value.name)) is value:
            return {**where, "name": value.name}
        if isinstance(value.value, int):  # several flags together
            return {**where, "value": value.value}
        raise _Unknown

    def _structure(self, value: Any, path: str, depth: int) -> Any:
        if isinstance(value, BaseModel):
            return self._block(value) or self._model(value, path, depth)
        if is_dataclass(value) and not isinstance(value, type):
            names = [field.name for field in fields(value)]
            return self._object("dataclass", value, names, path, depth)
        if hasattr(cast("Any", type(value)), "__attrs_attrs__"):
            names = [field.name for field in cast("Any", type(value)).__attrs_attrs__]
            return self._object("attrs", value, names, path, depth)
        if isinstance(value, Mapping):
            return self._mapping(cast("Mapping[Any, Any]", value), path, depth)
        return self._items(value, path, depth)

    def _block(self, value: Any) -> Any:
        """A saved block is kept as its name: whoever replays the letter loads it again."""
        name, slug = getattr(value, "_block_document_name", None), getattr(value, "get_block_type_slug", None)
        if not name or not callable(slug) or getattr(value, "_is_anonymous", None):
            return None
        return {KIND: "block", "value": f"{slug()}/{name}"}

    def _model(self, value: BaseModel, path: str, depth: int) -> Any:
        encoded: dict[str, Any] = {
            KIND: "model",
            "class": class_path(type(value)),
            "fields": self._members(_state(value), path, depth),
            "set": sorted(value.model_fields_set),
        }
        if value.__pydantic_extra__:
            encoded["extra"] = self._members(value.__pydantic_extra__, path, depth)
        if private := self._private(value.__pydantic_private__ or {}, path, depth):
            encoded["private"] = private
        return encoded

    def _private(self, members: Mapping[str, Any], path: str, depth: int) -> dict[str, Any]:
        """Private attributes as far as they can be kept; the others get their defaults again."""
        kept: dict[str, Any] = {}
        for name, member in members.items():
            missing = len(self.left_out)
            encoded = self.named(name, member, f"{path}.{name}", depth)
            if len(self.left_out) == missing:
                kept[name] = encoded
            del self.left_out[missing:]
        return kept

    def _object(self, kind: str, value: Any, names: list[str], path: str, depth: int) -> Any:
        state = {name: getattr(value, name) for name in names if hasattr(value, name)}
        state |= _state(value)
        return {
            KIND: kind,
            "class": class_path(cast("type[Any]", type(value))),
            "fields": self._members(state, path, depth),
        }

    def _members(self, members: Mapping[str, Any], path: str, depth: int) -> dict[str, Any]:
        return {name: self.named(name, member, f"{path}.{name}", depth) for name, member in members.items()}

    def _mapping(self, value: Mapping[Any, Any], path: str, depth: int) -> Any:
        if not isinstance(value, dict):
            raise _Unknown
        texts = all(type(key) is str for key in value)
        if texts and any(masked(key) is not None for key in value):
            return self._leave_out(path, "secret", value)
        if texts and KIND not in value:
            for key in value:
                self._spend(len(key))
            return self._members(value, path, depth)
        pairs: list[Any] = []
        before = len(self.left_out)
        for key, item in value.items():
            missing = len(self.left_out)
            written = self.value(key, f"{path}.{key}", depth)
            if len(self.left_out) > missing:  # a mapping without one of its keys would be another one
                why = self.left_out[missing].why
                del self.left_out[before:]
                return self._leave_out(path, why, value)
            pairs.append([written, self.named(str(key), item, f"{path}.{key}", depth)])
        return {KIND: "dict", "value": pairs}

    def _items(self, value: Any, path: str, depth: int) -> Any:
        name = next((name for name, kind in _CONTAINERS.items() if isinstance(value, kind)), None)
        if name is None:
            raise _Unknown
        cls = cast("type[Any]", type(value))
        if is_named_tuple(cls):
            members = self._members(dict(zip(value._fields, value, strict=True)), path, depth)
            return {KIND: "namedtuple", "class": class_path(cls), "fields": members}
        # Sets are sorted, so that the same call makes the same letter whatever the hash seed.
        items: list[Any] = sorted(value, key=_sortable) if name in ("set", "frozenset") else list(value)
        encoded = [self.value(item, f"{path}.{place}", depth) for place, item in enumerate(items)]
        if name == "list":
            return encoded
        length = getattr(value, "maxlen", None)
        return {KIND: name, "value": encoded, **({} if length is None else {"maxlen": length})}

    def _leave_out(self, path: str, why: Why, value: Any, hint: str = "") -> Any:
        mark = LeftOut(path=path, why=why, type=_type_name(value), hint=hint[:HINT])
        self.left_out.append(mark)
        return _marked(mark)

    def _spend(self, room: int) -> None:
        self.left -= room
        if self.left < 0:
            raise _TooLarge


_CONTAINERS: dict[str, type[Any]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": deque,
}


def _state(value: Any) -> dict[str, Any]:
    """What an object keeps in its `__dict__`, without what it can work out again."""
    cls = cast("Any", type(value))
    return {
        name: member
        for name, member in getattr(value, "__dict__", {}).items()
        if not isinstance(getattr(cls, name, None), cached_property)
    }


def _number(value: int | float) -> Any:
    if isinstance(value, float):
        exact = float(value)
        return exact if plain_number(exact) else {KIND: "float", "value": str(exact)}
    exact = int(value)
    return exact if plain_number(exact) else {KIND: "int", "value": hex(exact)}


def _sortable(value: Any) -> tuple[str, str]:
    return type(value).__name__, repr(value)
