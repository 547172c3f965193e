"""The model of a service, fitted to records whose truth is known."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_resilience.operations.tuning.calls import quantile, service_of, services_of
from prefect_resilience.operations.tuning.latencies import Latency, latency_of, mean_of_cut
from prefect_resilience.operations.tuning.loads import LoadLimit
from prefect_resilience.operations.tuning.outages import ServiceOutage, outages_of
from prefect_resilience.operations.tuning.record import (
    RecordedAttempt,
    RecordedPeriod,
    RecordedRun,
    RecordedTask,
)
from prefect_resilience.operations.tuning.service import RetryLuck, ServiceModel, fitted
from tests.operations.tuning.planted import WORSE
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


def model_of(world: World, seed: int = 1) -> ServiceModel:
    period, _ = live(world, seed)
    [record] = services_of(period)
    return fitted(record, period.until)


def attempt(
    start: float,
    category: str | None = None,
    rejected_by: Literal["circuit", "limit"] | None = None,
    seconds: float = 0.1,
    circuit: str | None = None,
) -> RecordedAttempt:
    return RecordedAttempt(
        start=start,
        seconds=seconds,
        succeeded=category is None,
        category=category,
        rejected_by=rejected_by,
        circuit=circuit,
    )


def run(number: int, *attempts: RecordedAttempt, ended: Any = None) -> RecordedRun:
    last = attempts[-1]
    return RecordedRun(
        run_id=str(number),
        start=attempts[0].start,
        end=last.start + last.seconds,
        ended=ended or ("succeeded" if last.succeeded else "failed"),
        attempts=attempts,
    )


def period_of(*tasks: RecordedTask, until: float = 10_000.0) -> RecordedPeriod:
    return RecordedPeriod(since=0.0, until=until, tasks=tasks)


def task_of(name: str, runs: Sequence[RecordedRun], **more: Any) -> RecordedTask:
    return RecordedTask(name=name, runs=tuple(runs), options=more.pop("options", {"timeout": 5.0}), **more)


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
    runs = [run(number, one) for number, one in enumerate(attempts)]
    [record] = services_of(period_of(task_of("ask", runs)))
    [found] = outages_of(record.calls, 2000.0)
    return found


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


def test_tasks_behind_one_circuit_share_their_service() -> None:
    one = task_of("one", [run(1, attempt(1.0, circuit="llm"))])
    two = task_of("two", [run(2, attempt(2.0, "timeout", circuit="llm", seconds=5.0))])
    alone = task_of("alone", [run(3, attempt(3.0))], circuit="own:{name}")
    records = services_of(period_of(one, two, alone, task_of("empty", [])))
    assert [record.name for record in records] == ["llm", "own:{name}"]
    assert [call.task for call in records[0].calls] == [0, 1]
    assert records[0].calls[1].cut
    assert not records[0].calls[0].cut
    assert service_of(task_of("plain", [run(4, attempt(1.0))])) == "plain"


def test_what_the_timeout_cut_is_no_latency() -> None:
    """The truth: p99 of 2.26 s. The timeout of 1.5 s cuts 5 % of the calls, and all of these would have
    succeeded."""
    world = World(
        "cut", TrueService(median=1.0, sigma=0.35), {"retry": GOOD_RETRY, "timeout": 1.5}, runs=8000
    )
    latency = model_of(world).latency[0]
    assert latency.cut == pytest.approx(0.12, abs=0.03)
    assert latency.slow == pytest.approx(latency.cut, rel=0.35)
    assert latency.at(0.5) == pytest.approx(1.0, rel=0.05)
    assert latency.at(0.999) is None
    assert latency.draw(0.97) > 1.5


def test_calls_that_hang_are_not_slow() -> None:
    world = World("hang", TrueService(hang=0.02), {"retry": GOOD_RETRY, "timeout": 10.0}, runs=8000)
    latency = model_of(world).latency[0]
    assert latency.cut == pytest.approx(0.02, abs=0.005)
    assert latency.slow < 0.001
    assert latency.draw(0.999) == math.inf


def test_waiting_for_a_place_is_no_latency() -> None:
    options = {"retry": GOOD_RETRY, "limits": {"max_concurrent": 1, "max_wait": 60.0}}
    world = World("line", TrueService(median=3.0, sigma=0.1), options, runs=4000, seconds=8 * HOUR)
    assert model_of(world).latency[0].at(0.9) == pytest.approx(3.0 * math.exp(0.128), rel=0.1)


def test_a_limit_of_load_is_found() -> None:
    limit = model_of(WORSE).limit
    assert limit is not None
    assert limit.everywhere
    assert limit.power == 2
    assert limit.per_second == pytest.approx(2.5, rel=0.15)
    assert limit.answers(1.0) == 1.0
    assert limit.answers(2 * limit.per_second) == 0.25


def test_a_quota_is_found_in_its_hours() -> None:
    troubles = tuple(
        Trouble(hour * HOUR, (hour + 1) * HOUR, "limit", per_second=0.1, retry_after=10.0) for hour in (3, 9)
    )
    model = model_of(World("quota", TrueService(troubles=troubles), {"retry": GOOD_RETRY}, 10_000, 12 * HOUR))
    assert model.limit is not None
    assert not model.limit.everywhere
    assert model.retry_after["rate_limit"] == 10.0


def test_load_explains_nothing_where_a_service_is_dead() -> None:
    service = TrueService(troubles=outages([1, 3, 5, 7], 900.0))
    world = World("dead", service, {"retry": {"attempts": 6}}, runs=10_000, seconds=10 * HOUR)
    assert model_of(world).limit is None


def test_an_empty_record_has_an_empty_model() -> None:
    [record] = services_of(period_of(task_of("label", [run(1, attempt(1.0, "circuit_open", "circuit"))])))
    model = fitted(record, 100.0)
    assert model.outages == ()
    assert model.usual == 0.0
    assert model.latency[0] == Latency(())


def test_recovering_needs_more_than_one_retry_to_promise_more() -> None:
    assert RetryLuck(1.0, 0.5, 1, 1).after(1) == 0.0
    assert RetryLuck(0.0, 1.0, 1, 1).after(2) == 0.0
    assert RetryLuck(0.5, 0.5, 1, 1).after(1) == 0.25
    model = model_of(World("one retry", TrueService(stuck=0.03, blip=0.01), {"retry": {"attempts": 2}}))
    assert model.recovering["server_error"].luck > 0.8


@given(
    st.lists(st.floats(0.01, 10), min_size=1, max_size=200),
    st.integers(0, 50),
    st.lists(st.floats(0, 0.999), min_size=2),
)
def test_a_higher_chance_draws_a_longer_latency(seconds: list[float], cut: int, chances: list[float]) -> None:
    latency = latency_of(seconds, cut, 10.0 if cut else None)
    drawn = [latency.draw(chance) for chance in sorted(chances)]
    assert all(earlier <= later + 1e-9 for earlier, later in itertools.pairwise(drawn))
    assert 0 <= latency.slow <= latency.cut + 1e-12


@given(st.floats(0.05, 5), st.floats(0.5, 50))
def test_the_mean_of_a_cut_exponential_is_found(mean: float, room: float) -> None:
    seen = mean - room / math.expm1(min(700.0, room / mean))
    if seen < 0.4 * room:
        assert mean_of_cut(seen, room) == pytest.approx(mean, rel=0.02)


def test_quantiles_lie_on_a_line_between_two_values() -> None:
    assert quantile([1.0, 3.0], 0.5) == 2.0
    assert quantile([1.0, 3.0], 1.0) == 3.0
    assert LoadLimit(1.0, 1, 1.0).answers(4.0) == 0.25
