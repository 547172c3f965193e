"""Every sentence about a condition as it stands, and the whole schema: whoever reads them acts on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from prefect_resilience import Condition, ConfigurationError, path, succeeded
from prefect_resilience.graphs.plans.reading.mistakes import place_text
from tests.graphs.conditions.strategies import condition_mistakes

GTE = {"operator": "gte", "path": "a", "value": 1}
ALL_OPERATORS = (
    "error_occurred, success, failed, contains, equals, not_equals, gt, gte, lt, lte, exists, not_exists, "
    "in, matches, all, any, not"
)
ALL_TYPES = f"error_catch, output_check, comparison, {ALL_OPERATORS}"


def error_of(call: Callable[[], Any], kind: type[Exception] = ConfigurationError) -> str:
    with pytest.raises(kind) as raised:
        call()
    return str(raised.value)


def all_mistakes(data: Any, **more: Any) -> list[tuple[str, str]]:
    return [(place_text(place), sentence) for place, sentence in condition_mistakes(data, **more)]


# -- the builder


# -- the model


def test_extents_are_counted_and_kept() -> None:
    a, b, c = path("a").exists(), path("b").exists(), path("c").exists()
    for made, extent in (
        (a & b, (2, 3)),
        (a & b & c, (2, 4)),
        (a & (b & c), (2, 4)),
        (a | (b & c), (3, 5)),
        ((a | b) & c, (3, 5)),
        ((a & b) & (b & c), (2, 5)),
        (~a, (2, 2)),
        (~(a & b), (3, 4)),
    ):
        assert vars(made)["extent"] == extent, "else a long chain would be counted anew with each part"
        assert Condition.model_validate(made.model_dump()).extent == extent
    assert a.extent == (1, 1)


def test_python_is_told_of_five_mistakes_at_most() -> None:
    missing = "a condition needs an operator; write one of " + ALL_OPERATORS
    told = [f"Condition(conditions.{index}.operator): {missing}" for index in range(8)]
    for count, more in ((1, ""), (5, ""), (6, "; and 1 more"), (8, "; and 3 more")):
        said = error_of(lambda: Condition(operator="any", conditions=[{}] * count))  # noqa: B023
        assert said == "; ".join(told[: min(count, 5)]) + more


# -- the forms


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


MISTAKES: list[tuple[Any, ...]] = [
    (
        Unprintable(),
        ": <Unprintable> is not a condition: write one like "
        "{'operator': 'gte', 'path': 'confidence', 'value': 0.9}",
    ),
    (
        {"operator": "success", "source_task": "\ud800"},
        "source_task: source_task must be a string, not '\\ud800'",
    ),
    ({}, f"operator: a condition needs an operator; write one of {ALL_OPERATORS}"),
    (
        {"type": "comparison"},
        "operator: the type 'comparison' needs an operator; "
        "write one of gt, gte, lt, lte, equals, not_equals",
    ),
    ({"type": 7, "operator": "success"}, f"type: 7 is not a type of condition; write one of {ALL_TYPES}"),
    ({"type": 7}, f"type: 7 is not a type of condition; write one of {ALL_TYPES}"),
    (
        {"type": "comparision", "operator": "success"},
        "type: 'comparision' is not a type of condition; did you mean 'comparison'?",
    ),
    ({"type": "lt", "operator": 7}, "operator: 7 is not an operator; write one of lt"),
    ({"operator": 7}, f"operator: 7 is not an operator; write one of {ALL_OPERATORS}"),
    (
        {"type": "error_catch", "operator": "sucess"},
        "operator: 'sucess' is not an operator; did you mean 'success'?",
    ),
    ({"type": "lt", **GTE}, "operator: 'gte' is not an operator of the type 'lt'; write one of lt"),
    (
        {"type": "error_catch", **GTE, "operator": "gte "},
        "operator: 'gte ' is not an operator; did you mean 'gte'?",
    ),
    (
        {**GTE, "path": "a..b"},
        "path: 'a..b' cannot be read at column 2: write a path like a.b[0].c, another key in quotes as in "
        "a['x.y'], or a $ path such as $.items[*].id",
    ),
    ({**GTE, "value": {1: 2}}, "value: the keys of a value must be strings, not 1"),
    (
        {**GTE, "operator": "gtee", "value": {1: 2}},
        "operator: 'gtee' is not an operator; did you mean 'gte'?",
        "value: the keys of a value must be strings, not 1",
    ),
    ({**GTE, "vlaue": 2}, "vlaue: a condition has no field 'vlaue'; did you mean 'value'?"),
    ({**GTE, 3: 2}, "3: a condition has no field 3; field names are strings"),
    (
        {**GTE, "y" * 70: 2},
        f"{'y' * 60}: a condition has no field '{'y' * 59}…'; write one of category, code, condition, "
        "conditions, field, operator, path, source_task, type, value",
    ),
    (
        {"operator": "error_occurred", "category": "timeout", "code": "X"},
        "category: 'error_occurred' takes no category",
        "code: 'error_occurred' takes no code",
    ),
    (
        {"operator": "error_occurred", "path": "a", "condition": GTE, "conditions": [GTE]},
        "path: 'error_occurred' takes no path",
        "conditions: 'error_occurred' takes no conditions",
        "condition: 'error_occurred' takes no condition",
    ),
    (
        {"operator": "not", "condition": GTE, "source_task": "t"},
        "source_task: 'not' takes no source_task",
    ),
    (
        {"operator": "gte"},
        "path: 'gte' needs a path; write '$' for the whole value",
        "value: 'gte' needs a value to compare with",
    ),
    ({"operator": "all"}, "conditions: 'all' needs a list of at least one condition"),
    ({"operator": "not"}, "condition: 'not' needs a condition"),
    (
        {"operator": "not", "condition": GTE, "conditions": [succeeded()]},
        "conditions: 'not' takes one condition: combine several with any or all",
    ),
    ({"operator": "any", "conditions": "x"}, "conditions: conditions must be a list, not 'x'"),
    ({**GTE, "path": 3}, "path: a path must be a string such as 'results[0].id', not 3"),
    (
        {**GTE, "field": {"type": "field", "path": "b"}},
        "field: a path is written here and in 'path': write one of them",
    ),
    (
        {"operator": "exists", "field": {"type": "path", "path": "b"}},
        "field: write a field as {'type': 'field', 'path': ...}",
    ),
    ({"operator": "exists", "field": 3}, "field: write a field as {'type': 'field', 'path': ...}"),
    (
        {"operator": "exists", "field": {"type": "field", "path": 3}},
        "field.path: a path must be a string such as 'results[0].id', not 3",
    ),
    ({"operator": "in", "path": "a", "value": 3}, "value: 'in' needs a list of values, not 3"),
    ({"operator": "matches", "path": "a", "value": 3}, "value: 'matches' needs a regular expression, not 3"),
    (
        {"operator": "matches", "path": "a", "value": "["},
        "value: '[' is not a valid regular expression: unterminated character set at position 1",
    ),
    (
        {"operator": "failed", "category": "timeot"},
        "category: 'timeot' is not an error category; did you mean 'timeout'?",
    ),
    ({"operator": "failed", "code": True}, "code: code must be a string, not True"),
    ({"operator": "failed", "category": 3}, "category: category must be a string, not 3"),
    (
        {"operator": "nothing", "conditions": [{"operator": "exists"}], "condition": {"operator": "in"}},
        "operator: 'nothing' is not an operator; did you mean 'not'?",
        "condition.path: 'in' needs a path; write '$' for the whole value",
        "condition.value: 'in' needs a value to compare with",
        "conditions[0].path: 'exists' needs a path; write '$' for the whole value",
    ),
]
"""A form, and for each mistake its place and what is said of it."""


@pytest.mark.parametrize(("data", "sentences"), [(data, list(said)) for data, *said in MISTAKES])
def test_what_is_said_of_a_mistake(data: Any, sentences: list[str]) -> None:
    assert [f"{place}: {sentence}" for place, sentence in all_mistakes(data)] == sentences
    if sentences:
        with pytest.raises(ValidationError) as raised:
            Condition.model_validate(data)
        told = [(error["loc"], error["msg"]) for error in raised.value.errors()]
        assert told == condition_mistakes(data)


def test_what_is_said_of_a_value_that_is_written_as_json() -> None:
    form = {"operator": "equals", "path": "a", "value": [1, {"b": float("nan")}]}
    sentence = "JSON has no nan: write a finite number, or compare in Python"
    assert all_mistakes(form, json=True) == [("value", sentence)]
    assert all_mistakes({"type": "all", "conditions": [form]}, json=True) == [
        ("conditions[0].value", sentence)
    ]
    assert all_mistakes(form) == []
    assert error_of(lambda: (~Condition(**form)).model_dump(mode="json"), Exception).endswith(sentence)


def test_what_is_said_of_too_much() -> None:
    leaf: dict[str, Any] = {"operator": "success"}
    deep = leaf
    for _ in range(99):
        deep = {"type": "not", "condition": deep}
    assert all_mistakes(deep) == []
    assert all_mistakes({"type": "not", "condition": deep}) == [
        ("condition", "conditions may be nested at most 100 levels deep")
    ]
    made = Condition.model_validate(deep)
    assert all_mistakes({"type": "any", "conditions": [made]}) == [
        ("conditions", "conditions may be nested at most 100 levels deep")
    ]
    assert all_mistakes({"type": "any", "conditions": [leaf] * 9_999}) == []
    assert all_mistakes({"type": "any", "conditions": [leaf] * 10_000}) == [
        ("conditions", "a condition may have at most 10,000 parts")
    ]
    half = Condition.model_validate({"type": "any", "conditions": [leaf] * 4_999})
    assert all_mistakes({"type": "any", "conditions": [half, half]}) == [
        ("conditions", "a condition may have at most 10,000 parts")
    ]
    assert all_mistakes({"type": "any", "conditions": [half] + [leaf] * 4_999}) == []
