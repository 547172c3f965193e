"""The circuits table: what it shows, and that it is written anew when a circuit changes inside a run."""

import threading
from datetime import UTC, datetime
from uuid import uuid4

import pytest
from prefect import flow
from prefect.client.orchestration import get_client

from prefect_resilience import CircuitBreaker, resilient_task
from prefect_resilience.guards.circuits.model import CircuitSnapshot
from prefect_resilience.operations import show_circuits
from prefect_resilience.tasks.edge import artifacts
from prefect_resilience.tasks.edge.artifacts import CircuitsTableWriter, markdown_of

# They count what all of a server has.
pytestmark = [pytest.mark.usefixtures("own_prefect_api"), pytest.mark.timeout(300)]

SECRET = "sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789"
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def latest():
    with get_client(sync_client=True) as client:
        wanted = {"artifacts": {"key": {"any_": ["circuits"]}}}
        found = client.request("POST", "/artifacts/latest/filter", json=wanted).json()
    return found[0] if found else None


def fails(circuit):
    @resilient_task(retry=None, circuit=circuit)
    def work():
        raise ConnectionError(f"refused for {SECRET}")

    @flow
    def scenario():
        work(return_state=True)

    scenario()


def test_those_in_trouble_come_first():
    text = markdown_of(
        [
            CircuitSnapshot(name="a", window_calls=10, window_failures=1),
            CircuitSnapshot(name="z", state="open", opened_at=NOW.timestamp(), reason="5 failures in a row"),
            CircuitSnapshot(name="m", state="disabled", reason="by hand"),
        ],
        NOW,
    )
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == ["z", "m", "a"]
    assert "3 circuits, 1 open, as of 2026-11-20 12:00:00 UTC." in text
    assert "5 failures in a row" in rows[0]
    assert "0 circuits, none open, as of 2026-11-20 12:00:00 UTC." in markdown_of([], NOW)
    assert "prefect-resilience circuits list" in text


def test_hostile_and_secret_names_stay_in_their_cells():
    hostile = f"x|y`z\n| {SECRET} <script>"
    text = markdown_of([CircuitSnapshot(name=hostile, state="open", last_error=hostile * 100)], NOW)
    (row,) = [line for line in text.splitlines() if line.startswith("| `")]
    assert row.count("|") == 7
    assert row.count("`") == 4
    assert SECRET not in text


def test_a_fleet_of_thousands_is_cut():
    text = markdown_of([CircuitSnapshot(name=f"c{n}") for n in range(2_000)], NOW)
    assert "and 1500 more" in text
    assert len(text) < 100_000


def test_the_flow_writes_it():
    name = f"shown-{uuid4().hex[:6]}"
    CircuitBreaker(name).force_open("the provider said so")
    assert [circuit["name"] for circuit in show_circuits()] == [name]
    artifact = latest()
    assert artifact["flow_run_id"] is not None
    assert f"`{name}` | **forced open**" in artifact["data"]


def test_a_change_inside_a_run_writes_it(until, monkeypatch):
    monkeypatch.setattr(artifacts, "keeper", CircuitsTableWriter())
    monkeypatch.setattr(artifacts, "SOON", 0.0)
    name = f"moved-{uuid4().hex[:6]}"
    fails(CircuitBreaker(name, failure_threshold=1, open_for=60))
    artifact = until(lambda: (found := latest()) and name in found["data"] and found)
    assert f"`{name}` | **open**" in artifact["data"]
    assert SECRET not in artifact["data"]


def test_it_says_how_old_it_is_and_uses_no_letter_that_a_font_may_lack():
    states = ("forced_open", "open", "half_open", "disabled", "closed")
    text = markdown_of([CircuitSnapshot(name=state, state=state) for state in states], NOW)
    assert text.isascii()
    assert f"as of {NOW:%Y-%m-%d %H:%M:%S} UTC" in text
    assert "If the time above is more than 10 minutes ago" in text


def test_a_burst_is_one_table(until, monkeypatch):
    keeper, written = CircuitsTableWriter(), []
    monkeypatch.setattr(artifacts, "keeper", keeper)
    monkeypatch.setattr(artifacts, "_create", lambda: written.append(1))
    monkeypatch.setattr(artifacts, "SOON", 0.0)
    monkeypatch.setattr(artifacts, "EVERY", 600.0)
    circuit = CircuitBreaker(f"burst-{uuid4().hex[:6]}", failure_threshold=1, open_for=60)
    for _ in range(3):
        fails(circuit)
        circuit.reset()
        until(lambda: written)
    assert keeper._waiting
    keeper.leave()
    assert not keeper._thread.is_alive()
    assert written == [1, 1]


def test_trouble_with_it_is_nobody_s(until, monkeypatch):
    keeper, asked, escaped = CircuitsTableWriter(), [], []

    def broken():
        asked.append(1)
        raise RuntimeError("the API is away")

    monkeypatch.setattr(artifacts, "keeper", keeper)
    monkeypatch.setattr(artifacts, "_create", broken)
    monkeypatch.setattr(artifacts, "SOON", 0.0)
    monkeypatch.setattr(threading, "excepthook", escaped.append)
    fails(CircuitBreaker(f"alone-{uuid4().hex[:6]}", failure_threshold=1))
    until(lambda: asked)
    keeper._thread.join(30)
    assert not keeper._thread.is_alive()
    assert escaped == []
