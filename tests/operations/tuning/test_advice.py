"""Advice and replay: what is judged, the rule of the choice, what-if; what ran is replayed as it ran."""

from dataclasses import replace
from typing import Any

import numpy as np
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
from prefect_resilience.operations.tuning.service_calls import ServiceCalls, calls_of
from prefect_resilience.operations.tuning.simulation import PeriodReplay
from tests.operations.tuning.planted import GUARDED, HOPELESS, NEVER_HELP, TOO_LONG
from tests.operations.tuning.test_calls import run
from tests.operations.tuning.worlds import BEGINS, TrueService, Truth, World, live, outages


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


COUNTED = ("runs", "hit", "recovered", "failed", "fallback", "seconds", "waited", "calls", "dead_calls")
HANGING = World(
    "hanging",
    TrueService(median=1.0, blip=0.01, troubles=outages([9, 30, 50, 70, 100, 130], 1500.0, "hang")),
    {
        "retry": {"attempts": 3, "backoff": {"kind": "exponential", "initial": 1.0}},
        "timeout": 20.0,
        "circuit": {"name": "service", "failure_threshold": 40, "minimum_calls": 10_000},
    },
)


known: dict[str, tuple[ServiceCalls, Truth]] = {}


def service_of(world: World) -> tuple[ServiceCalls, Truth]:
    """What a world's calls were, lived once for all tests."""
    if world.name not in known:
        period, truth = live(world, 1)
        known[world.name] = calls_of(list(period.tasks), period.until), truth
    return known[world.name]


def figures(
    service: ServiceCalls, options: Any, number: int = 2, until: float = BEGINS + 7e5
) -> dict[str, float]:
    """The mean of some replays."""
    sums = [
        PeriodReplay(service, [policy_of(options)], np.array([0.0, until]), seed, (seed + 0.5) / number).run()
        for seed in range(number)
    ]
    return dict(zip(COUNTED, np.mean(sums, axis=0).sum(axis=(0, 1)).tolist(), strict=True))


@pytest.mark.parametrize("world", [TOO_LONG, NEVER_HELP, HOPELESS, HANGING], ids=lambda world: world.name)
def test_what_ran_is_replayed_as_it_was(world: World) -> None:
    service, truth = service_of(world)
    for name, value in figures(service, world.options).items():
        assert value == pytest.approx(getattr(truth, name), rel=0.03, abs=3.0), name


@pytest.mark.parametrize(
    ("world", "option", "value"),
    [
        (TOO_LONG, "timeout", 3.0),
        (NEVER_HELP, "retry.attempts", 2),
        (HOPELESS, "retry.attempts", 1),
        (HANGING, "circuit.failure_threshold", 5),
        (HANGING, "retry.attempts", 1),
        (HANGING, "timeout", 8.0),
        (replace(GUARDED, runs=5_000), "circuit.open_for", 120.0),
    ],
    ids=lambda value: value.name if isinstance(value, World) else str(value),
)
def test_other_numbers_do_what_they_really_do(world: World, option: str, value: Any) -> None:
    options = with_value(world.options, option, value)
    replayed = figures(service_of(world)[0], options)
    _, truth = live(world, 1, options)
    for name in COUNTED:
        assert replayed[name] == pytest.approx(getattr(truth, name), rel=0.1, abs=20.0), name


def quiet(*runs: Any) -> ServiceCalls:
    return calls_of([RecordedTask("ask", tuple(runs))], 1e5)


ALWAYS = {"retry": {"attempts": 2, "backoff": {"kind": "constant", "initial": 1.0}}, "timeout": 5.0}


def test_a_slow_success_is_as_slow_when_a_shorter_timeout_repeats_it() -> None:
    runs = [run(100.0 * number, "", seconds=4.0 if number % 10 == 0 else 0.1) for number in range(300)]
    short = figures(quiet(*runs), with_value(ALWAYS, "timeout", 2.0), until=1e5)
    assert (short["failed"], short["calls"]) == (30, 330)
    assert short["seconds"] == pytest.approx(27.0 + 30 * 5.0, rel=0.1)
