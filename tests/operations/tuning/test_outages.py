"""Outages are found where they were, and nowhere else; and where an end that no call saw may lie."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_resilience.operations.tuning.calls import services_of
from prefect_resilience.operations.tuning.lengths import LEAST_OUTAGES, OutageLengths, lengths_of
from prefect_resilience.operations.tuning.outages import ServiceOutage, outages_of
from prefect_resilience.operations.tuning.record import RecordedAttempt
from prefect_resilience.operations.tuning.scenario import scenario_of
from prefect_resilience.operations.tuning.service import fitted
from tests.operations.tuning.records import attempt, model_of, period_of, run, task_of
from tests.operations.tuning.worlds import (
    BEGINS,
    DAY,
    GOOD_RETRY,
    HOUR,
    Trouble,
    TrueService,
    World,
    live,
    outages,
)

CIRCUIT: dict[str, Any] = {"name": "service", "failure_threshold": 4, "open_for": 10.0}


def test_outages_are_found_at_their_times() -> None:
    service = TrueService(blip=0.01, stuck=0.005, troubles=outages([5, 30, 80, 120], 900.0))
    model = model_of(World("found", service, {"retry": GOOD_RETRY, "timeout": 5.0}, runs=20_000))
    assert [round((one.start - BEGINS) / HOUR, 1) for one in model.outages] == [5, 30, 80, 120]
    for one, true in zip(model.outages, service.troubles, strict=True):
        assert one.length == pytest.approx(true.ends - true.begins, abs=60)
        assert one.rate == 1.0
        assert not one.censored
    assert model.usual == pytest.approx(0.015, abs=0.004)
    assert model.recovering["server_error"].stuck == pytest.approx(1 / 3, abs=0.1)


def test_a_partial_outage_has_its_rate() -> None:
    trouble = Trouble(10 * HOUR, 11 * HOUR, "503", share=0.4)
    world = World(
        "partial", TrueService(troubles=(trouble,)), {"retry": GOOD_RETRY}, runs=10_000, seconds=DAY
    )
    [one] = model_of(world).outages
    assert one.rate == pytest.approx(0.4, abs=0.06)
    assert one.categories[0][0] == "unavailable"


def outage_of(attempts: Sequence[RecordedAttempt]) -> ServiceOutage:
    """The one outage among attempts, each the only one of its run."""
    [found] = outages_among(attempts)
    return found


def outages_among(attempts: Sequence[RecordedAttempt]) -> list[ServiceOutage]:
    """The outages among attempts, each the only one of its run."""
    runs = [run(number, one) for number, one in enumerate(attempts)]
    [record] = services_of(period_of(task_of("ask", runs)))
    return outages_of(record.calls, attempts[-1].start + 100)


def test_chance_failures_are_no_outage() -> None:
    world = World("chance", TrueService(blip=0.05, stuck=0.02), {"retry": {"attempts": 6}}, runs=8000)
    assert all(model_of(world, seed).outages == () for seed in range(2))


def test_an_outage_behind_an_open_circuit_is_bounded_by_what_was_seen() -> None:
    """Rejected calls are no failures of the service: between the probes nothing is known."""
    options = {"retry": GOOD_RETRY, "circuit": {"name": "service", "open_for": 120.0}}
    trouble = Trouble(10 * HOUR, 10 * HOUR + 400, "503")
    world = World("hidden", TrueService(troubles=(trouble,)), options, runs=20_000, seconds=DAY)
    period, _ = live(world, 1)
    [record] = services_of(period)
    model = fitted(record, period.until)
    [one] = model.outages
    assert one.end_low - BEGINS <= trouble.ends <= one.end_high - BEGINS
    assert one.unseen > 50
    assert record.rejected > one.seen
    assert "rejected calls" in model.unknown
    assert "end of outages" in model.unknown


def test_the_failures_that_bound_an_outage_do_not_count_in_its_rate() -> None:
    """Half of the calls between them failed. With both of them in it the rate would be 0.55."""
    inside = [attempt(float(at), "unavailable" if at % 2 else None) for at in range(100, 120)]
    calm = [[attempt(at / 10) for at in range(0, 999)], [attempt(200 + at / 10) for at in range(999)]]
    bounds = [attempt(99.95, "unavailable"), attempt(120.0, "unavailable")]
    assert outage_of([*calm[0], bounds[0], *inside, bounds[1], *calm[1]]).rate == pytest.approx(0.5, abs=0.02)


def test_an_outage_that_goes_on_is_censored() -> None:
    trouble = Trouble(20 * HOUR, 30 * HOUR, "503")
    world = World("on", TrueService(troubles=(trouble,)), {"retry": GOOD_RETRY}, runs=5000, seconds=DAY)
    model = model_of(world)
    assert model.outages[-1].censored
    assert "last outage" in model.unknown


# -- what is hard to tell apart


def test_a_chance_failure_after_an_unseen_end_does_not_prolong_an_outage() -> None:
    """The circuit was open from 130 to 700. Then a call succeeds, and one of the next fails by chance."""
    calm = [attempt(float(at), "unavailable" if at % 20 == 10 else None) for at in range(100)]
    failed = [attempt(100.0 + at, "unavailable") for at in range(30)]
    after = [attempt(700.0), attempt(705.0), attempt(710.0, "unavailable")]
    later = [attempt(720.0 + at) for at in range(200)]
    one = outage_of([*calm, *failed, *after, *later])
    assert (one.start_high, one.end_low, one.end_high) == (100.0, 129.0, 700.0)
    assert one.rate == 1.0


def test_a_failure_of_another_kind_is_no_probe_of_the_outage() -> None:
    """Of the calls in outages none fails with `server_error`, but many do so at other times, as the first
    probe after the last outage does."""
    chance = Random(1)
    attempts: list[RecordedAttempt] = []
    for hour in range(6):
        begins = hour * 3600.0
        calm = [begins + at * 10 for at in range(300)]
        attempts += [attempt(at, "server_error" if chance.random() < 0.05 else None) for at in calm]
        attempts += [attempt(begins + 3000 + at * 4, "unavailable") for at in range(10)]
        attempts += [attempt(begins + 3300, "server_error" if hour == 5 else None), attempt(begins + 3590)]
    found = outages_among(attempts)
    assert [round(one.end_low) for one in found] == [hour * 3600 + 3036 for hour in range(6)]


def test_a_partial_outage_beside_dead_ones_is_found_whole() -> None:
    troubles = (
        *(Trouble(hour * HOUR, hour * HOUR + 400, "503") for hour in (3, 6, 9)),
        Trouble(15 * HOUR, 15 * HOUR + 700, "503", share=0.6),
    )
    options = {"retry": {"attempts": 5, "backoff": {"kind": "exponential", "initial": 0.5}}, "timeout": 5.0}
    world = World("both", TrueService(blip=0.03, troubles=troubles), options, runs=10_000, seconds=DAY)
    model = model_of(world)
    assert len(model.outages) == 4
    assert model.limit is None, "retries raise the load in an outage: that is no limit"
    partial = model.outages[-1]
    assert partial.start - BEGINS == pytest.approx(15 * HOUR, abs=60)
    assert partial.length == pytest.approx(700, abs=90)
    assert partial.rate == pytest.approx(0.6, abs=0.1)


def test_an_outage_of_which_a_circuit_lets_little_through_is_found() -> None:
    troubles = (Trouble(3 * HOUR, 3 * HOUR + 466, "503"), Trouble(20 * HOUR, 20 * HOUR + 170, "half-hang"))
    service = TrueService(blip=0.027, stuck=0.02, hang=0.003, troubles=troubles)
    options = {"retry": {"attempts": 5}, "timeout": 10.0, "circuit": CIRCUIT}
    for seed in range(3):
        world = World("behind", service, options, runs=10_000, seconds=DAY)
        found = model_of(world, seed).outages
        assert [round((one.start - BEGINS) / HOUR) for one in found] == [3, 20]
        assert found[0].seen < 15


# -- ends that no call saw


def weibull(chance: Random, shape: float, scale: float) -> float:
    return scale * (-math.log(1 - chance.random())) ** (1 / shape)


@pytest.mark.parametrize("shape", [0.8, 2.0])
def test_lengths_between_bounds_give_their_distribution(shape: float) -> None:
    """As behind a circuit whose openings double: a length is known to a factor of two."""
    chance = Random(3)
    lengths = [weibull(chance, shape, 400.0) for _ in range(300)]
    bounds = [(low := 10 * 2 ** math.floor(math.log2(one / 10)), 2.0 * low) for one in lengths]
    found = lengths_of(bounds)
    assert found is not None
    assert found.shape == pytest.approx(shape, rel=0.2)
    assert found.scale == pytest.approx(400, rel=0.2)


def test_few_outages_say_nothing_of_lengths() -> None:
    assert lengths_of([(10.0, 20.0)] * (LEAST_OUTAGES - 1)) is None
    assert lengths_of([(10.0, 20.0)] * LEAST_OUTAGES) is not None
    assert lengths_of([(10.0, math.inf)] * LEAST_OUTAGES) is not None


@given(
    st.floats(0.5, 5),
    st.floats(1, 5000),
    st.floats(0, 5000),
    st.floats(0, 5000),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_a_length_lies_within_its_bounds(
    shape: float, scale: float, low: float, more: float, one: float, other: float
) -> None:
    lengths = OutageLengths(shape, scale)
    first, second = sorted((one, other))
    drawn = [lengths.within(low, low + more, chance) for chance in (first, second)]
    assert all(low <= length <= low + more for length in drawn)
    assert drawn[0] <= drawn[1] + 1e-6


def test_most_lengths_are_short_in_a_gap_that_few_outages_outlast() -> None:
    assert OutageLengths(2.0, 400.0).within(400, 1200, 0.5) < 600
    assert OutageLengths(2.0, 400.0).within(400, 420, 0.5) == pytest.approx(410, abs=1)


def test_each_replay_has_ends_of_its_own() -> None:
    """The first has the middle ones; of each two after it one is as early as the other is late."""
    options = {"retry": GOOD_RETRY, "timeout": 5.0, "circuit": {"name": "service", "open_for": 60.0}}
    world = World("ends", TrueService(troubles=outages([4, 9, 15], 400.0)), options, runs=5000, seconds=DAY)
    period, _ = live(world, 1)
    [record] = services_of(period)
    model = fitted(record, period.until)
    scenario = scenario_of(record, model, period.since, period.until)
    assert scenario.with_ends(5, 0) is scenario
    drawn = [scenario.with_ends(5, number) for number in range(1, 5)]
    assert drawn[0].borders != drawn[2].borders != scenario.borders
    for place, one in enumerate(model.outages):
        ends = [each.borders[2 * place + 1] for each in drawn]
        assert all(one.end_low <= end <= one.end_high for end in ends)
        assert ends[0] + ends[1] == pytest.approx(2 * one.end) == pytest.approx(ends[2] + ends[3])
        assert [each.borders[2 * place] for each in drawn] == [scenario.borders[2 * place]] * 4
    assert sum(drawn[0].returned()) != pytest.approx(0)
