"""Whether applied advice came true."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_resilience.operations.tuning.applying import AppliedTuning, TuningChange
from prefect_resilience.operations.tuning.checking import (
    FEWEST_HIT,
    FEWEST_RUNS,
    CheckedFigure,
    checked,
)
from prefect_resilience.operations.tuning.report import Comparison, TuningFigures


def figures(**changes: Any) -> TuningFigures:
    told = {"runs": 1000, "hit": 100, "recovered": 50, "failed": 50, "waited": 200, "calls": 1200, "p95": 2.0}
    return TuningFigures.model_validate({**told, **changes})


def comparison(**then: Any) -> Comparison:
    now, after = figures(), figures(**then)
    return Comparison(task="ask", runs=1000, options={}, now=now, then=after, figures=())


def entry(effect: Comparison | None) -> AppliedTuning:
    change = TuningChange(
        task="ask", option="retry.attempts", block="llm", before=None, now=3, after=5, effect=effect
    )
    return AppliedTuning(id="e", at=7.0, by="me", since=0, until=1, changes=(change,))


def outcome(since: TuningFigures | None, effect: Comparison | None) -> str:
    told = {} if since is None else {"e": {"ask": since}}
    (one,) = checked([entry(effect)], told)
    assert (one.task, one.before, one.after, one.applied_at) == ("ask", 3, 5, 7.0)
    return one.outcome


BETTER = comparison(recovered=90, failed=10, calls=1300)


def test_rates_that_changed_as_predicted_came_true() -> None:
    assert outcome(figures(recovered=88, failed=12, calls=1290), BETTER) == "came true"


def test_twice_the_runs_at_the_same_rates_are_the_same() -> None:
    twice = figures(runs=2000, hit=200, recovered=176, failed=24, waited=400, calls=2580)
    assert outcome(twice, BETTER) == "came true"


def test_rates_that_did_not_change_did_not_come_true() -> None:
    assert outcome(figures(), BETTER) == "did not"


def test_the_opposite_did_not_come_true() -> None:
    assert outcome(figures(recovered=20, failed=80, calls=1100), BETTER) == "did not"


def test_a_part_of_it() -> None:
    assert outcome(figures(recovered=60, failed=40, calls=1290), BETTER) == "partly"


def test_a_difference_within_the_noise_is_too_early() -> None:
    small = comparison(recovered=52, failed=49, waited=200)
    assert outcome(figures(recovered=60, failed=40), small) == "too early"


@pytest.mark.parametrize(
    "since",
    [None, figures(runs=FEWEST_RUNS - 1), figures(hit=FEWEST_HIT - 1)],
)
def test_few_runs_are_too_early(since: TuningFigures | None) -> None:
    assert outcome(since, BETTER) == "too early"


def test_without_a_prediction_there_is_nothing_to_compare() -> None:
    assert outcome(figures(), None) == "nothing to compare"
    assert outcome(figures(), comparison()) == "nothing to compare"


def test_figures_without_hits_or_p95_are_left_out() -> None:
    effect = Comparison(
        task="ask", runs=1, options={}, now=figures(hit=0, p95=None), then=figures(failed=10), figures=()
    )
    (one,) = checked([entry(effect)], {"e": {"ask": figures(failed=10)}})
    names = [each.name for each in one.figures]
    assert "failed, of all runs" in names
    assert not any("recovered" in name or "p95" in name for name in names)


RATES = st.floats(0.01, 1.0)


@given(RATES, RATES)
def test_exactly_the_prediction_never_fails(before: float, predicted: float) -> None:
    found = CheckedFigure(name="x", before=before, predicted=predicted, since=predicted).outcome
    assert found in ("came true", "nothing to compare")


@given(RATES, RATES)
def test_no_change_never_comes_true_without_noise(before: float, predicted: float) -> None:
    found = CheckedFigure(name="x", before=before, predicted=predicted, since=before).outcome
    assert found in ("did not", "nothing to compare")
