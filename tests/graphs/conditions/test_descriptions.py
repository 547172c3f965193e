"""What is said of conditions and their answers, as it stands: reasons, descriptions, the whole schema."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from prefect_resilience import Condition, ErrorCategory, ErrorContext, ErrorInfo, failed, path, succeeded
from prefect_resilience.graphs.conditions.evaluate import describe


class Unreadable:
    @property
    def category(self) -> str:
        raise AssertionError("nobody asked for a category")


def caused_by(*categories: str) -> ErrorContext:
    """An error with a chain of causes, the outermost category first."""
    error: ErrorContext | None = None
    for category in reversed(categories):
        info = ErrorInfo.of(ErrorCategory(category), "X")
        error = ErrorContext.from_info(info, timestamp=datetime.now(UTC), cause=error and error.deeper())
    assert error is not None
    return error


def test_which_errors_are_meant() -> None:
    any_failure = Condition(operator="failed")
    assert any_failure.evaluate(None, error=caused_by("timeout"))
    assert not any_failure.evaluate(None)
    assert failed().evaluate(None, error=Unreadable())
    assert not failed("rate_limit").evaluate(None, error=caused_by("timeout", "rate_limit"))
    assert failed("rate_limit").evaluate(None, error=caused_by("subtask", "rate_limit"))
    assert not failed("rate_limit").evaluate(None, error=ErrorInfo.of(ErrorCategory.SUBTASK, "X"))
    assert not failed("rate_limit", "Y").evaluate(None, error=caused_by("subtask", "rate_limit"))


def test_what_is_said_of_an_error() -> None:
    for error in ({}, object()):
        assert failed().explain(None, error=error).text == "it failed with "
        assert failed(code="Y").explain(None, error=error).text == "it failed with , not Y"
    info = ErrorInfo.of(ErrorCategory.RATE_LIMIT, "429")
    assert failed("rate_limit").explain(None, error=info).text == "it failed with rate_limit 429"
    assert failed("timeout", "X").explain(None, error=info).text == (
        "it failed with rate_limit 429, not timeout X"
    )
    assert failed("timeout").explain(None).text == "no error occurred"
    assert (
        succeeded().explain(None, error={"category": "timeout", "code": "timeout"}).text
        == "it failed with timeout"
    )
    assert failed("timeout").explain(None, error=TimeoutError()).text.startswith("it failed with timeout")


REASONS: list[tuple[Callable[[], Condition], Any, str]] = [
    (lambda: path("a") >= 0.9, {"a": 0.71}, "a is 0.71, not >= 0.9"),
    (lambda: path("a") == "1", {"a": 1}, "a is 1, not '1'"),
    (lambda: path("a").is_in([1, 2]), {"a": 3}, "a is 3, not in [1, 2]"),
    (lambda: path("a") == 1, {"a": list(range(2_000))}, "a is a list of 2,000, not 1"),
    (lambda: path("a") == 1, {"a": Decimal("0.1")}, "a is 0.1, not 1"),
    (lambda: path("a") == 1, {"a": datetime(2024, 1, 1)}, "a is 2024-01-01 00:00:00, not 1"),
    (lambda: path("a") == "x", {"a": "y" * 500}, f"a is '{'y' * 59}…', not 'x'"),
    (lambda: path("password") == "open", {"password": "hunter2"}, "password is '***', not '***'"),
    (lambda: path("a").exists(), {}, "a does not exist"),
    (lambda: path("a").not_exists(), {"a": None}, "a exists"),
    (lambda: ~(path("a") == 1), {"a": 1}, "a is 1"),
    (lambda: (path("a") == 1) & (path("b") == 2), {"a": 1, "b": 3}, "b is 3, not 2"),
    (lambda: (path("a") == 1) | (path("b") == 2), {"a": 0, "b": 3}, "a is 0, not 1; b is 3, not 2"),
    (lambda: (path("a") == 1) & (path("b") == 2), {"a": 1, "b": 2}, "a is 1; b is 2"),
    (succeeded, {}, "no error occurred"),
    (lambda: path("a") != 1, {"a": 1}, "a is 1"),
    (lambda: path("a").contains("x"), {"a": ["x"]}, "a contains 'x'"),
    (lambda: path("a").contains("x"), {"a": {"y": 1}}, "a is a mapping of 1, which does not contain 'x'"),
    (lambda: path("a").matches("x"), {"a": "xy"}, "a matches 'x'"),
    (lambda: path("a").matches("x"), {"a": 3}, "a is 3, which does not match 'x'"),
    (lambda: path("a") <= 1, {"a": 1}, "a is 1, <= 1"),
    (lambda: path("a").is_in([1, "b"]), {"a": "b"}, "a is 'b', in [1, 'b']"),
    (
        lambda: path("password").is_in(["a", "b"]),
        {"password": ["c", ["d"]]},
        "password is a list of 2, not in ['***', '***']",
    ),
    (
        lambda: path("password").matches("a"),
        {"password": ["c"]},
        "password is ['***'], which does not match '***'",
    ),
    (
        lambda: Condition(operator="any", conditions=[path("a") == i for i in range(3)]),
        {"a": 9},
        "a is 9, not 0; a is 9, not 1; a is 9, not 2",
    ),
    (
        lambda: Condition(operator="all", conditions=[path("a") != i for i in range(4)]),
        {"a": 9},
        "a is 9, not 0; a is 9, not 1; a is 9, not 2; …",
    ),
]


@pytest.mark.parametrize(("make", "value", "text"), REASONS)
def test_what_is_said_of_a_result(make: Callable[[], Condition], value: Any, text: str) -> None:
    explanation = make().explain(value)
    assert explanation.text == text
    assert bool(explanation) is explanation.holds is make().evaluate(value)


DESCRIBED: list[tuple[Callable[[], Condition], str]] = [
    (lambda: path("a") == 1, "a == 1"),
    (lambda: path("a") >= 1, "a >= 1"),
    (lambda: path("a").contains("x"), "a contains 'x'"),
    (lambda: path("a").matches("x"), "a matches 'x'"),
    (lambda: path("a").is_in([None, True, False]), "a in [null, true, false]"),
    (lambda: path("a").is_in([1, 2, 3, 4, 5, 6, 7]), "a in a list of 7"),
    (lambda: path("a").is_in([[1]]), "a in a list of 1"),
    (lambda: path("a.b").exists(), "a.b exists"),
    (lambda: path("a").not_exists(), "a does not exist"),
    (lambda: path("api_key") == "hidden", "api_key == '***'"),
    (lambda: path("api_key").is_in(["hidden", 1, None]), "api_key in ['***', 1, null]"),
    (lambda: succeeded(), "succeeded"),
    (lambda: failed(), "an error occurred"),
    (lambda: Condition(operator="failed"), "failed"),
    (lambda: failed("timeout", "X"), "failed with timeout X"),
    (lambda: ~path("a").exists(), "not (a exists)"),
    (lambda: (path("a") == 1) | (path("b") == 2) & succeeded(), "a == 1 or (b == 2 and succeeded)"),
    (lambda: ~(succeeded() | failed()), "not (succeeded or an error occurred)"),
    (lambda: Condition(operator="failed", source_task="t", code="X"), "t: failed with X"),
    (lambda: Condition(operator="exists", path="a", source_task="t"), "t: a exists"),
    (
        lambda: Condition(operator="all", conditions=[path(f"p{i}").exists() for i in range(6)]),
        "p0 exists and p1 exists and p2 exists and p3 exists and p4 exists and p5 exists",
    ),
    (
        lambda: Condition(operator="any", conditions=[path(f"p{i}").exists() for i in range(7)]),
        "p0 exists or p1 exists or p2 exists or p3 exists or p4 exists or p5 exists or …",
    ),
]


@pytest.mark.parametrize(("make", "text"), DESCRIBED)
def test_what_describes_a_condition(make: Callable[[], Condition], text: str) -> None:
    assert make().describe() == text


def test_how_a_condition_shows_itself() -> None:
    assert repr(path("a") == 1) == "Condition(a == 1)"
    long = path("a") == "x" * 50
    line = " and ".join(["a == '" + "x" * 50 + "'"] * 6)
    many = Condition(operator="all", conditions=[long] * 6)
    assert len(line) > 200
    assert many.describe() == describe(many) == line[:199] + "…"
    assert many.describe(len(line)) == line
    assert many.describe(len(line) - 1) == line[:-2] + "…"


# -- the schema
