"""The replay: it repeats what happened, and comes close to what would have happened."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_resilience.guards.circuits.model import CircuitPolicy
from prefect_resilience.operations.tuning.advising import what_if
from prefect_resilience.operations.tuning.calls import chance_of, services_of
from prefect_resilience.operations.tuning.comparing import figures_of, recorded_figures
from prefect_resilience.operations.tuning.options import policy_of
from prefect_resilience.operations.tuning.replay_circuit import ReplayedCircuit
from prefect_resilience.operations.tuning.replaying import PeriodReplay, ReplaySums, load_at_return, mean_of
from prefect_resilience.operations.tuning.report import TuningFigures
from prefect_resilience.operations.tuning.scenario import Scenario, scenario_of
from prefect_resilience.operations.tuning.service import fitted
from tests.operations.tuning.worlds import (
    DAY,
    GOOD_RETRY,
    HOUR,
    TrueService,
    World,
    live,
    outages,
)

CIRCUIT = {"name": "service", "failure_threshold": 5, "open_for": 30.0}
SERVICE = TrueService(hang=0.002, blip=0.02, stuck=0.01, troubles=outages([3, 8, 13, 19], 600.0, "half-hang"))
GUARDED: dict[str, Any] = {"retry": GOOD_RETRY, "timeout": 5.0, "circuit": CIRCUIT}
PLAIN: dict[str, Any] = {"retry": {"attempts": 4}, "timeout": 10.0}


def prepared(world: World, **more: Any) -> tuple[Scenario, TuningFigures]:
    period, _ = live(world, 1)
    [record] = services_of(period)
    model = fitted(record, period.until)
    places = policy_of(world.options).places
    limits = {} if places is None else {0: places}
    scenario = scenario_of(record, model, period.since, period.until, places=limits, **more)
    return scenario, recorded_figures(record, model, 0)


def replay(scenario: Scenario, options: dict[str, Any], seed: int = 1, **more: Any) -> ReplaySums:
    return PeriodReplay(scenario, [policy_of(options)], seed, **more).run()


@pytest.mark.parametrize("options", [GUARDED, PLAIN], ids=["a circuit", "no circuit"])
def test_the_policy_that_ran_gives_what_happened(options: dict[str, Any]) -> None:
    scenario, recorded = prepared(World("same", SERVICE, options, runs=6000, seconds=DAY))
    figures = figures_of(scenario, replay(scenario, options), 0)
    assert figures.runs == recorded.runs == 6000
    assert figures.hit == pytest.approx(recorded.hit, rel=0.03)
    assert figures.recovered == pytest.approx(recorded.recovered, rel=0.03)
    assert figures.failed == pytest.approx(recorded.failed, rel=0.03)
    assert figures.seconds == pytest.approx(recorded.seconds, rel=0.03)
    assert figures.waited == pytest.approx(recorded.waited, rel=0.05)
    assert figures.dead_calls == pytest.approx(recorded.dead_calls, rel=0.05, abs=3)
    assert figures.p95 == pytest.approx(recorded.p95, rel=0.1)


def test_the_model_alone_comes_close() -> None:
    scenario, recorded = prepared(World("same", SERVICE, PLAIN, runs=6000, seconds=DAY), none_plain=True)
    figures = figures_of(scenario, mean_of([replay(scenario, PLAIN, n, blind=True) for n in range(5)]), 0)
    assert figures.share_recovered == pytest.approx(recorded.share_recovered, abs=0.03)
    assert figures.waited == pytest.approx(recorded.waited, rel=0.15)


@pytest.mark.parametrize(
    ("ran", "other"),
    [(GUARDED, PLAIN), (PLAIN, GUARDED), (PLAIN, {"retry": {"attempts": 2}, "timeout": 2.0})],
    ids=["without the circuit", "with a circuit", "fewer attempts"],
)
def test_another_policy_gives_what_would_have_happened(ran: dict[str, Any], other: dict[str, Any]) -> None:
    world = World("other", SERVICE, ran, runs=10_000, seconds=DAY)
    period, _ = live(world, 3)
    predicted = what_if(period, "ask", {"circuit": None, **other})
    _, truth = live(world, 3, other)
    assert predicted.then.share_recovered == pytest.approx(truth.share_recovered, abs=0.03)
    assert predicted.then.waited == pytest.approx(truth.waited, rel=0.15)
    assert predicted.then.seconds == pytest.approx(truth.seconds, rel=0.15)
    assert predicted.fit is not None
    assert predicted.fit.recovered_off is not None


def test_a_limit_makes_runs_wait_and_fail() -> None:
    options = {"retry": GOOD_RETRY, "limits": {"max_concurrent": 2, "max_wait": 5.0}}
    world = World("limit", TrueService(median=3.0), options, runs=4000, seconds=4 * HOUR)
    scenario, recorded = prepared(world, none_plain=True)
    figures = figures_of(scenario, replay(scenario, options), 0)
    assert figures.failed == pytest.approx(recorded.failed, rel=0.25, abs=5)
    assert figures.seconds == pytest.approx(recorded.seconds, rel=0.1)
    wide = figures_of(scenario, replay(scenario, {**options, "limits": {"max_concurrent": 50}}), 0)
    assert wide.failed == 0
    assert wide.seconds < figures.seconds


def test_runs_that_nothing_changes_are_passed_over() -> None:
    """Replaying each of them gives the same figures."""
    world = World("quiet", SERVICE, GUARDED, runs=6000, seconds=DAY)
    quick, _ = prepared(world, least_timeouts={0: 1.0})
    whole, _ = prepared(world, none_plain=True)
    assert quick.busy < 2000
    assert whole.busy == 6000
    mine, all_of_them = (figures_of(one, replay(one, GUARDED), 0) for one in (quick, whole))
    assert mine.model_dump() == pytest.approx(all_of_them.model_dump(), rel=0.02)


def test_a_part_of_the_period_stands_for_all_of_it() -> None:
    world = World("part", SERVICE, PLAIN, runs=12_000, seconds=DAY)
    whole, _ = prepared(world, least_timeouts={0: 1.0})
    part, _ = prepared(world, least_timeouts={0: 1.0}, most=400)
    assert len(part.runs) < 0.6 * len(whole.runs)
    mine, all_of_them = (figures_of(one, replay(one, PLAIN), 0) for one in (part, whole))
    assert mine.runs == pytest.approx(all_of_them.runs, rel=0.001)
    assert mine.failed == pytest.approx(all_of_them.failed, rel=0.15)
    assert mine.dead_calls == all_of_them.dead_calls


def test_the_same_seed_gives_the_same_replay() -> None:
    scenario, _ = prepared(World("seed", SERVICE, GUARDED, runs=3000, seconds=DAY))
    assert replay(scenario, PLAIN, 7).sums == replay(scenario, PLAIN, 7).sums
    assert replay(scenario, PLAIN, 7, blind=True).sums != replay(scenario, PLAIN, 8, blind=True).sums


def test_more_attempts_never_recover_fewer_runs_without_a_circuit() -> None:
    """Two policies meet the same outcomes, so that one difference between them is all that differs."""
    scenario, _ = prepared(World("more", SERVICE, PLAIN, runs=4000, seconds=DAY))
    failed = [
        figures_of(scenario, replay(scenario, {**PLAIN, "retry": {"attempts": attempts}}), 0).failed
        for attempts in (1, 2, 3, 4, 5, 6)
    ]
    assert failed == sorted(failed, reverse=True)


def test_retries_come_back_at_the_end_of_an_outage() -> None:
    service = TrueService(troubles=outages([2, 5, 8], 120.0))
    options = {"retry": {"attempts": 9, "backoff": {"kind": "constant", "initial": 20.0}}}
    scenario, _ = prepared(World("return", service, options, runs=20_000, seconds=10 * HOUR))
    load = load_at_return(scenario, replay(scenario, options))
    calm = load_at_return(scenario, replay(scenario, {"retry": {"attempts": 1}}))
    assert load is not None
    assert calm is not None
    assert load > 2 * calm


def test_a_probe_whose_failure_does_not_count_gives_its_lease_back() -> None:
    circuit = ReplayedCircuit(CircuitPolicy(failure_threshold=1, open_for=10.0))
    admitted = circuit.admit(0.0)
    assert admitted is not None
    circuit.failed(0.0, admitted, 1, True, None)
    assert circuit.admit(5.0) is None
    probe = circuit.admit(11.0)
    assert probe is not None
    assert probe[1] is not None
    assert circuit.admit(11.5) is None
    circuit.failed(12.0, probe, 1, False, None)
    assert circuit.admit(12.5) is not None


def test_the_call_that_fills_the_window_may_open_the_circuit() -> None:
    circuit = ReplayedCircuit(CircuitPolicy(failure_threshold=100, minimum_calls=10))
    for second in range(10):
        admitted = circuit.admit(float(second))
        assert admitted is not None
        if second < 5:
            circuit.failed(float(second), admitted, 1, True, None)
        else:
            circuit.succeeded(float(second), admitted, 1)
    assert circuit.admit(10.0) is None
    assert circuit.opened == 1


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=4))
def test_chances_are_in_their_interval_and_repeat(numbers: list[int]) -> None:
    assert 0 <= chance_of(*numbers) < 1
    assert chance_of(*numbers) == chance_of(*numbers)


def test_chances_are_even() -> None:
    drawn = [chance_of(1, place, 2) for place in range(10_000)]
    assert sum(drawn) / len(drawn) == pytest.approx(0.5, abs=0.01)
    assert sum(one < 0.1 for one in drawn) == pytest.approx(1000, rel=0.1)
