"""Policies that are tried on a service: several options at once, and what counts as harm."""

from __future__ import annotations

from array import array

import pytest

from prefect_resilience.guards.circuits.model import CircuitPolicy
from prefect_resilience.operations.tuning.calls import services_of
from prefect_resilience.operations.tuning.candidates import OPENINGS, OptionToTry, options_to_try
from prefect_resilience.operations.tuning.choosing import choose
from prefect_resilience.operations.tuning.comparing import harm
from prefect_resilience.operations.tuning.losses import PRICES
from prefect_resilience.operations.tuning.options import policy_of
from prefect_resilience.operations.tuning.plain_runs import DEAD, FAILED, HIT
from prefect_resilience.operations.tuning.replaying import ReplaySums
from prefect_resilience.operations.tuning.trials import ServiceTrials, trials_of
from tests.operations.tuning.worlds import HOUR, TrueService, World, live, outages

FLAPPING = World(
    "flapping",
    TrueService(blip=0.005, troubles=outages([0.3, 0.9, 1.5, 2.1, 2.6], 400.0)),
    {"retry": {"attempts": 3}, "timeout": 5.0, "circuit": {"name": "service"}},
    runs=600,
    seconds=3 * HOUR,
)


@pytest.fixture(scope="module")
def trials() -> ServiceTrials:
    period, _ = live(FLAPPING, 1)
    [record] = services_of(period)
    return trials_of(record, period, PRICES[None], seed=0, most=2000)


def sums_of(hit: float, failed: float, dead: float) -> ReplaySums:
    block = [0.0] * 9
    block[HIT], block[FAILED], block[DEAD] = hit, failed, dead
    return ReplaySums(sums=[[block]], returned=[], durations=[array("d")], called=array("l"))


def test_harm_is_the_worse_of_failed_runs_and_failed_calls() -> None:
    now = sums_of(200.0, 100.0, 50.0)
    assert harm(now, sums_of(200.0, 110.0, 50.0)) == pytest.approx(0.05)
    assert harm(now, sums_of(200.0, 90.0, 60.0)) == pytest.approx(0.2)
    assert harm(now, sums_of(200.0, 90.0, 40.0)) < 0


def test_a_few_more_calls_where_hardly_any_fail_are_little_harm() -> None:
    assert harm(sums_of(200.0, 100.0, 0.0), sums_of(200.0, 100.0, 1.0)) == pytest.approx(0.05)


def test_the_lengths_of_openings_are_tried_together(trials: ServiceTrials) -> None:
    [policy] = trials.policies(trials.options)
    judged = options_to_try(trials.record, trials.model, 0, trials.options[0], policy)
    [openings] = [one for one in judged.to_try if one.option == OPENINGS]
    assert openings.paths == {"circuit.open_for", "circuit.open_backoff", "circuit.open_max"}
    assert all(place in openings.changes(0).keys() | openings.paths for place in openings.changes(0))
    joint = openings.with_timeout(2.0)
    assert joint.changes(0) == {"timeout": 2.0, **openings.changes(0)}
    [changed] = trials.with_option(0, joint.changes(len(joint.values) - 1))
    then = policy_of(changed)
    assert then.timeout == 2.0
    assert then.circuit is not None
    assert then.circuit.open_backoff == 1.0
    assert then.circuit.open_for != CircuitPolicy().open_for
    assert changed["circuit"]["name"] == "service"


def test_an_option_alone_changes_itself() -> None:
    option = OptionToTry("retry.attempts", 3, (2, 4))
    assert option.changes(1) == {"retry.attempts": 4}
    assert option.paths == {"retry.attempts"}


def test_outages_behind_a_circuit_are_drawn_anew_in_each_replay(trials: ServiceTrials) -> None:
    assert trials.redrawn
    assert trials.few < trials.sure
    one, other = (trials.replay(trials.options, number) for number in (1, 2))
    assert one.sums != other.sums
    assert trials.replay(trials.options) is trials.replay(trials.options)


def test_the_limit_of_harm_is_that_of_the_recorded_options(trials: ServiceTrials) -> None:
    assert trials.is_allowed(trials.options)
    rarely = trials.with_option(0, {"circuit.open_for": 600.0})
    assert trials.harm(rarely) > 0
    assert not trials.is_allowed(rarely)
    # What a change has made worse is not the measure of the next one.
    kept, trials.options = trials.options, rarely
    assert not trials.is_allowed(rarely)
    trials.options = kept


def test_two_events_in_a_short_period_bear_each_other_out() -> None:
    gains = [0.0] * 10
    gains[1], gains[6], gains[5] = 2500.0, 3400.0, 600.0
    assert choose([gains], 1800.0, 0.2, 0) is not None


def test_of_values_that_gain_nearly_all_the_nearest_is_chosen() -> None:
    far, near = [100.0] * 10, [92.0] * 10
    choice = choose([near, far], 10.0, 7.0, 0)
    assert choice is not None
    assert choice.place == 1
    choice = choose([near, far], 10.0, 7.0, 0, nearly=0.9)
    assert choice is not None
    assert choice.place == 0
