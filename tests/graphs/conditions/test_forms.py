"""The JSON forms: which are read, as what, what is wrong with others and where, and the schema."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime
from enum import Enum
from typing import Any
from uuid import UUID

import jsonschema
import pytest
from pydantic import BaseModel, ValidationError

from prefect_resilience import Condition, failed, path, succeeded
from prefect_resilience.graphs.conditions.model import condition_mistakes, place_text

GTE = {"operator": "gte", "path": "a", "value": 1}

FORMS: list[tuple[dict[str, Any], Condition]] = [
    (
        {"type": "comparison", "operator": "gte", "path": "confidence", "value": 0.9},
        path("confidence") >= 0.9,
    ),
    (
        {"type": "comparison", "operator": "gte", "path": "quality_score", "value": 0.85},
        path("quality_score") >= 0.85,
    ),
    ({"type": "comparison", "operator": "gt", "path": "a", "value": 1}, path("a") > 1),
    ({"type": "comparison", "operator": "lt", "path": "a", "value": 1}, path("a") < 1),
    ({"type": "comparison", "operator": "lte", "path": "a", "value": 1}, path("a") <= 1),
    ({"type": "comparison", "operator": "equals", "path": "a", "value": 1}, path("a") == 1),
    (
        {"type": "output_check", "operator": "contains", "path": "text", "value": "x"},
        path("text").contains("x"),
    ),
    ({"type": "output_check", "operator": "equals", "path": "status", "value": None}, path("status") == None),  # noqa: E711
    ({"type": "output_check", "operator": "not_equals", "path": "a", "value": []}, path("a") != []),
    ({"type": "output_check", "operator": "matches", "path": "a", "value": "^x"}, path("a").matches("^x")),
    ({"type": "output_check", "operator": "in", "path": "a", "value": [1]}, path("a").is_in([1])),
    ({"type": "output_check", "operator": "exists", "path": "a"}, path("a").exists()),
    ({"type": "error_catch", "operator": "error_occurred"}, failed()),
    ({"type": "error_catch", "operator": "success"}, succeeded()),
    ({"type": "error_catch", "operator": "failed", "code": 429}, failed(code="429")),
    ({"type": "failed", "category": "timeout"}, failed("timeout")),
    ({"type": "not_exists", "path": "state._last_error"}, path("state._last_error").not_exists()),
    (
        {"type": "exists", "field": {"type": "field", "path": "state._last_error"}},
        path("state._last_error").exists(),
    ),
    ({"type": "gte", "path": "a", "value": 1}, path("a") >= 1),
    (GTE, path("a") >= 1),
    ({"operator": "success", "path": None, "value": None, "conditions": None}, succeeded()),
    ({"type": "all", "conditions": [GTE, {"operator": "success"}]}, (path("a") >= 1) & succeeded()),
    ({"operator": "any", "conditions": (GTE, succeeded())}, (path("a") >= 1) | succeeded()),
    ({"type": "not", "condition": {"type": "exists", "path": "a"}}, ~path("a").exists()),
    ({"type": "not", "conditions": [path("a").exists()]}, ~path("a").exists()),
    (
        {**GTE, "source_task": "kg_query"},
        Condition(operator="gte", path="a", value=1, source_task="kg_query"),
    ),
]


@pytest.mark.parametrize(("form", "condition"), FORMS)
def test_form_is_read(form: dict[str, Any], condition: Condition) -> None:
    assert Condition.model_validate(form) == condition
    assert condition_mistakes(form) == []


DUMPS: list[tuple[Condition, dict[str, Any]]] = [
    (path("a") >= 1, {"type": "comparison", "operator": "gte", "path": "a", "value": 1}),
    (path("a") == None, {"type": "output_check", "operator": "equals", "path": "a", "value": None}),  # noqa: E711
    (path("a").matches("x"), {"type": "matches", "path": "a", "value": "x"}),
    (path("a").is_in([1]), {"type": "in", "path": "a", "value": [1]}),
    (path("a").exists(), {"type": "exists", "path": "a"}),
    (failed(), {"type": "error_catch", "operator": "error_occurred"}),
    (
        failed("timeout", "X"),
        {"type": "error_catch", "operator": "failed", "category": "timeout", "code": "X"},
    ),
    (~path("a").exists(), {"type": "not", "condition": {"type": "exists", "path": "a"}}),
    (
        succeeded() & path("a").exists(),
        {
            "type": "all",
            "conditions": [{"type": "error_catch", "operator": "success"}, {"type": "exists", "path": "a"}],
        },
    ),
]


@pytest.mark.parametrize(("condition", "form"), DUMPS)
def test_form_is_written_with_what_applies_and_nothing_else(
    condition: Condition, form: dict[str, Any]
) -> None:
    assert condition.model_dump(mode="json") == form
    assert json.loads(condition.model_dump_json()) == form


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


NESTED = {"type": "all", "conditions": [GTE, {"operator": "gte ", "path": "a", "value": 1}]}

MISTAKES: list[tuple[Any, ...]] = [
    (None, ": None is not a condition"),
    ([], ": a list is not a condition"),
    ({"operator": ["gte"]}, "operator: a list is not an operator"),
    ({"operator": "x" * 100_000}, "operator: is not an operator; write one of"),
    ({"type": {"a": 1}, **GTE}, "type: a dict is not a type of condition"),
    ({"type": "comparison", "operator": "contains", "path": "a", "value": 1}, "operator: 'comparison'"),
    ({**GTE, "category": "timeout"}, "category: 'gte' takes no category"),
    ({"operator": "failed", "category": 3}, "category: category must be a string, not 3"),
    ({"operator": "success", "source_task": ""}, "source_task: source_task must be a string, not ''"),
    (
        {"operator": "success", "source_task": "\ud800"},
        "source_task: source_task must be a string, not '\\ud800'",
    ),
    ({**GTE, "path": "$.a["}, "path: cannot be read at column 5"),
    ({"type": "exists", "field": "a"}, "field: write a field as {'type': 'field', 'path': ...}"),
    ({"type": "exists", "field": {"type": "field", "path": "a."}}, "field.path: cannot be read at column 3"),
    (
        {"operator": "matches", "path": "a", "value": "a" * 1_001},
        "value: at most 1,000 characters, not 1,001",
    ),
    (Unprintable(), ": <Unprintable> is not a condition"),
    ({**GTE, "value": object()}, "value: must be a JSON value"),
    ({"type": "all", "conditions": []}, "conditions: at least one"),
    ({"type": "all", "condition": GTE}, "condition: 'all' takes no condition", "conditions: needs a list"),
    (NESTED, "conditions[1].operator: 'gte ' is not an operator; did you mean 'gte'?"),
    (
        {
            "type": "any",
            "conditions": [NESTED, {"type": "not", "condition": {"operator": "gt", "path": "."}}],
        },
        "conditions[0].conditions[1].operator: did you mean 'gte'?",
        "conditions[1].condition.value: needs a value",
        "conditions[1].condition.path: column 1",
    ),
    (
        {"operator": "gtee", "path": "a.", "value": object(), "code": "", "other": 1},
        "other: a condition has no field 'other'",
        "operator: did you mean 'gte'?",
        "path: column 3",
        "value: JSON",
        "code: must be a string",
    ),
]
"""A form, and for each mistake its place and what is said of it."""


@pytest.mark.parametrize(("data", "expected"), [(data, said) for data, *said in MISTAKES])
def test_every_mistake_is_named_in_its_place(data: Any, expected: list[str]) -> None:
    found = condition_mistakes(data)
    for (place, sentence), said in zip(found, expected, strict=True):
        where, _, part = said.partition(": ")
        assert place_text(place) == where
        assert part in sentence
        assert len(sentence) < 600
    with pytest.raises(ValidationError) as raised:
        Condition.model_validate(data)
    assert [(each["loc"], each["msg"]) for each in raised.value.errors()] == found


class Outer(BaseModel):
    tasks: list[dict[str, Condition]]


def test_places_lead_through_other_models() -> None:
    with pytest.raises(ValidationError) as raised:
        Outer.model_validate({"tasks": [{"condition": GTE}, {"condition": NESTED}]})
    (error,) = raised.value.errors()
    assert error["loc"] == ("tasks", 1, "condition", "conditions", 1, "operator")
    assert error["msg"] == "'gte ' is not an operator; did you mean 'gte'?"
    assert error["input"] == "'gte '"


def test_a_null_stands_for_nothing_where_no_value_belongs_and_for_null_elsewhere() -> None:
    assert Condition.model_validate({"operator": "success", "value": None}) == succeeded()
    assert Condition.model_validate({"operator": "equals", "path": "a", "value": None}).evaluate({"a": None})


class Colour(Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (datetime(2024, 1, 1, tzinfo=UTC), "2024-01-01T00:00:00+00:00"),
        (date(2024, 1, 1), "2024-01-01"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Colour.RED, "red"),
        ((1, (2,)), [1, [2]]),
        ({"a": (1,)}, {"a": [1]}),
    ],
)
def test_values_are_kept_as_json_carries_them(value: Any, kept: Any) -> None:
    held = (path("a") == value).value
    assert held == kept
    assert type(held) is type(kept)


@pytest.mark.parametrize("value", [math.nan, math.inf, [1, {"a": -math.inf}]])
def test_nan_and_infinity_compare_in_python_and_are_refused_in_json(value: Any) -> None:
    condition = ~((path("a") == value) & succeeded())
    assert Condition.model_validate(condition.model_dump()) == condition
    with pytest.raises(Exception, match=r"JSON has no (nan|-?inf)"):
        condition.model_dump(mode="json")
    with pytest.raises(Exception, match="JSON has no"):
        condition.model_dump_json()
    form = {"operator": "equals", "path": "a", "value": value}
    ((place, sentence),) = condition_mistakes(form, json=True)
    assert place == ("value",)
    assert sentence.startswith("JSON has no")
    with pytest.raises(ValidationError, match="JSON has no"):
        Condition.model_validate_json(json.dumps(form))


def test_the_schema_names_every_operator_and_accepts_every_form() -> None:
    schema = Outer.model_json_schema()
    described = schema["$defs"]["Condition"]
    assert described["properties"]["conditions"]["items"] == {"$ref": "#/$defs/Condition"}
    for word in ("comparison", "output_check", "error_catch", "matches", "not_exists"):
        assert word in described["description"]
    for mode in ("validation", "serialization"):
        assert Condition.model_json_schema(mode=mode)["$ref"] == "#/$defs/Condition"


def test_the_schema_and_the_reading_agree() -> None:
    validator = jsonschema.Draft202012Validator(Condition.model_json_schema())
    for form, condition in FORMS:
        if all(value is not None for value in form.values()) and "code" not in form:
            assert (
                list(validator.iter_errors(json.loads(json.dumps(form, default=lambda c: c.model_dump()))))
                == []
            )
        assert list(validator.iter_errors(json.loads(condition.model_dump_json()))) == []
    for wrong in ({**GTE, "operator": "gte "}, {**GTE, "vlaue": 1}, {"type": "all", "conditions": []}):
        assert list(validator.iter_errors(wrong))
