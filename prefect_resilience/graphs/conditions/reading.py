"""Reads conditions from JSON, and reports every mistake with its place; JSON Schema."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, cast, get_args

from prefect_resilience.base.plain import ValueMistake, can_be_written, json_value, not_json, shortly
from prefect_resilience.base.policy import nearest
from prefect_resilience.errors.taxonomy import ErrorCategory
from prefect_resilience.graphs.conditions.compare import PatternMistake, compiled_pattern
from prefect_resilience.graphs.conditions.paths import PathError, check_path

OfErrors = Literal["error_occurred", "success", "failed"]
OfParts = Literal["contains", "equals", "not_equals"]
OfOrder = Literal["gt", "gte", "lt", "lte"]
OfPresence = Literal["exists", "not_exists"]
OfConditions = Literal["all", "any", "not"]
Operator = Literal[OfErrors, OfParts, OfOrder, OfPresence, "in", "matches", OfConditions]

OPERATORS: tuple[str, ...] = get_args(Operator)
OF_ERRORS: tuple[str, ...] = get_args(OfErrors)
OF_PARTS: tuple[str, ...] = get_args(OfParts)
OF_ORDER: tuple[str, ...] = get_args(OfOrder)
OF_PRESENCE: tuple[str, ...] = get_args(OfPresence)
OF_CONDITIONS: tuple[str, ...] = get_args(OfConditions)
WITH_VALUE = (*OF_PARTS, *OF_ORDER, "in", "matches")
WITH_PATH = (*WITH_VALUE, *OF_PRESENCE)

FAMILIES: dict[str, tuple[str, ...]] = {
    "error_catch": OF_ERRORS,
    "output_check": (*OF_PARTS, "in", "matches", *OF_PRESENCE),
    "comparison": (*OF_ORDER, "equals", "not_equals"),
}
"""The types that have several operators. An operator's name is a type as well."""

TYPES: tuple[str, ...] = (*FAMILIES, *OPERATORS)
CATEGORIES = tuple(word.value for word in ErrorCategory)

TYPE_OF = {
    **dict.fromkeys(OF_ERRORS, "error_catch"),
    **dict.fromkeys(OF_ORDER, "comparison"),
    **dict.fromkeys(OF_PARTS, "output_check"),
}
"""The `type` in JSON of the operators for which it is not the operator's name."""


DEEPEST = 100
MOST_PARTS = 10_000

Place = tuple[str | int, ...]
FIELDS = {
    "type": "The type of the condition: an operator, or a group of operators.",
    "operator": "The comparison or check. Not needed if the type is an operator.",
    "path": "The place in the result: a.b[0].c, or $... as in RFC 9535; $ is the whole result. In a plan, "
    "also state... and inputs... .",
    "field": "An alternative to path.",
    "value": "The value to compare with: any JSON; a list for in, a pattern for matches.",
    "source_task": "The task with the result; by default the condition's own.",
    "conditions": "The conditions that all and any combine.",
    "condition": "The condition that not negates.",
    "category": "The category of the error, for failed.",
    "code": "The code of the error, for failed: 429, TIMEOUT.",
}
"""The fields of a condition and what they are."""
_AT_LEAST = {"condition": "a condition", "conditions": "a list of at least one condition"}
_EXAMPLE = "{'operator': 'gte', 'path': 'confidence', 'value': 0.9}"


@dataclass(slots=True)
class Form:
    """The data of one condition, and its valid fields."""

    data: Mapping[Any, Any]
    place: Place
    operator: str | None = None
    fields: dict[str, Any] = field(default_factory=dict[str, Any])

    def has(self, name: str) -> bool:
        """Whether the field has a value. Forms leave fields empty."""
        value = self.data.get(name)
        return value is not None and value != [] and value != ()


class _ReadingEnds(Exception):
    """Ends the reading of a condition that is too deep or has too many parts."""


class Reading:
    """One condition with everything inside it.

    `mistakes` are (place, sentence) pairs, `fields` the valid fields. `model` is the class `Condition`: what
    is one already stays unchanged. `json`: NaN is a mistake.
    """

    def __init__(self, data: Any, model: type[Any], *, json: bool) -> None:
        self.mistakes: list[tuple[Place, str]] = []
        self.fields: dict[str, Any] = {}
        self._model = model
        self._json = json
        self._parts = 0
        with suppress(_ReadingEnds):
            self.fields = self._fields(data, (), 1)

    def _condition(self, data: Any, place: Place, depth: int) -> Any:
        if not isinstance(data, self._model):
            return self._model.model_construct(**self._fields(data, place, depth))
        levels, parts = data.extent
        self._count(place, depth + levels - 1, parts)
        return data

    def _count(self, place: Place, levels: int, parts: int) -> None:
        self._parts += parts
        if sentence := too_large(levels, self._parts):
            self._wrong(place[:1], sentence)
            raise _ReadingEnds

    def _fields(self, data: Any, place: Place, depth: int) -> dict[str, Any]:
        """The valid fields of the condition."""
        self._count(place, depth, 1)
        if not isinstance(data, Mapping):
            self._wrong(place, f"{shortly(data)} is not a condition: write one like {_EXAMPLE}")
            return {}
        form = Form(cast("Mapping[Any, Any]", data), place)
        for name in form.data:
            if name not in FIELDS:
                hint = nearest(name, FIELDS) if isinstance(name, str) else "; field names are strings"
                self._wrong((*place, str(name)[:60]), f"a condition has no field {shortly(name)}{hint}")
        form.operator = self._operator(form)
        if form.operator is not None:
            form.fields["operator"] = form.operator
            self._belongs(form, form.operator)
        path_place, path = (
            self._field(form) if form.has("field") else ((*place, "path"), form.data.get("path"))
        )
        if path is not None:
            self._take(form, "path", path_place, _path, path)
        if "value" in form.data and (form.operator is None or form.operator in WITH_VALUE):
            self._take(form, "value", (*place, "value"), self._value, form)
        for name, read in _READ.items():
            if form.has(name):
                self._take(form, name, (*place, name), read, form.data[name])
        if form.operator is None or form.operator in OF_CONDITIONS:
            form.fields["conditions"] = tuple(self._inside(form, depth))
        return form.fields

    def _wrong(self, place: Place, sentence: str) -> None:
        self.mistakes.append((place, sentence))

    def _take(self, form: Form, name: str, place: Place, read: Callable[[Any], Any], data: Any) -> None:
        """Read one field, or report its mistake at `place`."""
        try:
            form.fields[name] = read(data)
        except (ValueMistake, PatternMistake, PathError) as error:
            self._wrong(place, str(error))

    def _operator(self, form: Form) -> str | None:
        kind, operator = form.data.get("type"), form.data.get("operator")
        place = (*form.place, "operator")
        if kind is not None and kind not in TYPES:
            self._wrong((*form.place, "type"), _no_such(kind, "a type of condition", TYPES))
            if operator is None:
                return None
            kind = None
        among = FAMILIES.get(kind, (kind,)) if kind else OPERATORS
        right = ", ".join(among)
        if operator is None and kind in OPERATORS:
            return kind
        if operator is None:
            words = f"the type {kind!r}" if kind else "a condition"
            return self._wrong(place, f"{words} needs an operator; write one of {right}")
        if not isinstance(operator, str) or operator not in OPERATORS:
            return self._wrong(place, _no_such(operator, "an operator", OPERATORS, among))
        if operator not in among:
            self._wrong(place, f"{operator!r} is not an operator of the type {kind!r}; write one of {right}")
        return operator

    def _belongs(self, form: Form, operator: str) -> None:
        """Check that the operator has all the fields that it needs, and no others."""
        inside = operator in OF_CONDITIONS
        takes = {
            "path": operator in WITH_PATH,
            "value": operator in WITH_VALUE,
            "conditions": inside,
            "condition": operator == "not",
            "category": operator == "failed",
            "code": operator == "failed",
            "source_task": not inside,
        }
        for name, belongs in takes.items():
            if form.has(name) and not belongs:
                self._wrong((*form.place, name), f"{operator!r} takes no {name}")
        if takes["path"] and not form.has("path") and not form.has("field"):
            self._wrong((*form.place, "path"), f"{operator!r} needs a path; write '$' for the whole value")
        if takes["value"] and "value" not in form.data:
            self._wrong((*form.place, "value"), f"{operator!r} needs a value to compare with")
        if inside and not form.has("conditions") and not (operator == "not" and form.has("condition")):
            name = "condition" if operator == "not" else "conditions"
            self._wrong((*form.place, name), f"{operator!r} needs {_AT_LEAST[name]}")

    def _field(self, form: Form) -> tuple[Place, Any]:
        """The path inside `field`, an alternative spelling of `path`."""
        place, data = (*form.place, "field"), form.data["field"]
        if form.has("path"):
            self._wrong(place, "a path is written here and in 'path': write one of them")
        pairs = cast("Mapping[Any, Any]", data if isinstance(data, Mapping) else {})
        if set(pairs) != {"type", "path"} or pairs["type"] != "field":
            self._wrong(place, "write a field as {'type': 'field', 'path': ...}")
        return (*place, "path"), pairs.get("path")

    def _value(self, form: Form) -> Any:
        value = json_value(form.data["value"])
        if self._json and (sentence := not_json(value)):
            raise ValueMistake(sentence)
        if form.operator == "in" and not isinstance(value, list):
            raise ValueMistake(f"'in' needs a list of values, not {shortly(value)}")
        if form.operator == "matches":
            if not isinstance(value, str):
                raise ValueMistake(f"'matches' needs a regular expression, not {shortly(value)}")
            compiled_pattern(value)
        return cast("Any", value)

    def _inside(self, form: Form, depth: int) -> Iterator[Any]:
        """The conditions that a form combines."""
        listed: Any = form.data["conditions"] if form.has("conditions") else ()
        if not isinstance(listed, list | tuple):
            self._wrong((*form.place, "conditions"), f"conditions must be a list, not {shortly(listed)}")
            listed = ()
        if form.operator == "not" and len(cast("list[Any]", listed)) + form.has("condition") > 1:
            says = "'not' takes one condition: combine several with any or all"
            self._wrong((*form.place, "conditions"), says)
        if form.has("condition"):
            yield self._condition(form.data["condition"], (*form.place, "condition"), depth + 1)
        for index, data in enumerate(cast("list[Any]", listed)):
            yield self._condition(data, (*form.place, "conditions", index), depth + 1)


def too_large(levels: int, parts: int) -> str | None:
    """The mistake of a condition that is too deep or too large, None if there is none."""
    if levels > DEEPEST:
        return f"conditions may be nested at most {DEEPEST} levels deep"
    return f"a condition may have at most {MOST_PARTS:,} parts" if parts > MOST_PARTS else None


def _no_such(value: Any, what: str, known: Iterable[str], among: Iterable[str] | None = None) -> str:
    """`'gte ' is not an operator; did you mean 'gte'?`"""
    if not isinstance(value, str):
        return f"{shortly(value)} is not {what}; write one of {', '.join(among or known)}"
    return f"{shortly(value)} is not {what}{nearest(value[:60], known)}"


def _path(path: Any) -> str:
    if not isinstance(path, str):
        raise ValueMistake(f"a path must be a string such as 'results[0].id', not {shortly(path)}")
    check_path(path)
    return path


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value or not can_be_written(value):
        raise ValueMistake(f"{name} must be a string, not {shortly(value)}")
    return str(value)


def _category(value: Any) -> str:
    if _text("category", value) not in CATEGORIES:
        raise ValueMistake(_no_such(value, "an error category", CATEGORIES))
    return str(value)


def _code(value: Any) -> str:
    number = isinstance(value, int) and not isinstance(value, bool)
    return shortly(value) if number else _text("code", value)


_READ: dict[str, Callable[[Any], Any]] = {
    "source_task": partial(_text, "source_task"),
    "category": _category,
    "code": _code,
}
"""The fields that are read alike for every operator."""


# The JSON Schema of a condition, for editors and for Prefect's forms.


def json_schema(reference: dict[str, Any]) -> dict[str, Any]:
    """The schema. `reference` is a reference to it, for nested conditions."""
    properties = {
        name: {**_FIELD_SCHEMAS.get(name, {"type": "string"}), "description": description}
        for name, description in FIELDS.items()
    }
    properties["conditions"]["items"] = reference
    properties["condition"] |= reference
    return {
        "title": "Condition",
        "type": "object",
        "description": "A condition on a task's result or error.",
        "additionalProperties": False,
        "properties": properties,
    }


_FIELD_SCHEMAS: dict[str, dict[str, Any]] = {
    "type": {"type": "string", "enum": [*TYPES]},
    "operator": {"type": "string", "enum": [*OPERATORS]},
    "field": {
        "type": "object",
        "properties": {"type": {"const": "field"}, "path": {"type": "string"}},
        "required": ["type", "path"],
        "additionalProperties": False,
    },
    "value": {},
    "conditions": {"type": "array", "minItems": 1},
    "condition": {},
    "category": {"type": "string", "enum": [*CATEGORIES]},
}
"""The schemas of the fields; those that are missing are strings."""
