"""Flow runs whose heartbeats stopped are called crashed, on a real Prefect API, and no others."""

from __future__ import annotations

from datetime import timedelta

import pytest
from prefect import flow
from prefect.events import emit_event
from prefect.events.worker import EventsWorker
from prefect.states import Cancelling, Completed, Failed, Running
from prefect.types._datetime import now

from prefect_resilience.durable.batches.edge import closing
from prefect_resilience.durable.batches.edge.closing import crash_silent, silent_runs
from prefect_resilience.operations import crash_silent_runs
from tests.prefect_runs import until

pytestmark = pytest.mark.api

SECOND = timedelta(seconds=1)


@pytest.fixture
def run_with(client):
    """A flow run that came to these states, and sent heartbeats so many seconds from now."""

    @flow
    def nothing():
        return None

    def make(*states, beats=()):
        run = client.create_flow_run(nothing)
        for state in states:
            client.set_flow_run_state(run.id, state, force=True)
        for seconds in beats:
            emit_event(
                "prefect.flow-run.heartbeat",
                {"prefect.resource.id": f"prefect.flow-run.{run.id}", "prefect.resource.name": run.name},
                occurred=now("UTC") + timedelta(seconds=seconds),
            )
        assert until(lambda: heard(client, run.id, len(beats)))
        return run.id

    return make


@pytest.fixture
def mine(monkeypatch):
    """The ids of a test's own flow runs: on the shared server, others' are not crashed."""
    own = set()

    def only_mine(*args):
        return [one for one in silent_runs(*args) if one.id in own]

    monkeypatch.setattr(closing, "silent_runs", only_mine)
    return own


def heard(client, run_id, beats):
    """Whether the API has all heartbeats of a run."""
    EventsWorker.instance().wait_until_empty()
    about = {
        "event": {"name": ["prefect.flow-run.heartbeat"]},
        "resource": {"id": [f"prefect.flow-run.{run_id}"]},
        "occurred": {"until": (now("UTC") + timedelta(days=1)).isoformat()},
    }
    answer = client.request("POST", "/events/filter", json={"filter": about, "limit": 50})
    return len(answer.json()["events"]) == beats


def test_only_a_running_run_that_fell_silent_is_crashed(client, run_with, mine, monkeypatch):
    monkeypatch.setattr(closing, "SKEW", 0.0)  # one machine has one clock
    silent = run_with(Running(), beats=(-60, -1, 0))
    retried = run_with(Running(), beats=(0,))
    others = [
        run_with(Running(), beats=(0, 3600)),
        run_with(Running()),
        run_with(Running(), Completed(), beats=(0,)),
        run_with(Running(), Failed(name="Odd"), beats=(0,)),
        run_with(Running(), Cancelling(), beats=(0,)),
        retried,
    ]
    # Its first attempt sent heartbeats; the second one runs where they are switched off.
    for state in (Failed(), Running(name="Retrying")):
        client.set_flow_run_state(retried, state, force=True)
    mine.update([silent, *others])
    before = {one: client.read_flow_run(one).state.id for one in mine}

    assert not [one for one in silent_runs(client, timedelta(minutes=30)) if one.id in mine]
    assert until(lambda: [one.id for one in crash_silent(SECOND, dry_run=True)] == [silent])
    assert client.read_flow_run(silent).state.is_running()

    assert crash_silent_runs.with_options(validate_parameters=False)(silent_minutes=1 / 60) == 1
    crashed = client.read_flow_run(silent).state
    assert crashed.name == "Crashed"
    assert crashed.message.startswith("Its heartbeats stopped at 20")
    after = {one: client.read_flow_run(one).state.id for one in others}
    assert after == {one: before[one] for one in others}
    assert crash_silent(SECOND) == []


def test_a_run_that_ends_between_the_question_and_the_answer_keeps_its_end(client, run_with, monkeypatch):
    run_id = run_with(Running(), beats=(0,))
    found = until(lambda: [one for one in silent_runs(client, SECOND) if one.id == run_id])
    client.set_flow_run_state(run_id, Completed(), force=True)
    monkeypatch.setattr(closing, "silent_runs", lambda *_: found)
    assert crash_silent(SECOND) == []
    assert client.read_flow_run(run_id).state.is_completed()
