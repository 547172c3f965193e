"""Parameters out of a letter's JSON, equal to what went in.

Reading never runs a constructor, a validator or a pickle: models and dataclasses are put together the way
`copy` does it. Classes are found by `classes.find_class`, which takes none but those that hold data.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, cast

import pydantic
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from prefect_resilience.durable.letters.codec.classes import DeadLetterError, FindModule, find_class
from prefect_resilience.durable.letters.codec.encoding import KIND, LEFT_OUT, LeftOut
from prefect_resilience.durable.letters.codec.scalars import BY_NAME


@dataclass(frozen=True, slots=True)
class BlockReference:
    """A saved Prefect block that was a parameter, as "type-slug/name"."""

    name: str


@dataclass
class Reader:
    """How to read one letter.

    `values` are what was left out, by path; `load_block` turns the name of a saved block into the block.
    `missing` gathers what was left out and is not given.
    """

    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    find_module: FindModule = importlib.import_module
    load_block: Callable[[str], Any] = BlockReference
    missing: list[LeftOut] = field(default_factory=list[LeftOut])

    def parameters(self, encoded: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters of the call. Raises DeadLetterError for what cannot be read here or any more."""
        read: dict[str, Any] = {}
        for name, value in encoded.items():
            try:
                read[name] = self.value(value, name)
            except DeadLetterError as error:
                raise DeadLetterError(f"the parameter {name!r} cannot be read: {error}") from error
            except Exception as error:
                raise DeadLetterError(f"the parameter {name!r} cannot be read: {error!r}") from error
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
            return self._left_out(encoded, path)
        if kind in BY_NAME:
            return BY_NAME[kind].read(encoded["value"])
        if kind in _SIMPLE:
            return _SIMPLE[kind](encoded["value"])
        if kind in _CONTAINERS:
            return _CONTAINERS[kind](self._items(encoded["value"], path))
        if kind == "deque":
            return deque(self._items(encoded["value"], path), encoded.get("maxlen"))
        if kind == "dict":
            return self._dict(encoded["value"], path)
        if kind == "block":
            return self.load_block(encoded["value"])
        if kind in ("enum", "model", "dataclass", "attrs", "namedtuple"):
            return self._instance(kind, encoded, path)
        raise DeadLetterError(f"there is no kind {kind!r} of value here: a newer version wrote the letter")

    def _left_out(self, encoded: Mapping[str, Any], path: str) -> Any:
        mark = LeftOut.model_validate({**encoded, "path": path})
        if path not in self.values:
            self.missing.append(mark)
            return mark
        return wrapped(self.values[path], mark.type)

    def _items(self, encoded: list[Any], path: str) -> list[Any]:
        return [self.value(item, f"{path}.{place}") for place, item in enumerate(encoded)]

    def _members(self, encoded: Mapping[str, Any], path: str) -> dict[str, Any]:
        return {name: self.value(member, f"{path}.{name}") for name, member in encoded.items()}

    def _dict(self, pairs: list[Any], path: str) -> dict[Any, Any]:
        made: dict[Any, Any] = {}
        for written, item in pairs:
            key = self.value(written, path)
            made[key] = self.value(item, f"{path}.{key}")
        return made

    def _instance(self, kind: str, encoded: dict[str, Any], path: str) -> Any:
        cls: Any = find_class(encoded["class"], self.find_module)
        if kind == "enum":
            return cls[encoded["name"]] if "name" in encoded else cls(encoded["value"])
        members = self._members(encoded["fields"], path)
        if kind == "namedtuple":
            return _named_tuple(cls, members)
        if kind == "model":
            return self._model(cls, encoded, members, path)
        return _object(cls, members)

    def _model(self, cls: type[Any], encoded: dict[str, Any], members: dict[str, Any], path: str) -> Any:
        if not issubclass(cls, BaseModel):
            raise DeadLetterError(f"{cls.__qualname__} is no pydantic model any more")
        made = cls.__new__(cls)
        private = {
            name: default
            for name, attribute in cls.__private_attributes__.items()
            if (default := attribute.get_default()) is not PydanticUndefined
        }
        private |= self._members(encoded.get("private", {}), path)
        extra = self._members(encoded["extra"], path) if "extra" in encoded else None
        if extra is None and cls.model_config.get("extra") == "allow":
            extra = {}
        BaseModel.__setstate__(
            made,
            {
                "__dict__": _fitting(cls, members),
                "__pydantic_extra__": extra,
                "__pydantic_fields_set__": set(encoded["set"]),
                "__pydantic_private__": private if cls.__private_attributes__ else None,
            },
        )
        return made


def _fitting(cls: type[BaseModel], members: dict[str, Any]) -> dict[str, Any]:
    """The fields as the class has them now: new ones get their defaults; DeadLetterError where that fails."""
    known = cls.model_fields
    if strange := sorted(set(members) - set(known)):
        raise DeadLetterError(f"{cls.__qualname__} has no field {strange[0]!r} any more")
    for name, info in known.items():
        if name not in members:
            if info.is_required():
                raise DeadLetterError(f"{cls.__qualname__} has a new field {name!r} and no default for it")
            members[name] = info.get_default(call_default_factory=True, validated_data=members)
    return members


def _object(cls: Any, members: dict[str, Any]) -> Any:
    """A dataclass or attrs object with these members, also a frozen one and one with slots."""
    made: Any = cls.__new__(cls)
    declared: Any = dataclasses.fields(cls) if hasattr(cls, "__dataclass_fields__") else ()
    for one in declared:
        if one.name in members:
            continue
        if one.default_factory is not dataclasses.MISSING:
            members[one.name] = one.default_factory()
        elif one.default is not dataclasses.MISSING:
            members[one.name] = one.default
        elif one.init:
            raise DeadLetterError(f"{cls.__qualname__} has a new field {one.name!r} and no default for it")
    for name, member in members.items():
        try:
            object.__setattr__(made, name, member)
        except AttributeError:
            raise DeadLetterError(f"{cls.__qualname__} has no field {name!r} any more") from None
    return made


def _named_tuple(cls: Any, members: dict[str, Any]) -> Any:
    names: tuple[str, ...] = getattr(cls, "_fields", ())
    if set(names) != set(members):
        raise DeadLetterError(f"{cls.__qualname__} does not have the fields {', '.join(members)} any more")
    return cast("Any", tuple).__new__(cls, [members[name] for name in names])


def wrapped(value: Any, type_name: str) -> Any:
    """A value that is given for one that was left out: a text becomes the SecretStr that there was."""
    if not isinstance(value, str):
        return value
    if type_name == "pydantic.types.SecretStr":
        return pydantic.SecretStr(value)
    if type_name == "pydantic.types.SecretBytes":
        return pydantic.SecretBytes(value.encode())
    if type_name == "pydantic.types.Secret":
        return pydantic.Secret(value)
    if type_name in _NUMBERS:
        return _NUMBERS[type_name](value)
    return value.encode() if type_name == "bytes" else value


_NUMBERS: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "decimal.Decimal": Decimal}
_SIMPLE: dict[str, Callable[[Any], Any]] = {"float": float, "int": lambda text: int(text, 16)}
_CONTAINERS: dict[str, Callable[[Any], Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}
