"""Outages are found where they are, and not where failures are chance; what calls meet is sorted rightly."""

from typing import Any

import pytest

from prefect_resilience.operations.tuning.record import RecordedAttempt, RecordedRun
from prefect_resilience.operations.tuning.service_calls import ServiceCalls, calls_of
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
