"""Figures of replays side by side, and between which bounds they are."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_resilience.operations.tuning.calls import services_of
from prefect_resilience.operations.tuning.comparing import likely, recorded_figures
from prefect_resilience.operations.tuning.plain_runs import HIT, RECOVERED, WAITED
from prefect_resilience.operations.tuning.replaying import ReplaySums
from prefect_resilience.operations.tuning.scenario import scenario_of
from prefect_resilience.operations.tuning.sentences import likely_text
from prefect_resilience.operations.tuning.service import fitted
from tests.operations.tuning.worlds import DAY, GOOD_RETRY, TrueService, World, live, outages


def replayed(hit: float, recovered: float, waited: float) -> ReplaySums:
    block = [0.0] * 9
    block[HIT], block[RECOVERED], block[WAITED] = hit, recovered, waited
    return ReplaySums(sums=[[block]], returned=[], durations=[array("d")], called=array("l"))


def test_bounds_are_those_of_students_t() -> None:
    """Of 13 values with mean 10 and standard deviation 1: 1.78 * sqrt(1 + 1/13) on each side."""
    waits = [10 + one for one in (-1, 1) * 6] + [10]
    found = likely([replayed(100, 50, waited) for waited in waits], 0)
    assert found["share_recovered"] == (0.5, 0.5)
    low, high = found["waited"]
    assert (low + high) / 2 == pytest.approx(10)
    assert (high - low) / 2 == pytest.approx(1.782 * (1 + 1 / 13) ** 0.5, rel=0.01)


@given(st.lists(st.tuples(st.integers(1, 50), st.floats(0, 1)), min_size=2, max_size=13))
def test_bounds_are_shares_and_hold_the_mean(runs: list[tuple[int, float]]) -> None:
    found = likely([replayed(hit, hit * share, 0.0) for hit, share in runs], 0)
    low, high = found["share_recovered"]
    assert 0 <= low <= sum(share for _, share in runs) / len(runs) + 1e-9
    assert sum(share for _, share in runs) / len(runs) - 1e-9 <= high <= 1


def test_one_replay_has_no_bounds_and_no_failure_has_no_share() -> None:
    assert likely([replayed(10, 5, 3.0)], 0) == {}
    assert likely([replayed(0, 0, 0.0)] * 3, 0).keys() == {"waited"}


def test_bounds_are_told_in_a_sentence() -> None:
    told = likely_text({"share_recovered": (0.704, 0.781), "waited": (100.0, 7300.0)})
    assert told is not None
    assert told.startswith("with these options 70 to 78 % of the runs that had a failed attempt recover")
    assert "after 100 s to 2 hours of waiting, in nine of ten replays" in told
    assert likely_text({"waited": (1.0, 2.0)}) is None


def test_the_recorded_figures_of_the_runs_that_are_replayed() -> None:
    """Of a part of the period they are estimates, so that a replay of the same part is compared with them."""
    options = {"retry": GOOD_RETRY, "timeout": 5.0}
    service = TrueService(blip=0.02, troubles=outages([5, 12], 600.0))
    period, _ = live(World("part", service, options, runs=8000, seconds=DAY), 1)
    [record] = services_of(period)
    model = fitted(record, period.until)
    whole = scenario_of(record, model, period.since, period.until, none_plain=True)
    part = scenario_of(record, model, period.since, period.until, none_plain=True, most=1500)
    recorded = recorded_figures(record, model, 0)
    assert recorded_figures(record, model, 0, whole) == recorded
    of_part = recorded_figures(record, model, 0, part)
    hit = sum(run.weight for run in part.runs if not record.runs[run.place][1].attempts[0].succeeded)
    assert of_part.hit == pytest.approx(hit) != recorded.hit
    assert of_part.runs == pytest.approx(recorded.runs, rel=0.01)
