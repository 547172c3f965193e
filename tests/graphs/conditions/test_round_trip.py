"""Laws: a condition is the same after JSON, after a pickle, and whichever way it is put together."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_resilience import Condition, ConditionError, ErrorCategory, ErrorInfo
from tests.graphs.conditions.strategies import condition_mistakes, conditions, results

pytestmark = [pytest.mark.no_cover, pytest.mark.slow]

FAILURE = ErrorInfo.of(ErrorCategory.RATE_LIMIT, "429")


def answer(condition: Condition, value: Any, error: Any = None) -> bool | None:
    try:
        return condition.evaluate(value, error=error)
    except ConditionError:
        return None


@given(conditions)
@settings(max_examples=120, deadline=None)
def test_json_gives_the_same_condition(condition: Condition) -> None:
    for form in (
        condition.model_dump(mode="json"),
        condition.model_dump(),
        condition.model_dump(exclude_none=True),
    ):
        again = Condition.model_validate(form)
        assert again == condition
        assert hash(again) == hash(condition)
        assert again.model_dump() == condition.model_dump()
    text = condition.model_dump_json()
    assert Condition.model_validate_json(text) == condition
    assert Condition.model_validate(json.loads(text)) == condition
    assert condition_mistakes(json.loads(text), json=True) == []


@given(conditions, results, st.sampled_from([None, FAILURE]))
@settings(max_examples=120, deadline=None)
def test_evaluation_answers_or_raises_condition_error_and_explains_the_same(
    condition: Condition, value: Any, error: Any
) -> None:
    holds = answer(condition, value, error)
    assert holds in (True, False, None)
    if holds is None:
        with pytest.raises(ConditionError):
            condition.explain(value, error=error)
        return
    explanation = condition.explain(value, error=error)
    assert explanation.holds is holds
    assert explanation.text
    assert answer(~condition, value, error) is not holds


def test_true_one_and_one_point_zero_are_different_values_of_a_condition() -> None:
    made = {Condition(operator="equals", path="a", value=value) for value in (1, True, 1.0, "1", None)}
    assert len(made) == 5


@given(conditions)
@settings(max_examples=100, deadline=None)
def test_a_condition_is_described_in_one_short_line(condition: Condition) -> None:
    assert 0 < len(str(condition)) <= 200
    assert len(condition.describe(20)) <= 20
    assert repr(condition) == f"Condition({condition})"
