"""Task runs that killed processes left behind are closed, on a real Prefect API."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from prefect import task
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.settings import PREFECT_API_URL
from prefect.states import Completed, Crashed, Paused, Pending, Running

from prefect_resilience.durable.batches.edge import closing
from prefect_resilience.durable.batches.edge.closing import Closed, close_all, close_left_behind
from prefect_resilience.effects import recover
from prefect_resilience.operations import close_task_runs

pytestmark = pytest.mark.api

PROGRAM = """
import os, signal, time
from prefect import flow, task
from prefect.client.orchestration import get_client
from prefect.runtime import flow_run
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId


@task(task_run_name="ask {n}")
def ask(n):
    time.sleep(0 if n == 0 else 600)


@flow
def asking():
    mine = FlowRunFilter(id=FlowRunFilterId(any_=[flow_run.get_id()]))
    ask(0)
    calls = ask.map([1, 2])
    waiting = ask.map([3, 4], wait_for=calls)
    until = time.monotonic() + 40
    with get_client(sync_client=True) as client:
        while time.monotonic() < until:
            names = sorted(run.state_name for run in client.read_task_runs(flow_run_filter=mine) if run.state)
            if names == ["Completed", "Pending", "Pending", "Running", "Running"]:
                break
            time.sleep(0.2)
    print("FLOWRUN", flow_run.get_id(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


asking()
"""


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


def test_a_process_that_was_killed_and_its_task_runs(client, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    env = os.environ | {"PREFECT_API_URL": str(PREFECT_API_URL.value())}
    done = subprocess.run(
        [sys.executable, str(program)], env=env, capture_output=True, text=True, check=False
    )
    assert "FLOWRUN" in done.stdout, done.stderr
    flow_run_id = UUID(done.stdout.split("FLOWRUN ")[1].split()[0])

    assert close_left_behind(client, client.read_flow_run(flow_run_id), settles=0) == Closed(), (
        "it is Running"
    )
    client.set_flow_run_state(flow_run_id, Crashed(message="killed"), force=True)
    run = client.read_flow_run(flow_run_id)
    assert close_left_behind(client, run, settles=3_600) == Closed(), (
        "it may have told more, which is on its way"
    )
    assert close_left_behind(client, run, settles=0, dry_run=True) == Closed(0, 4)
    assert close_left_behind(client, run, settles=0, within=0) == Closed(0, 4), "there was no time"
    assert close_left_behind(client, run, settles=0) == Closed(4, 0)
    after = client.read_task_runs(flow_run_filter=of(flow_run_id))
    assert sorted(run.state_name for run in after) == ["Completed", *["Crashed"] * 4]
    said = [run.state.message for run in after if run.state.is_crashed()]
    assert all(
        one.startswith("Unfinished after pass 1 of its flow run, which ended Crashed at") for one in said
    )
    assert sorted(one.split(" It was ")[1].split()[0] for one in said) == [
        "Pending",
        "Pending",
        "Running",
        "Running",
    ]


def of(flow_run_id):
    return FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id]))


def test_a_recovery_closes_what_the_crash_left(client, deployed, made, monkeypatch, crashes_settle):
    monkeypatch.setattr(closing, "SETTLES", 0.0)
    monkeypatch.setitem(close_left_behind.__kwdefaults__, "settles", 0.0)
    flow_run_id = deployed(Running())
    lost = made(flow_run_id, Running())
    paused = made(flow_run_id, Paused())
    client.set_flow_run_state(flow_run_id, Crashed(), force=True)
    assert recover(str(flow_run_id)).action == "rescheduled"
    assert state_of(client, lost).is_crashed()
    assert state_of(client, paused).is_paused()


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
