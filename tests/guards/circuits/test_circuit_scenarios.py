"""A fleet of real processes on every store, with a service that is dead."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from prefect_resilience.guards.circuits import machine
from prefect_resilience.guards.circuits.link import PREFIX
from prefect_resilience.stores import open_store
from tests.guards.circuits.target import most_at_once, target
from tests.guards.circuits.workers import call_many, fleet

STORES = os.environ.get("PREFECT_RESILIENCE_TEST_FLEET_STORES", "sqlite,postgres,redis").split(",")
"""Kinds of stores, or URLs of empty ones."""

PROCESSES, CALLS = 4, 500


@pytest.fixture
def fleet_url(store: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store that processes can share."""
    if store == "sqlite":
        return f"sqlite:///{tmp_path}/fleet.db"
    return request.getfixturevalue(f"{store}_url") if store in {"postgres", "redis"} else store


def first_opening(url: str, name: str) -> float:
    store, deadline = open_store(url), time.monotonic() + 30
    while time.monotonic() < deadline:
        found = store.load(PREFIX + name)
        document = machine.read(found.value if found else None)
        if document["state"] == "open":
            return document["opened_at"]
        time.sleep(0.005)
    raise TimeoutError(f"circuit {name} did not open")


@pytest.mark.parametrize(("store", "probes"), [(store, 1 + n % 2) for n, store in enumerate(STORES)])
def test_a_dead_service_is_left_alone(fleet_url: str, probes: int) -> None:
    """All call it while openings end and probes are let in, long enough that all processes follow."""
    policy: dict[str, Any] = {"open_for": 0.3, "open_backoff": 1.0, "probes": probes, "sync_interval": 0.2}
    name = f"dead-{probes}"
    with target(delay=0.02) as service, fleet() as start:
        given = {"url": fleet_url, "policy": policy, "port": service.port, "name": name, "calls": CALLS}
        members = [start(call_many, pause=0.008, **given) for _ in range(PROCESSES)]
        assert [member.hear() for member in members] == ["ready"] * PROCESSES
        for member in members:
            member.say("go")
        began = time.time()
        opened_at = first_opening(fleet_url, name)
        refused = sum(member.hear()["refused"] for member in members)
        seconds = time.time() - began
    assert refused + len(service.visits) == PROCESSES * CALLS
    leaked = len(service.after(opened_at))
    # One call of each process that has not heard yet, and the probes: in 2,000 calls these are many.
    assert leaked <= PROCESSES + probes * (seconds / 0.3 + 1)
    # Until its view is old a process may not have heard of the opening; from then on all are probes. A call
    # that was let in before may arrive a little later, on a machine with much to do.
    assert most_at_once(service.after(opened_at + policy["sync_interval"] + 0.5)) <= probes
    # It is never wedged: probes go on to the end.
    assert len(service.visits) - leaked >= 5
    assert leaked >= seconds / 3
