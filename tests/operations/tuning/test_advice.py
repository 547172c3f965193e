"""Advice: what is judged and what is not, the rule of the choice, what-if, and numpy."""

from dataclasses import replace
from typing import Any

import pytest

from prefect_resilience import ConfigurationError
from prefect_resilience.operations import tuning
from prefect_resilience.operations.tuning.advice import EVERYTHING_ELSE, advise, what_if
from prefect_resilience.operations.tuning.record import (
    RecordedPeriod,
    RecordedTask,
    policy_of,
    value_at,
    with_value,
)
from tests.operations.tuning.planted import HOPELESS, NEVER_HELP, TOO_LONG
from tests.operations.tuning.test_calls import run
from tests.operations.tuning.worlds import World, live


def period_of(*tasks: RecordedTask, until: float = 1e5) -> RecordedPeriod:
    return RecordedPeriod(0.0, until, tasks)


def reasons(period: RecordedPeriod) -> dict[str, str]:
    return {one.option: one.why for one in advise(period).not_judged}


def with_options(world: World, **changes: Any) -> RecordedPeriod:
    """The record of a world that the record says ran with other options."""
    period, _ = live(world, 1)
    (task,) = period.tasks
    return replace(period, tasks=(replace(task, options={**world.options, **changes}),))


def test_advice_has_its_evidence_and_a_report_is_json() -> None:
    period, _ = live(NEVER_HELP, 1)
    report = advise(period)
    assert report == advise(period)
    assert type(report).model_validate_json(report.model_dump_json()) == report
    (one,) = report.advice
    assert (one.task, one.option, one.now, one.better) == ("ask", "retry.attempts", 8, 2)
    assert one.why.startswith("attempts=2: further attempts recovered 0 of ")
    assert 0 < one.evidence["low"] < one.evidence["gain"] < one.evidence["high"]


def test_one_bad_day_is_no_reason_for_a_change() -> None:
    """All the calls that hang are on one day of seven: an interval over days has a week without it."""
    period, _ = live(TOO_LONG, 1)
    (task,) = period.tasks
    border = period.since + 86_400.0
    runs = tuple(one for one in task.runs if one.start < border or one.attempts[0].succeeded)
    assert advise(period).advice
    assert advise(replace(period, tasks=(replace(task, runs=runs),))).advice == ()


def test_what_cannot_be_judged_has_a_reason() -> None:
    few = period_of(RecordedTask("ask", (run(1.0, ""),), {"retry": {"attempts": 3}}))
    assert reasons(few) == {
        "timeout": "1 successes were seen; 200 are needed",
        "retry": "0 runs had a failed first attempt; 30 are needed",
        "circuit": "the task has none",
        EVERYTHING_ELSE.option: EVERYTHING_ELSE.why,
    }
    assert advise(RecordedPeriod(0, 1, ())).not_judged == ()
    unknown = period_of(RecordedTask("ask", (run(1.0, ""),)))
    assert "options with which it ran are not known" in reasons(unknown)["all options"]
    assert (
        "ends otherwise than the record"
        in reasons(with_options(TOO_LONG, retry={"attempts": 1}))["all options"]
    )
    near = reasons(with_options(HOPELESS, timeout=1.0, circuit={"name": "service"}))
    assert "what it cuts is not in the record" in near["timeout"]
    assert near["circuit"] == "0 outages ended in the record; 3 are needed"


def test_what_if_is_side_by_side() -> None:
    period, _ = live(TOO_LONG, 1)
    one = what_if(period, "ask", {"timeout": 3, "retry.attempts": 1})
    rows = {row.name: row for row in one.figures}
    assert rows["runs that failed"].then > rows["runs that failed"].now
    assert rows["runs that failed"].better is False
    assert rows["seconds in runs"].then < rows["seconds in runs"].now


def test_what_if_says_what_is_wrong() -> None:
    period, _ = live(HOPELESS, 1)
    with pytest.raises(ConfigurationError, match="task 'label' has no runs with known options"):
        what_if(period, "label", {})
    with pytest.raises(ConfigurationError, match="there is no option 'attempts'"):
        what_if(period, "ask", {"attempts": 3})
    with pytest.raises(ConfigurationError, match="timeout=-1 is not a time"):
        what_if(period, "ask", {"timeout": -1})


def test_options_are_changed_by_their_paths() -> None:
    options: dict[str, Any] = {"retry": {"attempts": 3, "backoff": {"kind": "linear", "initial": 2.0}}}
    assert with_value(options, "retry.attempts", 5)["retry"] == {**options["retry"], "attempts": 5}
    assert with_value(options, "retry.backoff", {"kind": "none"})["retry"]["backoff"] == {"kind": "none"}
    assert with_value({}, "circuit.open_for", 5.0) == {"circuit": {"open_for": 5.0}}
    assert value_at(options, "retry.backoff.initial") == 2.0
    assert value_at(options, "timeout.total") is None
    assert policy_of({"timeout": {"total": "30s"}}).timeout == 30.0
    assert policy_of({"timeout": None}).timeout is None


def test_without_numpy_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "has_numpy", lambda: False)
    with pytest.raises(ConfigurationError, match=r"needs numpy: pip install 'prefect-resilience\[tune\]'"):
        tuning.tune("7d")
