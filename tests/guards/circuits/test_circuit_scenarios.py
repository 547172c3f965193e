"""Fleets of real processes on every store."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.guards.circuits import scenarios
from tests.guards.circuits.distorted import DISTORTIONS, Distortion
from tests.guards.circuits.scenarios import LEASE, OPEN_FOR, PROBE_TAKES

STORES = os.environ.get("PREFECT_RESILIENCE_TEST_FLEET_STORES", "sqlite,postgres,redis").split(",")
"""Kinds of stores, or URLs of empty ones."""

SLACK = 0.25
"""Seconds that two busy cores may add where processes are started, killed and looked at."""

each_news = pytest.mark.parametrize(
    ("store", "news"),
    [
        *((store, "none") for store in STORES),
        *(
            pytest.param(store, news, marks=pytest.mark.slow)
            for store in ("redis", "postgres")
            for news in DISTORTIONS
        ),
    ],
)
"""Each kind of store, and whatever becomes of the messages of those that push them."""


@pytest.fixture
def fleet_url(store: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store that processes can share."""
    if store == "sqlite":
        return f"sqlite:///{tmp_path}/fleet.db"
    return request.getfixturevalue(f"{store}_url") if store in {"postgres", "redis"} else store


@pytest.mark.parametrize("probes", [1, 2])
@each_news
def test_a_dead_service_is_left_alone(fleet_url: str, probes: int, news: Distortion) -> None:
    """Long enough that all processes follow, and that messages come after the state that they tell of."""
    found = scenarios.dead_service(fleet_url, processes=4, calls=500, pause=0.008, probes=probes, news=news)
    assert found.refused + found.reached == found.calls
    # One call of each process that has not heard yet, and the probes: in 2,000 calls these are many.
    assert found.leaked <= 4 + probes * (found.seconds / 0.3 + 1)
    assert found.probes_at_once <= probes
    # It is never wedged: probes go on to the end.
    assert found.reached - found.leaked >= 5
    assert found.leaked >= found.seconds / 3


@each_news
def test_a_killed_prober_delays_closing_by_its_lease_and_no_more(fleet_url: str, news: Distortion) -> None:
    found = scenarios.killed_probers(fleet_url, rounds=5, at_once=2, news=news)
    assert len(found) == 5
    bound = LEASE + OPEN_FOR + PROBE_TAKES + SLACK
    # A processor that is waited for delays one round or the other, a lease that is too long all of them.
    assert sorted(one.closed_after for one in found)[2] <= bound
    assert max(one.closed_after for one in found) <= bound + 5
