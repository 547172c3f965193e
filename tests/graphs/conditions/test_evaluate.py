"""Evaluation: errors, scope, sources, order, bounds, and the reasons in words."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal, FloatOperation, localcontext
from typing import Any

import pytest

from prefect_resilience import (
    Condition,
    ConditionError,
    ConfigurationError,
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
    (failed(code=429), True, False),
    (failed("rate_limit", "429"), True, False),
    (failed("rate_limit", "430"), False, False),
    (failed("timeout"), False, False),
    (failed("timeout", "429"), False, False),
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


def evaluate(condition: Condition, value: Any, *, seconds: float | None = None, **bounded: Any) -> bool:
    bounds = EvaluationBounds(seconds=condition.seconds if seconds is None else seconds, **bounded)
    return Evaluation(value, None, None, None, bounds).of(condition).holds


class Clock:
    """Gives the times it was told, one after the other."""

    def __init__(self, *times: float) -> None:
        self.times = list(times)

    def __call__(self) -> float:
        return self.times.pop(0) if len(self.times) > 1 else self.times[0]


@pytest.mark.requirement("000.26")
def test_a_condition_may_say_how_long_it_takes() -> None:
    value = {"a": list(range(5_000)), "b": 1}
    form = {"type": "output_check", "operator": "contains", "path": "a", "value": -1, "timeout_ms": 1500}
    patient = Condition(**form)
    assert patient.model_dump() == form
    both = (path("b") == 1) & patient & (path("b") > 0)
    for condition, seconds in [(patient, 1.5), (both, 1.5), (~patient, 1.5), (path("a").contains(-1), 0.5)]:
        assert condition.seconds == Condition(**condition.model_dump()).seconds == seconds
        evaluate(condition, value, clock=Clock(0.0, seconds - 0.1))
        with pytest.raises(ConditionError, match=f"longer than {seconds:g} s"):
            evaluate(condition, value, clock=Clock(0.0, seconds))
    # What has a bound of its own is not taken apart
    whole = Condition(operator="all", conditions=(path("b") == 1, path("b") > 0), timeout_ms=20)
    assert [part.timeout_ms for part in (whole & (path("b") == 1)).conditions] == [20, None]
    assert (~Condition(operator="not", conditions=(patient,), timeout_ms=9)).seconds == 1.5
    for least_and_most in (0.5, 1, 60_000):
        assert Condition(**{**form, "timeout_ms": least_and_most}).timeout_ms == least_and_most
    for wrong in (0, -1, True, "100", 60_001, float("nan")):
        with pytest.raises(ConfigurationError, match=r"timeout_ms.*allowed milliseconds, at most 60,000"):
            Condition(**{**form, "timeout_ms": wrong})


def test_a_pattern_ends_with_its_own_time_or_with_the_conditions() -> None:
    slow, value = path("a").matches("(a+)+$"), {"a": "a" * 20_000 + "b"}
    with pytest.raises(
        ConditionError, match=r"^the pattern '\(a\+\)\+\$' took longer than 0\.25 s to match$"
    ):
        slow.evaluate(value)
    with pytest.raises(ConditionError, match=r"^the condition took longer than 0\.01 s to evaluate$"):
        evaluate(slow, value, seconds=0.01)


class NoTime(datetime):
    """As pandas' NaT: a datetime that is none."""

    def utcoffset(self) -> timedelta | None:
        return None

    def replace(self, *args: Any, **kwargs: Any) -> Any:
        return self

    def __sub__(self, other: Any) -> Any:
        return self


class Broken(tzinfo):
    def utcoffset(self, dt: datetime | None) -> timedelta:
        raise RuntimeError("no")


def test_what_others_wrote_or_set_does_not_break_a_comparison() -> None:
    odd = datetime(2024, 1, 1, tzinfo=Broken())
    assert not (path("a") == "2024-01-01T00:00:00Z").evaluate({"a": odd})
    assert not (path("a") <= "2024-01-01T00:00:00").evaluate({"a": NoTime(2024, 1, 1)})
    with localcontext() as context:
        context.traps[FloatOperation] = True
        assert (path("$[0]") == 0.5).evaluate([Decimal("0.5")])
        both = {"f": 0.5, "d": Decimal("0.5")}
        assert (path("$[?@.f == @.d].f") == [0.5]).evaluate([both])
        assert (path("$[?@.d == @.f].f") == [0.5]).evaluate([both])


def test_a_failed_sub_step_counts_as_what_made_it_fail():
    now, subtask = CONTEXT.timestamp, ErrorInfo.of(ErrorCategory.SUBTASK, "429")
    middle = ErrorContext.from_info(subtask, timestamp=now, cause=CONTEXT.deeper())
    outer = ErrorContext.from_info(subtask, timestamp=now, cause=middle.deeper())
    for error in (outer, outer.model_dump(mode="json")):
        assert failed(category="rate_limit").evaluate(None, error=error)
        assert failed(category="subtask", code=429).evaluate(None, error=error)
        assert not failed(category="timeout").evaluate(None, error=error)
    lost = outer.model_copy(update={"cause": None})
    assert not failed(category="rate_limit").evaluate(None, error=lost)
