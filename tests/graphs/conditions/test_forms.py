"""The JSON forms: which are read, as what, what is wrong with others and where, and the schema."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import jsonschema
import pytest
from pydantic import BaseModel, ValidationError

from prefect_resilience import Condition, ConfigurationError, failed, path, succeeded
from prefect_resilience.graphs.conditions.model import condition_mistakes, place_text
from prefect_resilience.graphs.conditions.reading import OPERATORS, TYPES

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

MISTAKES: list[tuple[Any, list[tuple[str, str]]]] = [
    (3, [("", "3 is not a condition: write one like {'operator': 'gte'")]),
    (None, [("", "None is not a condition")]),
    ([], [("", "a list is not a condition")]),
    ({}, [("operator", "a condition needs an operator; write one of error_occurred, ")]),
    (
        {"operator": "gte ", "path": "a", "value": 1},
        [("operator", "'gte ' is not an operator; did you mean 'gte'?")],
    ),
    ({"operator": 3}, [("operator", "3 is not an operator; write one of")]),
    ({"operator": ["gte"]}, [("operator", "a list is not an operator")]),
    ({"operator": "x" * 100_000}, [("operator", "is not an operator; write one of")]),
    ({"type": "comparision", **GTE}, [("type", "is not a type of condition; did you mean 'comparison'?")]),
    ({"type": "comparision"}, [("type", "did you mean 'comparison'?")]),
    ({"type": {"a": 1}, **GTE}, [("type", "a dict is not a type of condition")]),
    ({"type": "error_catch"}, [("operator", "'error_catch' needs an operator; write one of error_occurred")]),
    (
        {"type": "error_catch", **GTE},
        [
            (
                "operator",
                "'gte' is not an operator of the type 'error_catch'; write one of error_occurred, success",
            )
        ],
    ),
    (
        {"type": "output_check", "operator": "gte", "path": "a", "value": 1},
        [("operator", "'gte' is not an operator of the type 'output_check'")],
    ),
    ({"type": "comparison", "operator": "contains", "path": "a", "value": 1}, [("operator", "'comparison'")]),
    ({"type": "lt", **GTE}, [("operator", "write one of lt")]),
    ({**GTE, "vlaue": 2}, [("vlaue", "a condition has no field 'vlaue'; did you mean 'value'?")]),
    ({**GTE, 3: 2}, [("3", "a condition has no field 3; field names are strings")]),
    ({"operator": "gte", "path": "a"}, [("value", "'gte' needs a value to compare with")]),
    ({"operator": "gte", "value": 1}, [("path", "'gte' needs a path; write '$' for the whole value")]),
    ({"operator": "exists"}, [("path", "'exists' needs a path")]),
    ({"operator": "exists", "path": "a", "value": 1}, [("value", "'exists' takes no value")]),
    ({"operator": "success", "value": False}, [("value", "'success' takes no value")]),
    ({"operator": "success", "path": "a"}, [("path", "'success' takes no path")]),
    ({"operator": "error_occurred", "code": "429"}, [("code", "takes no code; write 'failed'")]),
    ({**GTE, "category": "timeout"}, [("category", "'gte' takes no category")]),
    ({**GTE, "conditions": [3]}, [("conditions", "'gte' takes no conditions")]),
    ({**GTE, "condition": GTE}, [("condition", "'gte' takes no condition")]),
    (
        {"type": "all", "conditions": [GTE], "source_task": "t"},
        [("source_task", "write it in the inner conditions")],
    ),
    (
        {"operator": "failed", "category": "timeot"},
        [("category", "not an error category; did you mean 'timeout'?")],
    ),
    ({"operator": "failed", "category": 3}, [("category", "category must be a string, not 3")]),
    ({"operator": "failed", "code": True}, [("code", "code must be a string, not True")]),
    ({"operator": "success", "source_task": ""}, [("source_task", "source_task must be a string, not ''")]),
    (
        {"operator": "success", "source_task": "\ud800"},
        [("source_task", "source_task must be a string, not '\\ud800'")],
    ),
    ({**GTE, "path": 3}, [("path", "a path must be a string such as 'results[0].id', not 3")]),
    ({**GTE, "path": "a..b"}, [("path", "cannot be read at column 3")]),
    ({**GTE, "path": "$.a["}, [("path", "cannot be read at column 5")]),
    ({**GTE, "field": {"type": "field", "path": "b"}}, [("field", "write one of them")]),
    ({"type": "exists", "field": "a"}, [("field", "write a field as {'type': 'field', 'path': ...}")]),
    ({"type": "exists", "field": {"type": "path", "path": "a"}}, [("field", "write a field as")]),
    (
        {"type": "exists", "field": {"type": "field", "path": "a."}},
        [("field.path", "cannot be read at column 3")],
    ),
    ({"operator": "in", "path": "a", "value": "abc"}, [("value", "'in' needs a list of values, not 'abc'")]),
    (
        {"operator": "matches", "path": "a", "value": 3},
        [("value", "'matches' needs a regular expression, not 3")],
    ),
    (
        {"operator": "matches", "path": "a", "value": "("},
        [("value", "is not a valid regular expression: missing )")],
    ),
    (
        {"operator": "matches", "path": "a", "value": "a" * 1_001},
        [("value", "at most 1,000 characters, not 1,001")],
    ),
    (Unprintable(), [("", "<Unprintable> is not a condition")]),
    ({**GTE, "value": object()}, [("value", "must be a JSON value")]),
    ({**GTE, "value": {1: 2}}, [("value", "the keys of a value must be strings, not 1")]),
    ({**GTE, "value": [0] * 10_001}, [("value", "at most 10,000 parts")]),
    ({**GTE, "value": "x" * 1_000_001}, [("value", "at most 1,000,000 characters")]),
    ({**GTE, "value": "\ud800"}, [("value", "a lone surrogate")]),
    ({**GTE, "value": 10**1000}, [("value", "at most 1,000 digits")]),
    ({**GTE, "value": Decimal("0.1")}, [("value", "is not exact as a JSON number")]),
    ({"type": "all"}, [("conditions", "'all' needs a list of at least one condition")]),
    ({"type": "not"}, [("condition", "'not' needs a condition")]),
    ({"type": "all", "conditions": []}, [("conditions", "at least one")]),
    ({"type": "all", "conditions": GTE}, [("conditions", "must be a list")]),
    (
        {"type": "all", "condition": GTE},
        [("condition", "'all' takes no condition"), ("conditions", "needs a list")],
    ),
    ({"type": "not", "conditions": [GTE, GTE]}, [("conditions", "'not' takes one condition")]),
    (NESTED, [("conditions[1].operator", "'gte ' is not an operator; did you mean 'gte'?")]),
    (
        {
            "type": "any",
            "conditions": [NESTED, {"type": "not", "condition": {"operator": "gt", "path": "."}}],
        },
        [
            ("conditions[0].conditions[1].operator", "did you mean 'gte'?"),
            ("conditions[1].condition.value", "needs a value"),
            ("conditions[1].condition.path", "column 1"),
        ],
    ),
    (
        {"operator": "gtee", "path": "a.", "value": object(), "code": "", "other": 1},
        [
            ("other", "a condition has no field 'other'"),
            ("operator", "did you mean 'gte'?"),
            ("path", "column 3"),
            ("value", "JSON"),
            ("code", "must be a string"),
        ],
    ),
]


@pytest.mark.parametrize(("data", "expected"), MISTAKES)
def test_every_mistake_is_named_in_its_place(data: Any, expected: list[tuple[str, str]]) -> None:
    found = condition_mistakes(data)
    assert [place_text(place) for place, _ in found] == [place for place, _ in expected]
    for (_, sentence), (_, part) in zip(found, expected, strict=True):
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


def test_python_gets_one_error_that_names_the_places() -> None:
    with pytest.raises(ConfigurationError) as raised:
        Condition(operator="gte ", path=3)  # pyright: ignore[reportArgumentType]
    assert str(raised.value).startswith(
        "Condition(operator): 'gte ' is not an operator; did you mean 'gte'?; Condition(path)"
    )
    with pytest.raises(ConfigurationError, match=r"; and 3 more$"):
        Condition(operator="all", conditions=[{}] * 8)


def test_a_null_stands_for_nothing_where_no_value_belongs_and_for_null_elsewhere() -> None:
    assert Condition.model_validate({"operator": "success", "value": None}) == succeeded()
    assert Condition.model_validate({"operator": "equals", "path": "a", "value": None}).evaluate({"a": None})


class Colour(Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (datetime(2024, 1, 1), "2024-01-01T00:00:00"),
        (datetime(2024, 1, 1, tzinfo=UTC), "2024-01-01T00:00:00+00:00"),
        (
            datetime(2024, 1, 1, tzinfo=timezone(timedelta(minutes=19, seconds=32))),
            "2023-12-31T23:40:28+00:00",
        ),
        (date(2024, 1, 1), "2024-01-01"),
        (Decimal("0.5"), 0.5),
        (Decimal("12345678901234567890123"), 12345678901234567890123),
        (Decimal("Infinity"), math.inf),
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


@pytest.mark.parametrize("value", [Decimal("NaN"), Decimal("sNaN")])
def test_a_decimal_nan_is_nan(value: Decimal) -> None:
    assert math.isnan((path("a") == value).value)


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
    assert described["properties"]["operator"]["enum"] == list(OPERATORS)
    assert described["properties"]["type"]["enum"] == list(TYPES)
    assert described["properties"]["conditions"]["items"] == {"$ref": "#/$defs/Condition"}
    assert described["additionalProperties"] is False
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
