"""A quota is told from chance, with its rate; and a bucket lets through no more than it."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_resilience.operations.tuning.calls import ServiceCall, services_of
from prefect_resilience.operations.tuning.quotas import Quota, QuotaLevel, quota_of
from tests.operations.tuning.records import attempt, period_of, run, task_of


def calls_that(passed: list[bool], every: float, category: str = "rate_limit") -> list[ServiceCall]:
    """Calls with the given seconds between them on average."""
    chance, at = Random(5), 0.0
    runs = []
    for number, well in enumerate(passed):
        at += chance.expovariate(1 / every)
        runs.append(run(number, attempt(at, None if well else category)))
    [record] = services_of(period_of(task_of("ask", runs)))
    return record.calls


def by_quota(quota: Quota, number: int, every: float, category: str) -> list[ServiceCall]:
    bucket = QuotaLevel(quota, quota.burst)
    moments = [call.start for call in calls_that([True] * number, every)]
    return calls_that([bucket.takes(moment) for moment in moments], every, category)


@pytest.mark.parametrize("category", ["rate_limit", "unavailable"])
@pytest.mark.parametrize("per_second", [0.03, 0.1])
def test_a_quota_is_found_with_its_rate(per_second: float, category: str) -> None:
    found = quota_of(by_quota(Quota(per_second, 2.0), 150, 4.0, category))
    assert found is not None
    assert found.per_second == pytest.approx(per_second, rel=0.3)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_chance_is_no_quota(share: float) -> None:
    found = []
    for seed in range(100, 140):
        chance = Random(seed)
        calls = calls_that([chance.random() >= share for _ in range(80)], 6.0, "unavailable")
        found.append(quota_of(calls))
    assert sum(one is not None for one in found) <= 1


def test_few_calls_say_nothing() -> None:
    assert quota_of([]) is None
    assert quota_of(calls_that([True, False] * 2, 5.0)) is None


@given(
    st.floats(0.01, 10), st.sampled_from([1.0, 2.0, 5.0]), st.lists(st.floats(0, 20), min_size=1, max_size=60)
)
def test_no_more_passes_than_the_quota(per_second: float, burst: float, gaps: list[float]) -> None:
    bucket, now, passed = QuotaLevel(Quota(per_second, burst), burst), 100.0, 0
    for gap in gaps:
        now += gap
        passed += bucket.takes(now)
    assert passed <= burst + (now - 100.0) * per_second + 1e-6


def test_what_one_run_stands_for_passes_together() -> None:
    bucket = QuotaLevel(Quota(1.0, 2.0), 2.0)
    assert bucket.takes(0.0, 5.0), "otherwise a run of this weight would never pass"
    assert not bucket.takes(1.0, 5.0)
    assert bucket.takes(10.0, 5.0)
