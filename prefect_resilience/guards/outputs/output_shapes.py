"""The kinds of expected outputs: a type of JSON, a JSON Schema, a model, a predicate.

Each checks an output and returns the task's value, or raises `Broken` with the violations.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, is_dataclass
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, cast, get_origin

from pydantic import BaseModel, TypeAdapter
from pydantic import ValidationError as ModelError
from pydantic_core import to_jsonable_python

from prefect_resilience.base.policy import nearest
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.taxonomy import bounded

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

FENCE = "```"
_BLOCK = re.compile(r"```[^\n]*\n(.*?)```", re.DOTALL)
MOST_BLOCKS = 20
"""The most fenced blocks of one text that are parsed."""


class NotJson(ValueError):
    """Neither the text nor a fenced block of it is JSON; the message says where parsing ended."""


def read_json(text: str) -> tuple[Any, str]:
    """The parsed JSON of a text and its source: the whole text, or the first fenced block that is JSON.

    NaN and infinities are not JSON. Raises `NotJson`.
    """
    first: str | None = None
    for candidate in (text, *_blocks(text)):
        source = candidate.strip().removeprefix("\ufeff")
        try:
            return json.loads(source, parse_constant=_refuse), source
        except (ValueError, RecursionError) as error:
            first = first or ("it is nested too deeply" if isinstance(error, RecursionError) else str(error))
    raise NotJson(f"not JSON: {first}") from None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not valid JSON")


def _blocks(text: str) -> Iterator[str]:
    """The text in each pair of fences, then from the first fence to the last one: JSON may have fences."""
    yield from (match[1] for match in islice(_BLOCK.finditer(text), MOST_BLOCKS))
    yield text[text.find("\n", text.find(FENCE)) : text.rfind(FENCE)]


MOST_VIOLATIONS = 100
LONGEST_MESSAGE = 300

TYPES: dict[str, type | tuple[type, ...]] = {
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "null": type(None),
    "string": str,
    "array": (list, tuple),
    "object": Mapping,
}
"""The types of JSON, and their Python types. The first one that fits is the type of a value."""

_STRUCTURAL = frozenset(
    (
        *("properties", "patternProperties", "additionalProperties", "unevaluatedProperties", "required"),
        *("propertyNames", "minProperties", "maxProperties", "dependentRequired", "dependentSchemas"),
        *("items", "prefixItems", "unevaluatedItems", "contains", "minItems", "maxItems", "uniqueItems"),
    )
)
"""Keywords of JSON Schema that apply only to objects and arrays."""


class Broken(Exception):
    """The output is not as expected; `violations` are of the form `{"path": "/a/0", "message": "..."}`."""

    def __init__(self, actual: str, violations: list[dict[str, Any]]) -> None:
        self.actual = actual
        self.violations = violations
        super().__init__(actual)


def type_of(value: Any) -> str:
    """The name of a value's JSON type, else of its class."""
    return next((name for name, types in TYPES.items() if isinstance(value, types)), type(value).__name__)


def violation(message: str, path: Iterable[Any] = (), **more: Any) -> dict[str, Any]:
    return {"path": pointer(path), "message": bounded(message, LONGEST_MESSAGE), **more}


def pointer(path: Iterable[Any]) -> str:
    """A JSON pointer (RFC 6901)."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)


@dataclass(frozen=True)
class JsonType:
    """A type of JSON by its name. A text is read as JSON unless a string is expected."""

    name: str

    def of(self, value: Any) -> Any:
        parsed = value if self.name == "string" else _read(value)
        actual = type_of(parsed)
        fits = (actual, self.name) == ("integer", "number") or (self.name == "object" and _has_fields(parsed))
        if actual != self.name and not fits:
            raise Broken(actual, [])
        return parsed


def _has_fields(value: Any) -> bool:
    """Whether the value is not a mapping but an object in JSON."""
    return isinstance(value, BaseModel) or (is_dataclass(value) and not isinstance(value, type))


@dataclass(frozen=True)
class Schema:
    """A JSON Schema, of Draft 2020-12 unless it names another one; `format` is not checked."""

    schema: Mapping[str, Any] = field(hash=False)

    def __post_init__(self) -> None:
        from jsonschema.exceptions import SchemaError

        try:
            self._class.check_schema(cast("dict[str, Any]", self.schema))
        except SchemaError as error:
            place = pointer(error.absolute_path) or "the schema"
            raise ConfigurationError(f"expect= is not a JSON Schema: {place}: {error.message}") from None

    @property
    def _types(self) -> list[str]:
        types = self.schema.get("type", [])
        return [types] if isinstance(types, str) else types

    @property
    def name(self) -> str:
        return " or ".join(self._types) or str(self.schema.get("title", "JSON Schema"))

    @property
    def _class(self) -> type[Validator]:
        from jsonschema import Draft202012Validator
        from jsonschema.validators import validator_for

        return validator_for(self.schema, default=Draft202012Validator)

    @cached_property
    def _validator(self) -> Validator:
        from referencing import Registry

        # A registry of its own: nothing is fetched from the network.
        return self._class(self.schema, registry=Registry())

    def __getstate__(self) -> dict[str, Any]:
        return {"schema": self.schema}

    @property
    def structural(self) -> bool:
        """Whether the schema describes objects or arrays, so that a text must be parsed first."""
        if not self._types:
            return not _STRUCTURAL.isdisjoint(self.schema)
        return "string" not in self._types

    def of(self, value: Any) -> Any:
        if self.structural or not isinstance(value, str):
            parsed = _read(value)
            self._check(parsed, value)
            return parsed
        try:
            self._check(value, value)
            return value
        except Broken as as_text:
            try:
                parsed = read_json(value)[0]
                self._check(parsed, value)
                return parsed
            except (NotJson, Broken):
                raise as_text from None

    def _check(self, parsed: Any, value: Any) -> None:
        from referencing.exceptions import Unresolvable

        data = parsed if parsed is not value else _plain(parsed)
        errors = None
        try:
            with suppress(RecursionError):
                errors = list(islice(self._validator.iter_errors(data), MOST_VIOLATIONS))
        except Unresolvable as error:
            raise ConfigurationError(f"expect= is a JSON Schema with an unknown $ref: {error}") from None
        if errors is None:
            raise Broken(type_of(data), [violation("it is nested too deeply")])
        if errors:
            wrong = sorted(errors, key=lambda error: [_in_order(step) for step in error.absolute_path])
            violations = [
                violation(error.message, error.absolute_path, keyword=error.validator) for error in wrong
            ]
            raise Broken(type_of(data), violations)


def _in_order(step: int | str) -> tuple[int, str]:
    return (step, "") if isinstance(step, int) else (-1, step)


@dataclass(frozen=True)
class Model:
    """A pydantic model, or another type that pydantic validates: the task then returns an instance of it."""

    model: Any = field(hash=False)

    def __post_init__(self) -> None:
        model = self.model
        if isinstance(model, type) and issubclass(model, BaseModel):
            return  # it may name models that are defined later
        try:
            TypeAdapter(cast("Any", model))
        except Exception as error:  # noqa: BLE001 - pydantic raises several kinds of errors
            raise ConfigurationError(f"expect={model!r} is not a type for pydantic: {error}") from None

    @property
    def name(self) -> str:
        return getattr(self.model, "__name__", None) or str(self.model)

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.model)

    def __getstate__(self) -> dict[str, Any]:
        return {"model": self.model}

    def of(self, value: Any) -> Any:
        try:
            return self._adapter.validate_python(value)
        except ModelError as error:
            as_value = error
        text = _text(value)
        if text is None:
            raise Broken(type_of(value), _model_violations(as_value))
        try:
            parsed, source = read_json(text)
        except NotJson as error:
            raise Broken(type_of(value), [violation(str(error))]) from None
        try:
            return self._adapter.validate_json(source)
        except ModelError as error:
            raise Broken(type_of(parsed), _model_violations(error)) from None


def _model_violations(error: ModelError) -> list[dict[str, Any]]:
    wrong = error.errors(include_url=False, include_context=False, include_input=False)[:MOST_VIOLATIONS]
    return [violation(problem["msg"], problem["loc"], keyword=problem["type"]) for problem in wrong]


@dataclass(frozen=True)
class Predicate:
    """A function that returns true or false. An exception counts as false and gives the reason."""

    asks: Callable[[Any], Any]

    @property
    def name(self) -> str:
        return getattr(self.asks, "__name__", None) or type(self.asks).__name__

    def broken(self, value: Any, error: Exception | None = None) -> Broken:
        if error is None:
            why = f"{self.name} returned false"
        elif isinstance(error, ValueError | AssertionError) and str(error):
            why = str(error)
        else:
            why = f"{self.name} failed: {error!r}"
        return Broken(type_of(value), [violation(why)])


def _read(value: Any) -> Any:
    """The parsed value of a JSON text; any other value unchanged."""
    text = _text(value)
    if text is None:
        return value
    try:
        return read_json(text)[0]
    except NotJson as error:
        raise Broken("string", [violation(str(error))]) from None


def _text(value: Any) -> str | None:
    if isinstance(value, bytes | bytearray):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return None
    return value if isinstance(value, str) else None


def _plain(value: Any) -> Any:
    """The value as plain JSON: models, dataclasses and tuples become objects and arrays."""
    try:
        return to_jsonable_python(value, inf_nan_mode="constants")
    except Exception as error:  # noqa: BLE001 - a value of any kind
        raise Broken(type_of(value), [violation(f"it cannot be written as JSON: {error}")]) from None


def shape_of(what: Any) -> Shape:
    """The shape from a value of `expect=`. Raises ConfigurationError."""
    if isinstance(what, str):
        if what not in TYPES:
            raise ConfigurationError(f"expect={what!r} is not a type of JSON{nearest(what, TYPES)}")
        return JsonType(what)
    if isinstance(what, Mapping):
        return Schema(cast("Mapping[str, Any]", what))
    if isinstance(what, type) and what in _BUILTINS:
        return JsonType(_BUILTINS[what])
    if isinstance(what, type) or get_origin(what) is not None:
        return Model(what)
    if callable(what):
        return Predicate(what)
    raise ConfigurationError(
        f'expect={what!r} cannot be checked: write a type of JSON such as "array", a JSON Schema, a model, '
        f"or a function that returns true or false"
    )


Shape = JsonType | Schema | Model | Predicate
_BUILTINS: dict[Any, str] = {
    **{list: "array", dict: "object", str: "string", int: "integer", float: "number"},
    **{bool: "boolean", type(None): "null"},
}
