"""Fleets of real processes on every store, in short; `pytest -m long` runs the long forms."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.guards.circuits import long, scenarios
from tests.guards.circuits.distorted import DISTORTIONS, Distortion
from tests.guards.circuits.long import SLACK
from tests.guards.circuits.scenarios import LEASE, OPEN_FOR, PROBE_TAKES

STORES = os.environ.get("PREFECT_RESILIENCE_TEST_FLEET_STORES", "sqlite,postgres,redis").split(",")
"""Kinds of stores, or URLs of empty ones."""


@pytest.fixture(params=STORES)
def fleet_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store that processes can share."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/fleet.db"
    if request.param in {"postgres", "redis"}:
        return request.getfixturevalue(f"{request.param}_url")
    return request.param


@pytest.mark.parametrize("probes", [1, 2])
def test_a_dead_service_is_left_alone(fleet_url: str, probes: int) -> None:
    found = scenarios.dead_service(fleet_url, processes=4, calls=300, pause=0.005, probes=probes)
    assert found.refused + found.reached == found.calls
    # One call of each process that has not heard yet, and the probes: in 1,200 calls these are many.
    assert found.leaked <= 4 + probes * (found.seconds / 0.3 + 1)
    assert found.probes_at_once <= probes
    assert found.reached - found.leaked >= 5


def test_a_killed_prober_delays_closing_by_its_lease_and_no_more(fleet_url: str) -> None:
    found = scenarios.killed_probers(fleet_url, rounds=5, at_once=2)
    assert len(found) == 5
    bound = LEASE + OPEN_FOR + PROBE_TAKES + SLACK
    # A processor that is waited for delays one round or the other, a lease that is too long all of them.
    assert sorted(one.closed_after for one in found)[2] <= bound
    assert max(one.closed_after for one in found) <= bound + 5


@pytest.mark.slow
@pytest.mark.parametrize("news", DISTORTIONS)
@pytest.mark.parametrize("server", ["redis", "postgres"])
def test_a_dead_service_is_left_alone_whatever_becomes_of_messages(
    server: str, news: Distortion, request: pytest.FixtureRequest
) -> None:
    """Long enough that all processes follow, and that messages come after the state that they tell of."""
    url = request.getfixturevalue(f"{server}_url")
    found = scenarios.dead_service(url, processes=4, calls=600, pause=0.01, news=news)
    assert found.refused + found.reached == found.calls
    assert found.leaked <= 4 + found.seconds / 0.3 + 1
    assert found.probes_at_once <= 1
    # It is never wedged: probes go on to the end.
    assert found.reached - found.leaked >= 5
    assert found.leaked >= found.seconds / 3


@pytest.mark.slow
@pytest.mark.parametrize("news", DISTORTIONS)
@pytest.mark.parametrize("server", ["redis", "postgres"])
def test_a_killed_prober_wedges_nothing_whatever_becomes_of_messages(
    server: str, news: Distortion, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(f"{server}_url")
    found = scenarios.killed_probers(url, rounds=4, at_once=2, news=news)
    bound = LEASE + OPEN_FOR + PROBE_TAKES + SLACK
    assert sorted(one.closed_after for one in found)[1] <= bound
    assert max(one.closed_after for one in found) <= bound + 5


def test_news_reaches_the_last_process_within_the_interval(fleet_url: str) -> None:
    found = scenarios.news(fleet_url, processes=4, rounds=4, sync_interval=0.2)
    # A call and a wake-up each take their time, twice so where a processor is waited for: half of the rounds
    # are within the interval, and none is long after it.
    took = sorted(max(one.opened, one.closed) - 2 * one.late for one in found)
    assert took[1] <= 0.2 + 0.05 + 0.1
    assert took[-1] <= 5


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("scenario", list(long.SCENARIOS))
def test_in_full(scenario: str, fleet_url: str) -> None:
    told, kept = long.SCENARIOS[scenario](fleet_url)
    print(told)
    assert kept, told
