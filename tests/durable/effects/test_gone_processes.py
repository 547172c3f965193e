"""Runs whose process is gone: what tells it, what a recovery does, and which task runs are closed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect import flow, task
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import FlowRun
from prefect.events import emit_event
from prefect.events.worker import EventsWorker
from prefect.states import AwaitingRetry, Cancelling, Completed, Crashed, Failed, Pending, Running
from prefect.types._datetime import now

from prefect_resilience.durable.batches.edge import closing, recovery
from prefect_resilience.durable.batches.edge.closing import (
    Closed,
    close_all,
    close_left_behind,
    crash_silent,
    silent_runs,
)
from prefect_resilience.durable.batches.edge.flow_runs import (
    EXECUTED,
    SUBMITTED,
    is_stranded,
    runs_that_ended_badly,
)
from prefect_resilience.durable.batches.edge.listing import find_batches
from prefect_resilience.effects import batch_status, recover
from prefect_resilience.operations import close_task_runs, crash_silent_runs
from prefect_resilience.operations.diagnosis import environment as checks
from tests.durable.effects.test_recovery import put
from tests.prefect_runs import until

pytestmark = pytest.mark.api

NOW = timedelta(0)
HOUR = timedelta(hours=1)


@pytest.fixture
def pool(client: SyncPrefectClient) -> str:
    """A work pool with a worker that is online."""
    name = f"pool-{uuid4().hex[:8]}"
    client.create_work_pool(WorkPoolCreate(name=name, type="process"))
    beats = {"name": "worker-1", "heartbeat_interval_seconds": 30}
    client.request("POST", f"/work_pools/{name}/workers/heartbeat", json=beats).raise_for_status()
    return name


@pytest.fixture
def run_in(client: SyncPrefectClient, deployed_run: Callable[..., FlowRun]) -> Callable[..., UUID]:
    """A run of a deployed flow in this state; with `in_process`, after a failure with a retry left."""

    def make(state: Any, retry_type: str | None = None) -> UUID:
        run = deployed_run()
        policy = {"empirical_policy": {"retries": 1, "retry_type": retry_type}}
        client.request("PATCH", f"/flow_runs/{run.id}", json=policy).raise_for_status()
        client.set_flow_run_state(run.id, state, force=True)
        return run.id

    return make


def waiting(late: timedelta) -> Any:
    return AwaitingRetry(scheduled_time=datetime.now(UTC) - late)


def tell(client: SyncPrefectClient, pool: str, run_id: UUID, name: str, follows: Any = None) -> Any:
    """An event of the worker of this pool, when the API has it."""
    worker = {"prefect.resource.id": "prefect.worker.process.worker-1", "prefect.resource.name": "worker-1"}
    related = [
        {"prefect.resource.id": f"prefect.flow-run.{run_id}", "prefect.resource.role": "flow-run"},
        {
            "prefect.resource.id": f"prefect.work-pool.{pool}",
            "prefect.resource.role": "work-pool",
            "prefect.resource.name": pool,
        },
    ]
    event: Any = emit_event(name, worker, related=related, follows=follows)
    EventsWorker.instance().wait_until_empty()
    asked = {"filter": {"id": {"id": [str(event.id)]}}}
    until(lambda: client.request("POST", "/events/filter", json=asked).json()["events"])
    return event


@pytest.mark.parametrize(
    ("late", "retry_type", "worker", "stranded"),
    [
        (HOUR, "in_process", "none", True),
        (-HOUR, "in_process", "none", False),
        (HOUR, "reschedule", "none", False),
        (HOUR, "in_process", "holds it", False),
        (HOUR, "in_process", "is gone", True),
        (-HOUR, "in_process", "released it", True),
    ],
)
def test_which_runs_are_stranded(
    client: SyncPrefectClient,
    run_in: Any,
    pool: str,
    late: timedelta,
    retry_type: str | None,
    worker: str,
    stranded: bool,
) -> None:
    """A run that waits for its retry is left to its process for as long as that may live."""
    run_id = run_in(waiting(late), retry_type)
    if worker != "none":
        begun = tell(client, pool, run_id, SUBMITTED)
        if worker == "released it":
            tell(client, pool, run_id, EXECUTED, begun)
        if worker == "is gone":
            client.request("DELETE", f"/work_pools/{pool}/workers/worker-1").raise_for_status()
    run = client.read_flow_run(run_id)
    assert is_stranded(client, run) is stranded
    found = [one.id for one in runs_that_ended_badly(datetime.now(UTC) - 2 * HOUR, 1_000)]
    # The list asks for retries that are overdue; a worker's word alone is found by the run's id.
    assert (run_id in found) is (stranded and late == HOUR)
    report = recover(str(run_id), dry_run=True)
    assert report.action == ("rescheduled" if stranded else "refused")


def test_a_stranded_run_is_seen_and_mended(client: SyncPrefectClient, run_in: Any) -> None:
    run_id = run_in(waiting(HOUR), "in_process")
    put(str(run_id), a="done")
    (listed,) = (
        one for one in find_batches(since=datetime.now(UTC) - 2 * HOUR).batches if one.batch_id == str(run_id)
    )
    assert (listed.open, listed.ended) == (True, "AwaitingRetry")
    found = [one for one in checks.waiting_runs(client) if one.where == str(run_id)]
    assert [one.level for one in found] == ["wrong"]
    assert f"batches recover {run_id}" in found[0].mend
    report = recover(str(run_id))
    assert (report.action, report.strategy) == ("rescheduled", "restart_from_last_external")
    run = client.read_flow_run(run_id)
    assert run.state is not None
    assert (run.state.name, run.empirical_policy.retry_type) == ("AwaitingRetry", "reschedule")
    assert not is_stranded(client, run)


def test_the_operation_crashes_stranded_runs(client: SyncPrefectClient, run_in: Any, mine: set[UUID]) -> None:
    stranded, retrying = run_in(waiting(HOUR), "in_process"), run_in(waiting(NOW), "in_process")
    mine.update((stranded, retrying))
    crashed = crash_silent(timedelta(minutes=10))
    assert [one.id for one in crashed] == [stranded]
    state = client.read_flow_run(crashed[0].id).state
    assert state is not None
    assert state.is_crashed()
    assert "for a retry in its process, which is gone" in str(state.message)


# -- the worker's slot


@pytest.mark.parametrize(
    ("state", "force"), [(Crashed(), False), (Failed(message="ConnectionError: reset"), True)]
)
def test_a_recovery_waits_until_the_worker_has_released_the_run(
    client: SyncPrefectClient,
    run_in: Any,
    pool: str,
    state: Any,
    force: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker with --limit ends if it gets a run whose slot it still holds."""
    monkeypatch.setattr(recovery, "CRASH_SETTLES", 600.0)  # its word counts, not the time
    run_id = run_in(Running())
    begun = tell(client, pool, run_id, SUBMITTED)
    client.set_flow_run_state(run_id, state, force=True)
    said: list[str] = []
    waits = threading.Event()

    def progress(sentence: str) -> None:
        said.append(sentence)
        waits.set()

    reports: list[Any] = []
    recovering = threading.Thread(
        target=lambda: reports.append(recover(str(run_id), force=force, progress=progress))
    )
    recovering.start()
    assert waits.wait(60)
    recovering.join(2)
    assert reports == []
    assert client.read_flow_run(run_id).state_name != "AwaitingRetry"
    tell(client, pool, run_id, EXECUTED, begun)
    recovering.join(60)
    (report,) = reports
    assert report.action == "rescheduled"
    assert "until its worker had released it" in report.why
    assert said == [f"Waiting until the worker has released flow run {client.read_flow_run(run_id).name!r}"]
    assert client.read_flow_run(run_id).state_name == "AwaitingRetry"


# -- who did it, and what is known of a process


# -- runs whose heartbeats stopped are called crashed, and no others

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


def test_three_of_its_own_heartbeats_are_the_limit_and_their_age_is_shown(client, run_with, monkeypatch):
    monkeypatch.setattr(closing, "SKEW", 0.0)  # one machine has one clock
    often, once = run_with(Running(), beats=(0, 0.2)), run_with(Running(), beats=(0,))
    assert until(lambda: {one.id for one in silent_runs(client)} & {often, once} == {often})
    age = batch_status(str(once)).seconds_silent
    assert age is not None
    assert 0 < age < 3 * closing.FIRST_BEAT
    client.set_flow_run_state(often, Completed(), force=True)
    for run_id in (run_with(Running()), often, UUID(int=1)):
        assert batch_status(str(run_id)).seconds_silent is None


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
    looked = closing.find_lost_runs

    def then_it_ends(*given, **more):
        found = looked(*given, **more)
        client.set_task_run_state(lost, Completed(), force=True)
        return found

    monkeypatch.setattr(closing, "find_lost_runs", then_it_ends)
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
