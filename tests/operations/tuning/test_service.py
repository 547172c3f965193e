"""The model of a service, fitted to records whose truth is known."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_resilience.operations.tuning.calls import quantile, service_of, services_of
from prefect_resilience.operations.tuning.latencies import Latency, latency_of, mean_of_cut
from prefect_resilience.operations.tuning.loads import LoadLimit
from prefect_resilience.operations.tuning.service import RetryLuck, fitted
from tests.operations.tuning.planted import WORSE
from tests.operations.tuning.records import attempt, model_of, period_of, run, task_of
from tests.operations.tuning.worlds import (
    GOOD_RETRY,
    HOUR,
    TrueService,
    World,
    outages,
)


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
    assert limit.power == 2
    assert limit.per_second == pytest.approx(2.5, rel=0.15)
    assert limit.answers(1.0) == 1.0
    assert limit.answers(2 * limit.per_second) == 0.25


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


def test_a_retry_has_no_more_luck_than_a_first_call() -> None:
    """Chance fails one of 25 retries, too: a third attempt would help such runs, though none was recorded."""
    world = World("two attempts", TrueService(blip=0.04), {"retry": {"attempts": 2}}, runs=20_000)
    model = model_of(world)
    found = model.recovering["server_error"]
    assert found.luck <= 1 - model.usual
    assert found.after(2) > 0.5


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
