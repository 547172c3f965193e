"""Promises about output, by themselves: what keeps them, what breaks them, and where."""

import json
import pickle
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal

import cloudpickle
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from typing_extensions import TypedDict

from prefect_resilience import ConfigurationError, Expect, OutputFormatError, classify
from prefect_resilience.base.drive import drive
from tests.contexts import context_of


class Answer(BaseModel):
    score: float
    tags: list[str] = []
    day: date | None = None


@dataclass
class Point:
    x: int
    y: int


class Odd:
    pass


class Known(TypedDict):
    name: str


def kept(what: Any, value: Any) -> Any:
    return drive(Expect(what).check(value))


def broken(what: Any, value: Any) -> OutputFormatError:
    with pytest.raises(OutputFormatError) as caught:
        kept(what, value)
    return caught.value


SAMPLES = {
    "array": [[], [1], (1, 2)],
    "object": [{}, {"a": 1}],
    "string": ["", "a", "[1]"],
    "number": [1.5, 0.0],
    "integer": [0, -3, 10**30],
    "boolean": [True, False],
    "null": [None],
}


@pytest.mark.parametrize("promised", SAMPLES)
@pytest.mark.parametrize("given_type", SAMPLES)
def test_types_are_those_of_json(promised: str, given_type: str) -> None:
    for value in SAMPLES[given_type]:
        fits = promised == given_type or (promised, given_type) == ("number", "integer")
        if fits:
            assert kept(promised, value) is value
        elif given_type != "string":
            error = broken(promised, value)
            assert (error.expected_type, error.actual_type) == (promised, given_type)


def test_a_model_and_a_dataclass_are_objects() -> None:
    for value in (Answer(score=1), Point(1, 2)):
        assert kept("object", value) is value
        assert broken("array", value).actual_type == type(value).__name__
    assert broken("object", Point).actual_type == "type"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(JSON, max_size=4) | st.dictionaries(st.text(), JSON, max_size=4))
def test_a_text_of_json_is_read_however_it_is_wrapped(value):
    name = "array" if isinstance(value, list) else "object"
    text = json.dumps(value)
    for wrapped in (
        text,
        f"\ufeff {text}\n",
        f"```json\n{text}\n```",
        f"Here it is:\n```\n{text}\n```\nBye!",
    ):
        assert kept(name, wrapped) == value
    assert kept(name, text.encode()) == value


def test_fences_inside_of_texts_and_several_blocks():
    value = {"code": "```python\nx\n```"}
    assert kept("object", f"```json\n{json.dumps(value, indent=1)}\n```") == value
    assert kept("object", '```python\nx = 1\n```\nand\n```json\n{"a": 1}\n```') == {"a": 1}
    assert broken("object", "```\nnot json\n```").violations[0]["message"].startswith("not JSON:")
    for bad in ("```json", "```json\n", '{"a": NaN}', "[" * 100_000, "```\n" * 10_000):
        assert broken("object", bad).actual_type == "string"


@pytest.mark.requirement("001.11")
def test_what_is_told_of_an_object_where_an_array_was_promised():
    error = broken("array", '{"a": 1}')
    assert (error.expected_type, error.actual_type, error.original_output) == ("array", "object", '{"a": 1}')
    assert str(error) == "expected an output of type 'array', got 'object'"
    info = classify(error)
    assert (info.category, info.reason, info.retryable) == ("validation", "output_format_failure", False)
    assert info.details == {
        "expected_type": "array",
        "actual_type": "object",
        "violations": [],
        "original_output": '{"a": 1}',
    }
    assert context_of(error).partial_output.content == '{"a": 1}'


SCHEMA = {
    "type": "object",
    "required": ["items"],
    "properties": {
        "items": {"type": "array", "items": {"$ref": "#/$defs/item"}},
        "a/b": {"type": "integer"},
    },
    "$defs": {"item": {"type": "object", "properties": {"score": {"type": "number", "maximum": 1}}}},
}


@pytest.mark.requirement("001.13")
def test_a_schema_says_where_it_is_wrong():
    assert kept(SCHEMA, '{"items": [{"score": 1}]}') == {"items": [{"score": 1}]}
    items = [{"score": 1}] * 10 + [{"score": "high"}]
    error = broken(SCHEMA, {"items": [{"score": 2}, *items], "a/b": 1.5})
    assert [(each["path"], each["keyword"]) for each in error.violations] == [
        ("/a~1b", "type"),
        ("/items/0/score", "maximum"),
        ("/items/11/score", "type"),
    ]
    assert str(error).startswith("the object does not match expect=: at /a~1b: 1.5 is not of type")
    assert broken(SCHEMA, {}).violations[0]["message"] == "'items' is a required property"


def test_schemas_of_texts_are_asked_with_the_text_first():
    assert kept({"enum": ["yes", "no"]}, "yes") == "yes"
    assert kept({"type": "string", "pattern": "^[0-9]+$"}, "42") == "42"
    assert kept({"type": ["string", "null"]}, "null") == "null"
    assert kept({"enum": [1, 2]}, "2") == 2
    assert kept({"properties": {"a": {}}}, '{"a": 1}') == {"a": 1}
    assert broken({"properties": {"a": {}}}, "no json").actual_type == "string"
    assert broken({"enum": ["yes"]}, "maybe").violations[0]["keyword"] == "enum"


def test_python_objects_are_looked_at_as_json():
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    assert kept(schema, Point(1, 2)) == Point(1, 2)
    assert kept({"type": "array", "minItems": 2}, (1, 2)) == (1, 2)
    assert kept({"type": "object", "required": ["score"]}, Answer(score=1)).score == 1
    assert "cannot be written as JSON" in broken({"type": "object"}, object()).violations[0]["message"]


def test_other_drafts_and_nothing_from_the_network():
    old = {"$schema": "http://json-schema.org/draft-04/schema#", "maximum": 5, "exclusiveMaximum": True}
    assert broken(old, 5).violations
    with pytest.raises(ConfigurationError, match=r"an unknown \$ref"):
        kept({"$ref": "http://127.0.0.1:9/schema.json"}, {})


def test_a_model_gives_its_instance():
    assert kept(Answer, {"score": 1}) == Answer(score=1)
    assert kept(Answer, '```json\n{"score": 0.5, "day": "2026-01-31"}\n```').day == date(2026, 1, 31)
    ready = Answer(score=1)
    assert kept(Answer, ready) is ready
    error = broken(Answer, '{"score": "high", "tags": [1]}')
    assert (error.expected_type, error.actual_type) == ("Answer", "object")
    assert [each["path"] for each in error.violations] == ["/score", "/tags/0"]
    assert broken(Answer, "prose").violations[0]["message"].startswith("not JSON")
    assert broken(Answer, 5).actual_type == "integer"
    assert broken(Answer, b"\xff").actual_type == "bytes"
    assert kept(Point, '{"x": 1, "y": 2}') == Point(1, 2)
    assert kept(list[int], "[1, 2]") == [1, 2]
    assert kept(Known, {"name": "n"}) == {"name": "n"}
    assert kept(Literal["a", "b"], "a") == "a"
    assert kept(int | None, None) is None
    assert kept(list, "[1]") == [1]


def test_a_predicate_says_yes_or_no_or_why():
    assert kept(lambda value: value > 1, 2) == 2
    assert broken(lambda value: value > 1, 1).violations == [
        {"path": "", "message": "<lambda> returned false"}
    ]

    def checks(value):
        assert value["score"] <= 1, "the score is above 1"
        return True

    assert broken(checks, {"score": 2}).violations[0]["message"].startswith("the score is above 1")
    assert "checks failed: KeyError('score')" in broken(checks, {}).violations[0]["message"]


@pytest.mark.requirement("001.12")
def test_the_original_is_kept_within_bounds_and_without_secrets():
    error = broken("array", '{"key": "sk-proj-abcdefghijklmnopqrstuvwxyz012345", "x": "' + "x" * 100_000)
    context = context_of(error)
    assert (context.partial_output.truncated, len(context.partial_output.content)) == (True, 64_000)
    assert len(context.details["original_output"]) == 2_000
    assert "abcdefghijklmnop" not in context.model_dump_json()
    many = broken({"type": "array", "items": {"type": "string"}}, list(range(500)))
    assert len(many.violations) == 100
    assert "; and 97 more" in str(many)


@pytest.mark.parametrize("what", ["array", SCHEMA, Answer, len, list[int]])
def test_promises_travel(what):
    promise = Expect(what, repair=True)
    promise.shape.name  # noqa: B018
    again = cloudpickle.loads(cloudpickle.dumps(promise))
    assert drive(again.check([1] if what not in (SCHEMA, Answer) else {"items": [], "score": 1}))


def test_the_error_travels():
    error = broken("array", "{}")
    error.__notes__ = ["note"]
    again = pickle.loads(pickle.dumps(error))
    assert (again.args, vars(again)) == (error.args, vars(error))


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("arrray", "did you mean 'array'"),
        ({"type": "arrray"}, "is not a JSON Schema: /type"),
        (5, "cannot be checked"),
        (["array"], "cannot be checked"),
        (Odd, "not a type for pydantic"),
    ],
)
def test_what_cannot_be_promised(what, says):
    with pytest.raises(ConfigurationError, match=says):
        Expect(what)


def test_mistakes_of_expect():
    with pytest.raises(ConfigurationError, match="attempts=1"):
        Expect("array", repair=True, attempts=1)
    with pytest.raises(ConfigurationError, match="only once"):
        Expect(Expect("array"))
    assert kept({"$defs": {"a/b": {}}, "$ref": "#/$defs/a~1b"}, "1") == "1"
    with pytest.raises(ConfigurationError, match=r"an unknown \$ref"):
        kept({"$id": "urn:x", "$ref": "#/nowhere"}, 1)


def test_what_is_nested_too_deeply_to_be_looked_at():
    deep = "[" * 900 + "]" * 900
    schema = {"type": "array", "items": {"$ref": "#"}}
    found = broken(schema, deep)
    assert found.violations[0]["message"] == "it is nested too deeply"
    assert found.__context__ is not None
    assert found.__context__.__context__ is None, "Dask pickles it, call by call"
