"""Advice: what is said, what is left unsaid and why, and the comparison with other options."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.operations.tuning.advising import advise, what_if
from prefect_resilience.operations.tuning.choosing import choose
from prefect_resilience.operations.tuning.losses import interval
from prefect_resilience.operations.tuning.options import merged, policy_of, value_at, with_value
from prefect_resilience.operations.tuning.record import RecordedPeriod
from prefect_resilience.operations.tuning.report import ReplayFit, TuningFigures, fit_together
from prefect_resilience.operations.tuning.sentences import fit_doubts, lasting, sentence_of
from prefect_resilience.operations.tuning.service import ServiceModel
from tests.operations.tuning.planted import NEVER_HELP, TOO_LONG
from tests.operations.tuning.test_service import attempt, period_of, run, task_of
from tests.operations.tuning.worlds import TrueService, World, live


def test_an_empty_period_has_no_advice() -> None:
    report = advise(RecordedPeriod(since=0.0, until=100.0, tasks=(), unknown={"runs": "too many"}))
    assert report.advice == ()
    assert report.fits == ()
    assert report.unknown == {"runs": "too many"}


def test_a_task_without_known_options_is_not_judged() -> None:
    report = advise(period_of(task_of("label", [run(1, attempt(1.0))], options=None)))
    [one] = report.not_judged
    assert (one.task, one.option) == ("label", "*")


def test_few_runs_are_no_reason_for_advice() -> None:
    runs = [
        run(number, attempt(float(number), "timeout" if number % 5 == 0 else None)) for number in range(50)
    ]
    report = advise(
        period_of(task_of("label", runs, options={"timeout": 5.0, "fallback": ["other"], "hedge": {}}))
    )
    assert report.advice == ()
    why = {one.option: one.why for one in report.not_judged}
    assert why.keys() == {"retry", "timeout", "circuit", "limits", "hedge", "fallback"}
    assert "only 10 runs" in why["retry"]
    assert "quickest call" in why["hedge"]


def test_the_advice_has_its_sentence_and_its_numbers() -> None:
    [one] = advise(live(TOO_LONG, 1)[0]).advice
    assert one.option == "timeout"
    assert one.now == 120.0
    assert one.why.startswith(f"timeout={one.better:g}: p99.9 is 0.8")
    assert "minutes less in runs" in one.why
    assert one.evidence["runs"] == 5000
    assert (one.evidence["seconds"] or 0) > 3000
    assert one.effect is not None
    assert one.effect.options == {"timeout": one.better}
    rows = {row.name: row for row in one.effect.figures}
    assert rows["seconds in runs"].better is True
    assert rows["runs that failed"].better is None


def test_the_same_seed_gives_the_same_advice_and_a_report_is_json() -> None:
    period, _ = live(NEVER_HELP, 1)
    report = advise(period, goal="latency", seed=3)
    assert report == advise(period, goal="latency", seed=3)
    assert type(report).model_validate_json(report.model_dump_json()) == report
    assert report.goal == "latency"


def test_what_if_is_side_by_side() -> None:
    period, _ = live(TOO_LONG, 1)
    one = what_if(period, "ask", {"timeout": 3, "retry": {"attempts": 1}})
    assert one.options == {"timeout": 3, "retry": {"attempts": 1}}
    assert one.then.failed > one.now.failed
    assert one.then.seconds < one.now.seconds
    assert one.fit is not None
    assert one.fit.recorded.runs == 5000
    assert not one.fit.doubtful
    low, high = one.likely["share_recovered"]
    assert one.then.share_recovered is not None
    assert low <= one.then.share_recovered <= high
    assert one.likely["waited"][0] <= one.then.waited <= one.likely["waited"][1]


def test_what_if_says_what_is_wrong() -> None:
    period, _ = live(TOO_LONG, 1)
    with pytest.raises(
        ConfigurationError, match="task 'label' has no runs in this period; tasks with runs: ask"
    ):
        what_if(period, "label", {})
    with pytest.raises(ConfigurationError, match="there is no option 'attempts'"):
        what_if(period, "ask", {"attempts": 3})
    with pytest.raises(ConfigurationError, match="timeout=-1 is not a time"):
        what_if(period, "ask", {"timeout": -1})
    unknown = period_of(task_of("label", [run(1, attempt(1.0))], options=None))
    with pytest.raises(ConfigurationError, match="options of task 'label' are not known"):
        what_if(unknown, "label", {"timeout": 3})


def test_options_are_merged_option_by_option() -> None:
    options: dict[str, Any] = {"retry": {"attempts": 3, "backoff": {"kind": "linear", "initial": 2.0}}}
    assert merged(options, {"retry": {"attempts": 5}})["retry"] == {**options["retry"], "attempts": 5}
    assert merged(options, {"retry": {"backoff": {"kind": "none"}}})["retry"]["backoff"] == {"kind": "none"}
    assert with_value({}, "circuit.open_for", 5.0) == {"circuit": {"open_for": 5.0}}
    assert value_at(options, "retry.backoff.initial") == 2.0
    assert value_at(options, "timeout.total") is None
    assert policy_of({"timeout": {"total": "30s"}}).timeout == 30.0
    assert policy_of({"timeout": None}).timeout is None


# -- the choice


def test_the_gain_of_one_event_is_no_reason_for_a_change() -> None:
    one_event = [-50.0, 9000.0, 20.0, -60.0, 10.0, -40.0, 30.0, -20.0, 10.0, -30.0]
    every_day = [500.0, 900.0, 700.0, -60.0, 800.0, 400.0, 300.0, 600.0, 450.0, 350.0]
    assert choose([one_event], 10.0, 1.0, 0) is None
    choice = choose([one_event, every_day], 10.0, 7.0, 0)
    assert choice is None or choice.place == 1


def test_a_change_that_never_costs_anything_may_win_by_one_event() -> None:
    assert choose([[0.0, 0.0, 300.0, 20.0, 9000.0, 0.0, 0.0, 0.0, 0.0, 0.0]], 100.0, 1.0, 0) is not None


def test_the_nearest_of_equally_good_values_is_chosen() -> None:
    choice = choose([[10.0] * 10, [99.5] * 10, [100.0] * 10], 10.0, 10.0, 0)
    assert choice is not None
    assert choice.place == 1
    assert choice.gain == pytest.approx(995.0)


@given(st.lists(st.lists(st.floats(-1e4, 0), min_size=10, max_size=10), max_size=4), st.integers(0, 9))
def test_no_gain_no_change(gains: list[list[float]], seed: int) -> None:
    assert choose(gains, 1.0, 7.0, seed) is None


@given(st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=30), st.integers(0, 9))
def test_an_interval_is_ordered_and_within_what_is_possible(gains: list[float], seed: int) -> None:
    low, high = interval(gains, seed)
    assert len(gains) * min(gains) - 1e-6 <= low <= high <= len(gains) * max(gains) + 1e-6


# -- the words


def figures(**values: float) -> TuningFigures:
    return TuningFigures(runs=2000.0, hit=1204.0, **values)


def test_sentences() -> None:
    model = ServiceModel("s", 0.0, (), {}, {}, {}, {}, (), 0)
    before = figures(recovered=202.0, failed=100.0, seconds=10_000.0, dead_calls=50.0)

    def said(option: str, now: Any, better: Any, **after: float) -> str:
        return sentence_of({option: better}, now, before, figures(**after), model, 0)

    fewer = {"recovered": 200.0, "failed": 102.0, "seconds": 7540.0, "dead_calls": 50.0}
    assert said("retry.attempts", 4, 3, **fewer) == (
        "attempts=3: the fourth recovered 2 of 1,204 runs that had a failed attempt and cost 41 minutes."
    )
    assert said("retry.attempts", 6, 3, **{**fewer, "dead_calls": 20.0}).endswith(
        "and cost 41 minutes and 30 calls to a service in an outage."
    )
    assert "those from the fourth on" in said("retry.attempts", 6, 3, **fewer)
    assert "those from attempt 13 on" in said("retry.attempts", 20, 12, **fewer)
    more = {"failed": 99.0, "seconds": 10_090.0, "dead_calls": 50.0, "recovered": 203.0}
    assert said("retry.attempts", 3, 4, **more) == "attempts=4: 1 fewer failed run, for 90 s more in runs."
    backoff = {"initial": 2.0, "maximum": 30.0}
    assert said("retry.backoff", {}, backoff, **more).startswith("backoff from 2 s up to 30 s: ")
    assert said("circuit", None, {}, **more).startswith("a circuit: ")
    rule = {"attempts": 5}
    assert said("retry.by_category.timeout", None, rule, **more).startswith("5 attempts for timeout: ")
    same = {"failed": 100.0, "seconds": 10_000.0, "dead_calls": 50.0}
    assert (
        said("circuit.open_for", 30.0, 5.0, **same) == "open_for=5.0: a lower load when the service returns."
    )


def test_the_sentence_of_several_options_has_all_of_them() -> None:
    model = ServiceModel("s", 0.0, (), {}, {}, {}, {}, (), 0)
    before, after = figures(failed=100.0, seconds=9000.0), figures(failed=80.0, seconds=1800.0)
    changes = {"timeout": 3.3, "circuit.open_for": 45.0, "circuit.open_backoff": 1.0}
    assert sentence_of(changes, None, before, after, model, 0) == (
        "timeout=3.3, open_for=45 and open_backoff=1: 20 fewer failed runs, 2 hours less in runs."
    )


def test_durations_in_words() -> None:
    assert [lasting(seconds) for seconds in (1.23, 50, 2460, 18_000, 300_000)] == [
        "1.2 s",
        "50 s",
        "41 minutes",
        "5 hours",
        "3 days",
    ]


def test_the_error_of_a_replay() -> None:
    one = TuningFigures(hit=100.0, recovered=50.0, waited=10.0)
    fit = ReplayFit(task="ask", recorded=one, replayed=TuningFigures(hit=100.0, recovered=52.0, waited=9.0))
    assert fit.recovered_off == pytest.approx(2.0)
    assert fit.waited_off == pytest.approx(10.0)
    nothing = ReplayFit(task="ask", recorded=TuningFigures(), replayed=one)
    assert nothing.recovered_off is None
    assert nothing.waited_off is None


@pytest.mark.parametrize(
    ("hit", "recovered", "waited", "doubtful", "bad"),
    [
        (1000.0, 530.0, 100.0, False, False),
        (1000.0, 540.0, 100.0, True, False),
        (1000.0, 620.0, 100.0, True, True),
        (1000.0, 500.0, 120.0, True, False),
        (1000.0, 500.0, 160.0, True, True),
        (20.0, 14.0, 150.0, False, False),
        (20.0, 20.0, 100.0, True, False),
    ],
)
def test_an_error_is_large_if_luck_does_not_explain_it(
    hit: float, recovered: float, waited: float, doubtful: bool, bad: bool
) -> None:
    """Of 20 runs, 14 in place of 10 that recover is luck; of 1,000 runs, 540 in place of 500 is not."""
    fit = ReplayFit(
        task="ask",
        recorded=TuningFigures(hit=hit, recovered=hit / 2, waited=100.0),
        replayed=TuningFigures(hit=hit, recovered=recovered, waited=waited),
    )
    assert (fit.doubtful, fit.bad) == (doubtful, bad)
    assert bool(fit_doubts(fit)) == doubtful
    assert fit.model_dump()["recovered_off"] == fit.recovered_off


def test_the_fit_of_a_service_is_that_of_its_tasks_together() -> None:
    def fit(recovered: float, replayed: float) -> ReplayFit:
        recorded = TuningFigures(hit=100.0, recovered=recovered, waited=100.0)
        return ReplayFit(
            task="ask",
            recorded=recorded,
            replayed=TuningFigures(hit=100.0, recovered=replayed, waited=100.0),
        )

    lucky, unlucky = fit(20.0, 50.0), fit(80.0, 50.0)
    assert lucky.bad
    assert unlucky.bad
    assert not fit_together([lucky, unlucky]).bad
    assert fit_together([lucky, lucky]).bad


def test_a_bad_fit_gives_a_doubt_and_no_advice() -> None:
    """The runs of the record made two attempts, and the options say five: the replay waits far longer."""
    period, _ = live(World("bad", TrueService(stuck=0.3), {"retry": {"attempts": 2}}, runs=600), 1)
    others = period.tasks[0].model_copy(update={"options": {"retry": {"attempts": 5}}})
    period = period.model_copy(update={"tasks": (others,)})
    report = advise(period)
    assert [one.bad for one in report.fits] == [True]
    assert report.advice == ()
    assert [one.option for one in report.not_judged] == ["*"]
    assert "too far off" in report.not_judged[0].why
    compared = what_if(period, "ask", {"retry": {"attempts": 1}})
    assert "take this with care" in compared.doubts[0]
