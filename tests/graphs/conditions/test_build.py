"""The builder: what it makes, and what it refuses."""

import copy
import functools
from enum import Enum
from typing import Any

import pytest

from prefect_resilience import Condition, ConfigurationError, ErrorCategory, failed, path, succeeded


class Status(str, Enum):  # noqa: UP042
    DONE = "done"


class Slow(Enum):
    IT = "timeout"


MADE = [
    (path("a") == 1, "equals", 1),
    (path("a") != 1, "not_equals", 1),
    (path("a") > 1, "gt", 1),
    (path("a") >= 1, "gte", 1),
    (path("a") < 1, "lt", 1),
    (path("a") <= 1, "lte", 1),
    (path("a").contains("x"), "contains", "x"),
    (path("a").matches("^x"), "matches", "^x"),
    (path("a").is_in([1, "x"]), "in", [1, "x"]),
    (path("a").is_in({"b", 2, "a", 1}), "in", [1, 2, "a", "b"]),
    (path("a").is_in({10, 9, "1"}), "in", [10, 9, "1"]),  # by kind, then by text
    (path("a").is_in(range(3)), "in", [0, 1, 2]),
    (path("a").exists(), "exists", None),
    (path("a").not_exists(), "not_exists", None),
    (path("a") == Status.DONE, "equals", "done"),
]


@pytest.mark.parametrize(("condition", "operator", "value"), MADE)
def test_path_makes_conditions(condition: Condition, operator: str, value: Any) -> None:
    assert isinstance(condition, Condition)
    assert (condition.operator, condition.path, condition.value) == (operator, "a", value)
    below = path("a") < 1
    assert (below.operator, below.value) == ("lt", 1)


def test_errors() -> None:
    assert succeeded().operator == "success"
    assert failed() == Condition(operator="error_occurred")
    assert (
        failed(ErrorCategory.TIMEOUT) == failed("timeout") == Condition(operator="failed", category="timeout")
    )
    assert failed(Slow.IT).category == "timeout"
    assert failed(code=503).model_dump() == {"type": "error_catch", "operator": "failed", "code": "503"}
    assert failed("timeout", "TIMEOUT").model_dump() == {
        "type": "error_catch",
        "operator": "failed",
        "category": "timeout",
        "code": "TIMEOUT",
    }


def test_and_or_not_put_together_and_flatten() -> None:
    a, b, c = path("a").exists(), path("b").exists(), path("c").exists()
    assert (a & b & c).conditions == (a, b, c)
    assert (a | b | c).conditions == (a, b, c)
    assert (a & b | c).operator == "any"
    assert (a & (b | c)).conditions == (a, b | c)
    assert (~a).operator == "not"
    assert ~~a == a
    assert (~(a & b) & c).extent == (4, 6)


def test_thousands_are_put_together_quickly_and_no_more_than_allowed() -> None:
    many = functools.reduce(lambda left, right: left & right, [path("a").exists()] * 1_000)
    assert many.extent == (2, 1_001)
    many = functools.reduce(lambda left, right: left & right, [many] * 6)
    with pytest.raises(ConfigurationError, match=r"Condition: a condition may have at most 10,000 parts"):
        _ = many | many
    deep = path("a").exists()
    for turn in range(99):
        deep = (deep & succeeded()) if turn % 2 else (deep | succeeded())
    with pytest.raises(ConfigurationError, match="nested at most 100 levels deep"):
        _ = deep & succeeded()
    assert deep.extent[0] == 100
    assert Condition.model_validate({"operator": "not", "condition": deep.conditions[0]}).extent[0] == 100
    assert Condition.model_validate_json(deep.model_dump_json()) == deep
    assert copy.deepcopy(deep) == deep
    assert deep.evaluate({"a": 1})


REFUSED: list[tuple[Any, str]] = [
    (lambda: path(3), r"^path\(\) takes a string such as 'results\[0\]\.id', not 3$"),  # pyright: ignore
    (lambda: path("a."), "cannot be read at column 2"),
    (lambda: path("a").is_in("abc"), r"^path\('a'\)\.is_in\(\) takes a list of values, not 'abc'$"),
    (lambda: path("a").is_in(b"b"), r"takes a list of values, not b'b'$"),
    (lambda: path("a").is_in({"a": 1}), r"takes a list of values, not a dict$"),
    (lambda: path("a").matches(3), "'matches' needs a regular expression, not 3"),  # pyright: ignore
    (
        lambda: path("a") == path("b"),
        r"^path\('a'\) can only be compared with a value, not with path\('b'\)$",
    ),
    (lambda: path("a") > succeeded(), "must be a JSON value"),
    (lambda: failed("timeot"), "not an error category; did you mean 'timeout'"),
    (lambda: succeeded() & True, r"^& combines two conditions, not a condition and True$"),
    (lambda: succeeded() | path("a"), r"^\| combines two conditions, not a condition and path\('a'\)$"),
    (
        lambda: Condition(operator="gte", path="a"),
        r"^Condition\(value\): 'gte' needs a value to compare with$",
    ),
]


@pytest.mark.parametrize(("make", "says"), REFUSED)
def test_wrong_arguments_are_refused_in_one_sentence(make: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        make()


def test_neither_a_condition_nor_a_path_is_true_or_false() -> None:
    combined = (
        r"^a condition is neither true nor false before it is evaluated: combine conditions with "
        r"& \| ~ instead of and, or, not, and test for None with `is None`$"
    )
    with pytest.raises(TypeError, match=combined):
        bool(succeeded())
    with pytest.raises(
        TypeError, match=r"^path\('a'\) is not a condition yet: compare it, or write \.exists\(\)$"
    ):
        bool(path("a"))
    with pytest.raises(TypeError):
        _ = path("a") > 1 and path("b") > 1
    with pytest.raises(TypeError):
        _ = 1 < path("a") < 3
    with pytest.raises(TypeError, match="unhashable"):
        hash(path("a"))


def test_conditions_are_compared_and_hashed_like_values() -> None:
    assert (path("a") == 1) == (path("a") == 1)
    assert ((path("a") == 1) == 1) is False
    assert len({path("a") == 1, path("a") == 1, path("a") == 2}) == 2
    assert hash(path("a") == 1) != hash(path("a") == 2)
    assert (path("a") == {"x": 1, "y": 2}) == (path("a") == {"y": 2, "x": 1})
    assert repr(path("a.b")) == "path('a.b')"
    with pytest.raises(Exception, match="frozen"):
        succeeded().operator = "failed"  # pyright: ignore
    changed = (path("a") == 1).model_copy(update={"source_task": "t"})
    assert changed != (path("a") == 1)


def test_a_path_without_comparison_on_either_side():
    bare: Any = path("a")
    for put in (lambda: bare & 1, lambda: bare | 1, lambda: 1 & bare, lambda: 1 | bare):
        with pytest.raises(ConfigurationError, match=r"^path\('a'\) is combined by & or \|.*comparison"):
            put()
    with pytest.raises(
        ConfigurationError, match=r"^~path\('a'\) has no comparison: write ~\(path\('a'\) > 1\)"
    ):
        _ = ~bare


def test_a_mistake_is_called_by_what_it_is_in():
    with pytest.raises(ValueError, match=r"^1 validation error for Condition\n"):
        Condition.model_validate({"operator": "zz"})
