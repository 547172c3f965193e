"""Crashes, failures and recoveries of flow runs, counted from the states that they went through."""

from datetime import UTC, datetime, timedelta

import pytest

from prefect_resilience.operations.reports.api import Period
from prefect_resilience.operations.reports.figures import FlowFigures
from prefect_resilience.operations.reports.runs import BadEnd, StateAt, bad_ends_of, seconds_of, with_bad_ends

SINCE = datetime(2026, 11, 20, tzinfo=UTC)
UNTIL = SINCE + timedelta(days=1)
PERIOD = Period(SINCE, UNTIL)


def at(minutes: float) -> datetime:
    return SINCE + timedelta(minutes=minutes)


def ends(*states: tuple[float, str]) -> list[BadEnd]:
    return bad_ends_of([StateAt(at(minutes), kind) for minutes, kind in states], UNTIL)


TWICE = ends(
    (1, "RUNNING"), (10, "FAILED"), (11, "SCHEDULED"), (12, "RUNNING"), (13, "CRASHED"), (20, "COMPLETED")
)
YESTERDAY = ends((-90, "RUNNING"), (-60, "CRASHED"), (30, "SCHEDULED"), (31, "COMPLETED"))


def test_a_run_that_crashed_and_was_recovered():
    (end,) = ends(
        (1, "RUNNING"),
        (10, "CRASHED"),
        (14, "SCHEDULED"),
        (14.2, "PENDING"),
        (14.3, "RUNNING"),
        (14.5, "COMPLETED"),
    )
    assert end == ("CRASHED", at(10), at(14), at(14.5))
    assert seconds_of(end, PERIOD) == 240


def test_a_crash_that_is_reported_twice_is_one():
    directly = [(1.0, "RUNNING"), (10.0, "CRASHED"), (12.0, "CRASHED")]
    over_a_state = [(1.0, "RUNNING"), (10.0, "CRASHED"), (10.1, "SCHEDULED"), (10.4, "CRASHED")]
    for written in (directly, over_a_state):
        (end,) = ends(*written)
        assert end.at == at(10)
    failed_and_then_reported = ends((1, "RUNNING"), (10, "FAILED"), (10.2, "CRASHED"))
    assert [end.kind for end in failed_and_then_reported] == ["FAILED"]


def test_a_second_crash_is_another_one():
    after_a_start = ends(
        (1, "RUNNING"), (10, "CRASHED"), (10.1, "SCHEDULED"), (10.2, "RUNNING"), (10.3, "CRASHED")
    )
    assert [end.at for end in after_a_start] == [at(10), at(10.3)]
    # Its process never came up again, long after the first crash.
    before_a_start = ends((1, "RUNNING"), (10, "CRASHED"), (20, "SCHEDULED"), (21, "CRASHED"))
    assert [end.at for end in before_a_start] == [at(10), at(21)]
    assert [end.kind for end in ends((1, "PENDING"), (2, "CRASHED"))] == ["CRASHED"]


def test_only_the_last_bad_end_is_followed_by_the_completion():
    first, second = TWICE
    assert (first.again_at, first.completed_at) == (at(11), None)
    assert (second.again_at, second.completed_at) == (at(20), at(20))


@pytest.mark.requirement("004.20")
def test_what_nobody_began_again_stands_until_the_end():
    (end,) = ends((1, "RUNNING"), (10, "FAILED"))
    assert (end.again_at, seconds_of(end, PERIOD)) == (None, (UNTIL - at(10)).total_seconds())
    assert ends((1, "RUNNING"), (10, "COMPLETED")) == []
    assert ends((24 * 60 + 1, "CRASHED")) == []


def test_only_the_part_in_the_period_counts():
    (end,) = YESTERDAY
    assert seconds_of(end, PERIOD) == 30 * 60
    (over,) = ends((-90, "RUNNING"), (-60, "CRASHED"), (-30, "SCHEDULED"), (-29, "COMPLETED"))
    assert seconds_of(over, PERIOD) == 0
    assert with_bad_ends(FlowFigures(), [[over]], PERIOD).recovered == 0


@pytest.mark.requirement("004.20")
def test_figures():
    recovered = ends((1, "RUNNING"), (10, "CRASHED"), (14, "SCHEDULED"), (15, "COMPLETED"))
    lost = ends((1, "RUNNING"), (UNTIL.timestamp() // 60 - SINCE.timestamp() // 60 - 1, "CRASHED"))
    made = with_bad_ends(FlowFigures(runs=4), [recovered, TWICE, YESTERDAY, lost, []], PERIOD)
    assert (made.runs, made.crashes, made.failures, made.recovered) == (4, 3, 1, 3)
    assert made.seconds_in_error == 60 * (4 + 1 + 7 + 30 + 1)
    assert made.recovery_time == 10 * 60
    nothing = with_bad_ends(FlowFigures(), [], PERIOD)
    assert (nothing.crashes, nothing.recovered, nothing.recovery_time) == (0, 0, None)
