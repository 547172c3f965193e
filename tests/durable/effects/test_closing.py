"""Task runs that killed processes left behind are closed, on a real Prefect API."""

from __future__ import annotations

import time
from datetime import timedelta
from uuid import uuid4

import pytest
from prefect import task
from prefect.states import Completed, Crashed, Pending, Running

from prefect_resilience.durable.batches.edge import closing
from prefect_resilience.durable.batches.edge.closing import Closed, close_all, close_left_behind
from prefect_resilience.effects import recover
from prefect_resilience.operations import close_task_runs

pytestmark = pytest.mark.api


@pytest.fixture
def deployed(deployed_run):
    return lambda *states: deployed_run(*states).id


@pytest.fixture
def made(client):
    """A task run of a flow run, in a state."""

    @task
    def ask():
        return None

    def make(flow_run_id, state):
        run = client.create_task_run(ask, flow_run_id, dynamic_key=uuid4().hex, state=Pending())
        client.set_task_run_state(run.id, state, force=True)
        return run.id

    return make


def state_of(client, task_run_id):
    return client.read_task_run(task_run_id).state


def test_the_task_runs_of_a_process_that_was_killed(client, deployed, made):
    flow_run_id = deployed(Running())
    left = [made(flow_run_id, state) for state in (Running(), Pending())]
    ended = made(flow_run_id, Completed())
    assert close_left_behind(client, client.read_flow_run(flow_run_id), settles=0) == Closed(), (
        "it is Running"
    )
    client.set_flow_run_state(flow_run_id, Crashed(message="killed"), force=True)
    run = client.read_flow_run(flow_run_id)
    assert close_left_behind(client, run, settles=3_600) == Closed(), (
        "it may have told more, which is on its way"
    )
    assert close_left_behind(client, run, settles=0, dry_run=True) == Closed(0, 2)
    assert close_left_behind(client, run, settles=0, within=0) == Closed(0, 2), "there was no time"
    assert close_left_behind(client, run, settles=0) == Closed(2, 0)
    assert state_of(client, ended).is_completed()
    for task_run_id, was in zip(left, ("Running", "Pending"), strict=True):
        state = state_of(client, task_run_id)
        assert state.is_crashed()
        assert state.message.startswith("Unfinished after pass 1 of its flow run, which ended Crashed at")
        assert f"It was {was}" in state.message


def test_a_recovery_is_done_whatever_becomes_of_the_task_runs(
    client, deployed, monkeypatch, caplog, crashes_settle
):
    def fails(*_, **__):
        raise RuntimeError("the API said no to Bearer hunter2-never-to-be-seen")

    monkeypatch.setattr(closing, "close_left_behind", fails)
    assert recover(str(deployed(Running(), Crashed()))).action == "rescheduled"
    (said,) = [one.getMessage() for one in caplog.records if "could not be closed" in one.getMessage()]
    assert "hunter2" not in said


def test_what_came_to_its_own_end_meanwhile_keeps_it(client, deployed, made, monkeypatch):
    flow_run_id = deployed(Running())
    lost = made(flow_run_id, Running())
    client.set_flow_run_state(flow_run_id, Crashed(), force=True)
    looked = closing.left_behind

    def then_it_ends(*given, **more):
        found = looked(*given, **more)
        client.set_task_run_state(lost, Completed(), force=True)
        return found

    monkeypatch.setattr(closing, "left_behind", then_it_ends)
    assert close_left_behind(client, client.read_flow_run(flow_run_id), settles=0) == Closed(0, 1)
    assert state_of(client, lost).is_completed()


def test_the_scheduled_operation_closes_what_no_recovery_did(client, deployed, made, monkeypatch):
    monkeypatch.setattr(closing, "SETTLES", 0.0)
    flow_run_id, goes_on = deployed(Running()), deployed(Running())
    lost, lives = made(flow_run_id, Running()), made(goes_on, Running())
    client.set_flow_run_state(flow_run_id, Crashed(), force=True)
    time.sleep(0.1)
    assert flow_run_id not in close_all(timedelta(hours=1), 2_000)
    assert close_all(timedelta(0), 2_000, dry_run=True)[flow_run_id] == Closed(0, 1)
    assert state_of(client, lost).is_running()
    assert close_all(timedelta(0), 2_000)[flow_run_id] == Closed(1, 0)
    assert state_of(client, lost).is_crashed()
    assert state_of(client, lives).is_running()


def test_the_operation_as_a_flow(client, deployed, made):
    flow_run_id = deployed(Running())
    made(flow_run_id, Running())
    client.set_flow_run_state(flow_run_id, Crashed(), force=True)
    state = close_task_runs(older_than_minutes=60, return_state=True)
    assert state.is_completed()
    assert isinstance(state.result(), int)
    assert close_task_runs(older_than_minutes=0.5, return_state=True).is_failed()
