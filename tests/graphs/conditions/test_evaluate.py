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
from prefect_resilience.errors.secrets.redact import forget_secrets
from prefect_resilience.graphs.conditions.compare import EvaluationBounds
from prefect_resilience.graphs.conditions.evaluate import Evaluation, parts

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


REASONS: list[tuple[Condition, Any, str]] = [
    (path("confidence") >= 0.9, {"confidence": 0.71}, "confidence is 0.71, not >= 0.9"),
    (path("confidence") >= 0.9, {"confidence": 0.95}, "confidence is 0.95, >= 0.9"),
    (path("a") == 1, {"a": 1}, "a is 1"),
    (path("a") == "1", {"a": 1}, "a is 1, not '1'"),
    (path("a") != 1, {"a": 1}, "a is 1"),
    (path("a") != 1, {"a": True}, "a is true, not 1"),
    (path("a") == None, {"a": []}, "a is [], not null"),  # noqa: E711
    (path("a").contains("x"), {"a": "xyz"}, "a contains 'x'"),
    (path("a").contains("x"), {"a": "abc"}, "a is 'abc', which does not contain 'x'"),
    (path("a").matches("^x"), {"a": "abc"}, "a is 'abc', which does not match '^x'"),
    (path("a").is_in([1, 2]), {"a": 2}, "a is 2, in [1, 2]"),
    (path("a").is_in([1, 2]), {"a": 3}, "a is 3, not in [1, 2]"),
    (path("a") == 1, {"a": list(range(2_000))}, "a is a list of 2,000, not 1"),
    (path("a") == 1, {"a": {"b": 1}}, "a is a mapping of 1, not 1"),
    (path("a") == 1, {"a": [[1]]}, "a is a list of 1, not 1"),
    (path("a") == 1, {"a": 10**5_000}, "a is a huge number, not 1"),
    (path("a") == 1, {"a": Decimal("0.1")}, "a is 0.1, not 1"),
    (path("a") == 1, {"a": datetime(2024, 1, 1)}, "a is 2024-01-01 00:00:00, not 1"),
    (path("a") == "x", {"a": "y" * 500}, f"a is '{'y' * 59}…', not 'x'"),
    (path("password") == "open", {"password": "hunter2"}, "password is '***', not '***'"),
    (path("a").exists(), {}, "a does not exist"),
    (path("a").not_exists(), {"a": None}, "a exists"),
    (~(path("a") == 1), {"a": 1}, "a is 1"),
    ((path("a") == 1) & (path("b") == 2), {"a": 1, "b": 3}, "b is 3, not 2"),
    ((path("a") == 1) | (path("b") == 2), {"a": 0, "b": 3}, "a is 0, not 1; b is 3, not 2"),
    ((path("a") == 1) & (path("b") == 2), {"a": 1, "b": 2}, "a is 1; b is 2"),
    (
        Condition(operator="any", conditions=[path("a") == i for i in range(5)]),
        {"a": 9},
        "; ".join([f"a is 9, not {i}" for i in range(3)] + ["…"]),
    ),
    (succeeded(), {}, "no error occurred"),
]


@pytest.mark.parametrize(("condition", "value", "text"), REASONS)
def test_the_reason_in_words(condition: Condition, value: Any, text: str) -> None:
    explanation = condition.explain(value)
    assert explanation.text == text
    assert bool(explanation) is explanation.holds is condition.evaluate(value)


def test_the_reason_of_an_error() -> None:
    assert failed().explain(None, error=LIMITED).text == "it failed with rate_limit 429"
    assert failed("timeout").explain(None, error=LIMITED).text == "it failed with rate_limit 429, not timeout"
    assert (
        failed("timeout", "X").explain(None, error=LIMITED).text
        == "it failed with rate_limit 429, not timeout X"
    )
    assert (
        succeeded().explain(None, error={"category": "timeout", "code": "timeout"}).text
        == "it failed with timeout"
    )


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


DESCRIBED = [
    (path("confidence") >= 0.9, "confidence >= 0.9"),
    (path("text").contains("x"), "text contains 'x'"),
    (path("a").is_in(["x", None, True]), "a in ['x', null, true]"),
    (path("a").is_in(list(range(9))), "a in a list of 9"),
    (path("a") == {"b": 1}, "a == a mapping of 1"),
    (path("state._last_error").exists(), "state._last_error exists"),
    (path("a").not_exists(), "a does not exist"),
    (succeeded(), "succeeded"),
    (failed(), "an error occurred"),
    (failed("timeout", "X"), "failed with timeout X"),
    (Condition(operator="failed"), "failed"),
    (~(path("a") == 1), "not (a == 1)"),
    ((path("a") == 1) & ((path("b") == 2) | succeeded()), "a == 1 and (b == 2 or succeeded)"),
    (Condition(operator="equals", path="a", value=1, source_task="kg"), "kg: a == 1"),
    (Condition(operator="success", source_task="kg"), "kg: succeeded"),
    (
        Condition(operator="any", conditions=[path("a") == i for i in range(9)]),
        " or ".join([f"a == {i}" for i in range(6)] + ["…"]),
    ),
]


@pytest.mark.parametrize(("condition", "text"), DESCRIBED)
def test_described(condition: Condition, text: str) -> None:
    assert str(condition) == text


def test_a_deep_description_is_cut() -> None:
    deep = path("a").exists()
    for _ in range(10):
        deep = ~(deep & succeeded())
    assert len(str(deep)) <= 200
    assert "…" in str(deep)
    mixed = path("a").exists()
    for turn in range(6):
        mixed = mixed & succeeded() if turn % 2 else mixed | succeeded()
    assert str(mixed) == "((((…) or succeeded) and succeeded) or succeeded) and succeeded"
    nested = path("a").exists()
    for _ in range(7):
        nested = Condition(operator="not", conditions=[nested])
    assert str(nested) == "not (not (not (not (not (…)))))"


def evaluate(condition: Condition, value: Any, *, seconds: float | None = None, **bounded: Any) -> bool:
    bounds = EvaluationBounds(seconds=condition.seconds if seconds is None else seconds, **bounded)
    return Evaluation(value, None, None, None, bounds).of(condition).holds


class Clock:
    """Gives the times it was told, one after the other."""

    def __init__(self, *times: float) -> None:
        self.times = list(times)

    def __call__(self) -> float:
        return self.times.pop(0) if len(self.times) > 1 else self.times[0]


def test_time_is_bounded_by_the_clock_that_is_passed_in() -> None:
    long = path("a").contains(-1)
    value = {"a": list(range(5_000))}
    assert not evaluate(long, value, clock=Clock(0.0))
    assert not evaluate(long, value, clock=float)
    with pytest.raises(ConditionError, match=r"^the condition took longer than 0\.5 s to evaluate$"):
        evaluate(long, value, clock=Clock(0.0, 0.1, 0.6))
    with pytest.raises(ConditionError, match="longer than 2 s"):
        evaluate(path("b").matches("x"), {"b": "x"}, seconds=2, clock=Clock(0.0, 2.0))


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


def test_steps_are_bounded() -> None:
    value = {"a": [[1] * 10] * 10}
    assert not evaluate(path("a") == [[1] * 10] * 9 + [[2] * 10], value, steps=1_000)
    with pytest.raises(ConditionError, match="too many parts"):
        evaluate(path("a") == [[1] * 10] * 10, value, steps=50)


def test_a_pattern_ends_with_its_own_time_or_with_the_conditions() -> None:
    slow, value = path("a").matches("(a+)+$"), {"a": "a" * 20_000 + "b"}
    with pytest.raises(
        ConditionError, match=r"^the pattern '\(a\+\)\+\$' took longer than 0\.25 s to match$"
    ):
        slow.evaluate(value)
    with pytest.raises(ConditionError, match=r"^the condition took longer than 0\.01 s to evaluate$"):
        evaluate(slow, value, seconds=0.01)
    with pytest.raises(ConditionError, match="1,000,001 characters is too long to match"):
        path("a").matches("b").evaluate({"a": "a" * 1_000_001})


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
        assert (path("a") > 0.5).evaluate({"a": Decimal("0.6")})
        assert not path("a").is_in([Decimal("0.25")]).evaluate({"a": 0.5})
        assert (path("$[0]") == 0.5).evaluate([Decimal("0.5")])
        both = {"f": 0.5, "d": Decimal("0.5")}
        assert (path("$[?@.f == @.d].f") == [0.5]).evaluate([both])
        assert (path("$[?@.d == @.f].f") == [0.5]).evaluate([both])


def test_a_failed_sub_step_counts_as_what_made_it_fail():
    from datetime import datetime

    from prefect_resilience import failed
    from prefect_resilience.errors.context import ErrorContext
    from prefect_resilience.errors.taxonomy import ErrorCategory as C
    from prefect_resilience.errors.taxonomy import ErrorInfo

    now = datetime(2026, 1, 31, tzinfo=UTC)
    cause = ErrorContext.from_info(ErrorInfo.of(C.RATE_LIMIT, "429"), timestamp=now)
    middle = ErrorContext.from_info(ErrorInfo.of(C.SUBTASK, "429"), timestamp=now, cause=cause.deeper())
    outer = ErrorContext.from_info(ErrorInfo.of(C.SUBTASK, "429"), timestamp=now, cause=middle.deeper())
    for error in (outer, outer.model_dump(mode="json")):
        assert failed(category="rate_limit").evaluate(None, error=error)
        assert failed(category="subtask", code=429).evaluate(None, error=error)
        assert not failed(category="timeout").evaluate(None, error=error)
    lost = outer.model_copy(update={"cause": None})
    assert not failed(category="rate_limit").evaluate(None, error=lost)


def test_the_parts_of_a_condition():
    inner = (path("a") > 1) & ~(path("b") > 2)
    whole = inner | (path("c") > 3)
    found = list(parts(whole))
    assert found[0] is whole
    assert sorted(one.path for one in found if one.path) == ["a", "b", "c"]
    assert len(found) == 6
