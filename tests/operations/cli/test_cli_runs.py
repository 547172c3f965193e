"""`prefect-resilience runs ...`, and the same rows on the dashboard's page."""

from __future__ import annotations

import time
from typing import Any
from uuid import uuid4

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.events import emit_event
from prefect.states import Cancelled, Completed, Running

from prefect_resilience.durable.batches.edge.parking import keep, park
from prefect_resilience.durable.batches.parked import ParkedRun
from prefect_resilience.operations.dashboard.desk import Desk

NOW = time.time()


def parked(name: str, **more: Any) -> ParkedRun:
    facts = {
        "flow_run_id": str(uuid4()),
        "name": name,
        "flow": "f",
        "why": "ask: 503 unavailable",
        "parks": 1,
    }
    times = {"until": NOW + 86_400, "at": NOW - 60, "since": NOW - 60}
    return ParkedRun.model_validate({**facts, **times, **more})


def test_parked_runs_are_listed_from_the_store_alone(cli: Any) -> None:
    assert cli("runs", "parked").out == "No flow run is parked.\n"
    assert cli("runs", "list").out == "No flow run runs or is parked.\n"
    keep(parked("tidy-newt", circuit="shop"))
    keep(parked("grown-owl", until=NOW + 3_600))
    keep(parked("woken-elk", is_open=False))
    owl, newt = cli("runs", "parked", "--json").json
    assert (owl["name"], owl["circuit"], newt["name"], newt["circuit"]) == (
        "grown-owl",
        None,
        "tidy-newt",
        "shop",
    )
    assert (newt["state"], newt["until"], newt["why"]) == ("parked", NOW + 86_400, "ask: 503 unavailable")
    assert cli("runs", "list", "--json").json == [owl, newt]
    shown = cli("runs", "list", "--limit", "1").out
    assert shown.endswith("2 flow runs (the first 1 are shown)\n")
    assert ("grown-owl" in shown, "tidy-newt" in shown) == (True, False)
    rows = Desk().read_parked()["parked"]
    assert [(row["place"], row["name"]) for row in rows.values()] == [(0, "grown-owl"), (1, "tidy-newt")]
    assert (
        cli("runs", "wake", "tidy-newts").sentence
        == "No parked flow run 'tidy-newts'; did you mean 'tidy-newt'?"
    )


@pytest.mark.api
def test_runs_are_listed_with_their_heartbeats_and_parked_ones_woken(cli: Any, prefect_api: None) -> None:
    empty = flow(lambda: None, name="runs of the command line")
    deployment = empty.to_deployment("d").apply()
    with get_client(sync_client=True) as client:
        ids = []

        def start() -> str:
            run = client.create_flow_run_from_deployment(deployment)
            client.set_flow_run_state(run.id, Running(), force=True)
            ids.append(run.id)
            return str(run.id)

        runs = [
            parked(name, flow_run_id=start(), **more)
            for name, more in (
                ("first", {"circuit": "shop"}),
                ("second", {"circuit": "shop", "not_before": NOW + 86_400}),
                ("third", {}),
            )
        ]
        for run in runs:
            keep(run)
            assert not isinstance(park(run), str)
        living = start()
        emit_event("prefect.flow-run.heartbeat", {"prefect.resource.id": f"prefect.flow-run.{living}"})

        def listed() -> dict[str, Any]:
            return {row["flow_run_id"]: row for row in cli("runs", "list", "--json").json}

        until = time.monotonic() + 60
        while listed()[living]["seconds_silent"] is None and time.monotonic() < until:
            time.sleep(0.2)
        rows = listed()
        assert 0 <= rows[living]["seconds_silent"] < 60
        assert [rows[run.flow_run_id]["state"] for run in runs] == ["parked"] * 3
        assert (
            cli("runs", "wake", living).sentence
            == f"The flow run {living} was not woken: it is Running, not Parked"
        )

        woken = cli("runs", "wake", "first", "second", "--json")
        assert woken.code == 1, "one of them could not be woken"
        first, second = woken.json
        assert (first["name"], first["rejected"], first["until"] < time.time() + 60) == ("first", None, True)
        assert second["rejected"].startswith("it goes on at 20")
        assert "third goes on at 20" in cli("runs", "wake", "third").out
        assert "second was not woken: it goes on at 20" in cli("runs", "wake", runs[1].flow_run_id).out

        client.set_flow_run_state(ids[0], Cancelled())
        assert ids[0] not in listed()
        for run_id in ids:
            client.set_flow_run_state(run_id, Completed(), force=True)
        assert cli("runs", "parked", "--json").json == []
