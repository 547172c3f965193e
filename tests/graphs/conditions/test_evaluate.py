"""Evaluation: errors, scope, sources, order, bounds, and the reasons in words."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from prefect_resilience import (
    Condition,
    ConditionError,
    ErrorCategory,
    ErrorContext,
    ErrorInfo,
    ResilienceError,
    failed,
    path,
    register_secret,
    succeeded,
)
from prefect_resilience.graphs.conditions.compare import EvaluationBounds
from prefect_resilience.graphs.conditions.evaluate import Evaluation
from tests.errors.by_name import forget_secrets

LIMITED = ErrorInfo.of(ErrorCategory.RATE_LIMIT, "429")
CONTEXT = ErrorContext.from_info(LIMITED, timestamp=datetime(2024, 1, 1, tzinfo=UTC))
ERRORS = [LIMITED, CONTEXT, CONTEXT.model_dump(), CONTEXT.model_dump(mode="json")]

OF_ERRORS = [
    (failed(), True, False),
    (succeeded(), False, True),
    (~succeeded(), True, False),
    (failed("rate_limit"), True, False),
    (failed(code="429"), True, False),
    (failed("rate_limit", "429"), True, False),
    (failed("rate_limit", "430"), False, False),
    (failed("timeout"), False, False),
]


@pytest.mark.requirement("000.02")
@pytest.mark.parametrize("error", ERRORS, ids=["info", "context", "fields", "json"])
@pytest.mark.parametrize(("condition", "after_error", "after_success"), OF_ERRORS)
def test_errors(condition: Condition, after_error: bool, after_success: bool, error: Any) -> None:
    assert condition.evaluate(None, error=error) is after_error
    assert condition.evaluate({"a": 1}) is after_success


def test_an_exception_is_classified() -> None:
    assert failed("timeout").evaluate(None, error=TimeoutError())
    assert not failed("network").evaluate(None, error=TimeoutError())
    assert failed().evaluate(None, error=ValueError())


def test_a_missing_path_is_named_with_what_there_was_instead() -> None:
    condition = path("confidnce") >= 0.9
    with pytest.raises(ConditionError) as raised:
        condition.evaluate({"confidence": 0.95})
    assert str(raised.value) == (
        "the condition 'confidnce >= 0.9' cannot be evaluated: there is no 'confidnce' in the value; "
        "did you mean 'confidence'?"
    )
    assert raised.value.path == "confidnce"
    assert isinstance(raised.value, ResilienceError)
    assert isinstance(raised.value, ValueError)
    again = pickle.loads(pickle.dumps(raised.value))
    assert (type(again), again.args, again.path) == (ConditionError, raised.value.args, "confidnce")
    with pytest.raises(ConditionError, match="the value is null, which has no 'confidnce'"):
        condition.evaluate(None, error=LIMITED)


def test_all_and_any_go_from_left_to_right_and_stop() -> None:
    there, missing = path("a") == 1, path("zz") == 1
    assert (there | missing).evaluate({"a": 1})
    assert not (~there & missing).evaluate({"a": 1})
    for condition in (there & missing, missing | there, missing & ~there, ~missing):
        with pytest.raises(ConditionError):
            condition.evaluate({"a": 1})
    assert (path("zz").exists() & missing).evaluate({"a": 1}) is False


def test_scope_and_source() -> None:
    scope = {"state": {"_last_error": {"code": "429"}}, "inputs": {"strict": True}}
    assert (path("state._last_error.code") == "429").evaluate({}, scope=scope)
    assert path("state._last_error").not_exists().evaluate({"state": {"_last_error": 1}}, scope={"state": {}})
    assert (path("inputs.strict") == True).evaluate({}, scope=scope)  # noqa: E712
    seen: list[str] = []

    def source(task: str) -> tuple[Any, Any]:
        seen.append(task)
        return {"a": task}, LIMITED

    theirs = Condition(operator="equals", path="a", value="kg", source_task="kg")
    assert theirs.evaluate({"a": "own"}, source=source)
    assert not theirs.evaluate({"a": "own"})
    both = (
        theirs & (path("a") == "own") & Condition(operator="error_occurred", source_task="kg") & succeeded()
    )
    assert both.evaluate({"a": "own"}, source=source)
    assert seen == ["kg", "kg", "kg"]
    assert both.explain({"a": "own"}, source=source).holds
    assert (path("inputs.strict") == True).explain({}, scope=scope).holds  # noqa: E712


@pytest.fixture
def secret() -> Iterator[str]:
    value = "correct-horse-battery"
    register_secret(value)
    yield value
    forget_secrets()


def test_secrets_are_masked_in_reasons_descriptions_and_errors(secret: str) -> None:
    condition = path("note") == f"it is {secret}"
    for text in (
        str(condition),
        repr(condition),
        condition.explain({"note": f"{secret}!"}).text,
        str(path(f"a['{secret}']") == 1),
        str(path("api_key") == "anything"),
    ):
        assert secret not in text
        assert "anything" not in text
        assert "***" in text
    with pytest.raises(ConditionError) as raised:
        condition.evaluate({})
    assert secret not in str(raised.value)


@pytest.mark.requirement("000.26")
def test_a_condition_has_a_bound_of_time() -> None:
    value = {"a": list(range(5_000))}
    for seconds in (0.4, 0.5):
        times = iter([0.0, *[seconds] * 5])
        evaluation = Evaluation(value, None, None, None, EvaluationBounds(clock=times.__next__))
        if seconds < 0.5:
            assert not evaluation.of(path("a").contains(-1)).holds
        else:
            with pytest.raises(ConditionError, match=r"longer than 0\.5 s"):
                evaluation.of(path("a").contains(-1))


def test_a_pattern_has_a_bound_of_time_of_its_own() -> None:
    slow, value = path("a").matches("(a+)+$"), {"a": "a" * 20_000 + "b"}
    with pytest.raises(
        ConditionError, match=r"^the pattern '\(a\+\)\+\$' took longer than 0\.25 s to match$"
    ):
        slow.evaluate(value)


class NoTime(datetime):
    """As pandas' NaT: a datetime that is none."""

    def utcoffset(self) -> timedelta | None:
        return None

    def replace(self, *args: Any, **kwargs: Any) -> Any:
        return self

    def __sub__(self, other: Any) -> Any:
        return self


def test_what_others_wrote_or_set_does_not_break_a_comparison() -> None:
    assert not (path("a") <= "2024-01-01T00:00:00").evaluate({"a": NoTime(2024, 1, 1)})
