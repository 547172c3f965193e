"""The JSON forms: which are read, as what, what is wrong with others and where, and the schema."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from pydantic import BaseModel, ValidationError

from prefect_resilience import Condition, failed, path, succeeded
from prefect_resilience.graphs.conditions.reading import FIELDS
from tests.graphs.conditions.strategies import condition_mistakes

GTE = {"operator": "gte", "path": "a", "value": 1}

FORMS: list[tuple[dict[str, Any], Condition]] = [
    (
        {"type": "comparison", "operator": "gte", "path": "confidence", "value": 0.9},
        path("confidence") >= 0.9,
    ),
    ({"type": "comparison", "operator": "gt", "path": "a", "value": 1}, path("a") > 1),
    ({"type": "comparison", "operator": "equals", "path": "a", "value": 1}, path("a") == 1),
    (
        {"type": "output_check", "operator": "contains", "path": "text", "value": "x"},
        path("text").contains("x"),
    ),
    ({"type": "output_check", "operator": "equals", "path": "status", "value": None}, path("status") == None),  # noqa: E711
    ({"type": "output_check", "operator": "not_equals", "path": "a", "value": []}, path("a") != []),
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
    (path("a").exists(), {"type": "exists", "path": "a"}),
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


NESTED = {"type": "all", "conditions": [GTE, {"operator": "gte ", "path": "a", "value": 1}]}


class Outer(BaseModel):
    tasks: list[dict[str, Condition]]


def test_places_lead_through_other_models() -> None:
    with pytest.raises(ValidationError) as raised:
        Outer.model_validate({"tasks": [{"condition": GTE}, {"condition": NESTED}]})
    (error,) = raised.value.errors()
    assert error["loc"] == ("tasks", 1, "condition", "conditions", 1, "operator")
    assert error["msg"] == "'gte ' is not an operator; did you mean 'gte'?"


def test_a_null_stands_for_nothing_where_no_value_belongs_and_for_null_elsewhere() -> None:
    assert Condition.model_validate({"operator": "success", "value": None}) == succeeded()
    assert Condition.model_validate({"operator": "equals", "path": "a", "value": None}).evaluate({"a": None})


def test_the_schema_refers_to_itself() -> None:
    schema = Outer.model_json_schema()["$defs"]["Condition"]
    properties = schema["properties"]
    assert properties["conditions"]["items"] == {"$ref": "#/$defs/Condition"}
    assert {name: field["description"] for name, field in properties.items()} == FIELDS
    assert properties["path"]["type"] == "string"
    about = {
        "title": "Condition",
        "type": "object",
        "description": "A condition on a task's result or error.",
    }
    assert {name: schema[name] for name in about} == about
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
