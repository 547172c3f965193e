"""Outages are found where they are, and not where failures are chance; what calls meet is sorted rightly."""

from random import Random
from typing import Any

import pytest

from prefect_resilience.operations.tuning.record import RecordedAttempt, RecordedRun, RecordedTask
from prefect_resilience.operations.tuning.service_calls import UP, ServiceCalls, calls_of
from tests.operations.tuning.worlds import BEGINS, TrueService, World, live, outages

OPTIONS: dict[str, Any] = {"retry": {"attempts": 3}, "timeout": 3.0, "circuit": {"name": "service"}}


def lived(service: TrueService, seed: int = 1, runs: int = 5000, **more: Any) -> ServiceCalls:
    period, _ = live(World("world", service, {**OPTIONS, **more}, runs=runs), seed)
    return calls_of(list(period.tasks), period.until)


def run(
    start: float, *categories: str, seconds: float = 0.1, step: float = 1.0, rejected: bool = False
) -> RecordedRun:
    """A run whose attempts failed so, one each `step` seconds; "" is a success."""
    attempts = tuple(
        RecordedAttempt(start + number * step, seconds, not name, name or None, None, rejected)
        for number, name in enumerate(categories)
    )
    ended = "failed" if categories[-1] else "succeeded"
    return RecordedRun(f"{start}", start, attempts[-1].start + seconds, ended, attempts)


@pytest.mark.parametrize("kind", ["503", "half-hang"])
def test_outages_are_found_where_they_are(kind: Any) -> None:
    troubles = outages([12, 40, 90, 150], 1800.0, kind)
    service = lived(TrueService(blip=0.01, stuck=0.01, troubles=troubles), runs=20_000)
    assert len(service.outages) == len(troubles)
    for one, true in zip(service.outages, troubles, strict=True):
        assert true.begins <= one.start - BEGINS <= true.begins + 300
        assert one.low - BEGINS <= true.ends
        assert one.low <= one.high
        assert one.high - BEGINS <= true.ends + 2500
        assert one.ended


@pytest.mark.parametrize(("blip", "stuck"), [(0.01, 0.0), (0.1, 0.0), (0.005, 0.1)])
def test_failures_by_chance_and_of_stuck_runs_are_no_outage(blip: float, stuck: float) -> None:
    alarms = [
        len(lived(TrueService(blip=blip, stuck=stuck), seed, 2000, circuit=None).outages)
        for seed in range(1, 6)
    ]
    assert sum(alarms) <= 1


def test_a_caller_s_mistakes_are_no_outage() -> None:
    runs = tuple(run(60.0 * number, "invalid" if 100 < number < 120 else "") for number in range(500))
    assert calls_of([RecordedTask("ask", runs)], 60.0 * 500).outages == []


def test_an_outage_until_the_end_has_none() -> None:
    runs = tuple(run(60.0 * number, "unavailable" if number >= 480 else "") for number in range(500))
    (outage,) = calls_of([RecordedTask("ask", runs)], 60.0 * 500).outages
    assert (outage.start, outage.low, outage.high, outage.ended) == (28_800.0, 29_940.0, 30_000.0, False)


def test_calls_are_sorted_by_what_they_met() -> None:
    chance = Random(1)
    runs = [run(60.0 * number, "") for number in range(400)]
    runs += [run(24_000.0 + 60.0 * number, "unavailable", "unavailable", step=30.0) for number in range(20)]
    runs += [run(30_000.0 + 60.0 * number, "") for number in range(100)]
    runs += [run(5.5, "timeout", "timeout", ""), run(7.5, "timeout", rejected=True)]
    chance.shuffle(runs)
    crashed = RecordedRun("gone", 9.0, 10.0, "crashed", (RecordedAttempt(9.0, 1.0, False, "timeout"),))
    service = calls_of([RecordedTask("ask", (*runs, crashed))], 40_000.0)
    assert len(service.runs) == len(runs)
    assert service.began.tolist() == sorted(service.began.tolist())
    (outage,) = service.outages
    assert int((service.outage != UP).sum()) == 40
    assert len(service.first[0]) == 501
    assert {failures: len(calls) for failures, calls in service.retries.items()} == {1: 1, 2: 1}
    assert len(service.successes(0)) == 501
    assert int((service.at_once > 0).sum()) == 499  # not the success that ends the outage
    assert outage.low == 24_000.0 + 60.0 * 19 + 30.0
