"""Recoveries and rollbacks that are killed at any line: the next one goes on, and nothing is done twice."""

import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from uuid import uuid4

import pytest
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, PREFECT_LOGGING_LEVEL, temporary_settings
from prefect.states import Crashed

from prefect_resilience.durable.batches.audit import effects_in_archive
from prefect_resilience.durable.batches.edge import recovery
from prefect_resilience.durable.effects import owner
from prefect_resilience.durable.effects.ledger import open_ledger, place_of
from prefect_resilience.effects import abandon, batch_status, recover
from tests.durable.effects.saga_victim import Saga, done, judge, kill_often, start
from tests.durable.effects.saga_victim import Toll as SagaToll
from tests.durable.effects.test_recovery import put
from tests.durable.effects.victim import answer_of, context, kill_before_line

pytestmark = [pytest.mark.api, pytest.mark.usefixtures("crashes_settle")]


POINTS = (0.1, 0.7, 0.97, 0.99)
"""Where a recovery is killed, as parts of the lines that it runs; more of them where it has begun to act."""


def recovering(what: str, batch_id: str, store: str, api: str, kill_at: int, answers: Connection) -> None:
    """The child's life; sends back how many lines it ran, and what came of it."""
    os.environ["PREFECT_RESILIENCE_STORE_URL"] = store
    recovery.CRASH_SETTLES = 0.0
    with temporary_settings({PREFECT_API_URL: api, PREFECT_LOGGING_LEVEL: "CRITICAL"}):
        lines = kill_before_line(kill_at)
        report = recover(batch_id) if what == "recover" else abandon(batch_id, reason="enough")
        sys.settrace(None)
    answers.send((lines[0], report.action))


def killed(what: str, batch_id: str, store: str, api: str, kill_at: int = 0) -> tuple[int, str] | None:
    """What a recovery in a process of its own says; None when it was killed before."""
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(
        target=recovering, args=(what, batch_id, store, api, kill_at, theirs), daemon=True
    )
    process.start()
    theirs.close()
    return answer_of(process, ours)


def killed_in_the_middle(what: str, make: Callable[[], str], store: str, api: str, point: float) -> str:
    """A batch whose recovery was killed after that part of its lines.

    How many lines a recovery runs depends on how often it waits: one that ended before it could be killed
    tells where to kill the next one.
    """
    lines, action = killed(what, make(), store, api) or (0, "")
    assert action in ("rescheduled", "abandoned")
    for _ in range(5):
        batch_id = make()
        ended = killed(what, batch_id, store, api, int(lines * point))
        if ended is None:
            return batch_id
        lines = ended[0]
    raise AssertionError(f"it ended before line {lines * point:.0f} each time")


@pytest.fixture
def crashed(deployed_run):
    """A new crashed run of a deployed flow; its id."""

    def make():
        run_id = str(deployed_run(Crashed()).id)
        put(run_id, a="done", b="failed")
        return run_id

    return make


def dying_elsewhere(run_id: str, store: str) -> None:
    """The child's life, as on another machine: only the end of its lease tells that it died at an effect."""
    owner.this_process = lambda: None
    owner.LEASE_SECONDS = 3.0
    ledger = open_ledger(store)
    about = {"key": "c", "batch": run_id, "verify": True, "flow_run_id": run_id}
    ledger.intend(place_of(run_id, "c"), "claim", "external", about)
    os.kill(os.getpid(), signal.SIGKILL)


def restarts(run_id: str) -> int:
    with get_client(sync_client=True) as client:
        states = client.request("GET", "/flow_run_states/", params={"flow_run_id": run_id}).json()
    return [state["name"] for state in states].count("AwaitingRetry")


@pytest.mark.timeout(300)
def test_killed_anywhere_the_run_is_scheduled_once(shared, api, crashed):
    seen = set()
    for point in POINTS:
        run_id = killed_in_the_middle("recover", crashed, shared, api, point)
        before = restarts(run_id)
        report = recover(run_id)
        assert (report.action, before) in (("rescheduled", 0), ("refused", 1)), report
        assert restarts(run_id) == 1
        outcomes = [entry.outcome for entry in batch_status(run_id).audit]
        assert outcomes[-1] == report.action
        assert set(outcomes[:-1]) <= {"cut_off", "rescheduled"}
        seen.add(report.action)
    assert seen == {"rescheduled", "refused"}, "kills before and after the run was scheduled"


@pytest.mark.requirement("004.15")
@pytest.mark.long
@pytest.mark.timeout(300)
def test_killed_anywhere_nothing_leaves_the_ledger_without_its_archive(shared, api):
    def batch_id():
        name = f"b-{uuid4().hex}"
        put(name, a="done", b="failed", c="unknown", d="failed", e="unknown:conditional")
        return name

    for point in POINTS:
        name = killed_in_the_middle("abandon", batch_id, shared, api, point)
        kept = {one["effect"]["key"] for one in effects_in_archive(open_ledger(), name)}
        assert kept | {one.key for one in batch_status(name).effects} == set("abcde")
        abandon(name)
        assert [one.key for one in batch_status(name).effects] == ["a", "c"]
        assert len(effects_in_archive(open_ledger(), name)) == 5


@pytest.mark.timeout(120)
def test_a_crash_on_another_machine_is_recovered_when_its_lease_has_ended(shared, crashed):
    """The crash is reported once: a recovery that was refused would be the last."""
    run_id = crashed()
    process = context.Process(target=dying_elsewhere, args=(run_id, shared), daemon=True)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert recover(run_id).action == "rescheduled"
    assert {one.key: one.state for one in batch_status(run_id).effects}["c"] == "unknown"


# -- rollbacks


@pytest.mark.timeout(300)
def test_killed_at_any_line_nothing_is_undone_twice_and_nothing_is_forgotten(receiver, shared, api):
    toll = kill_often(receiver, shared, api, kills=6, count=3, asked=3)
    assert toll.mistakes == []
    assert toll.kills >= 6
    assert toll.undone > 0


@pytest.mark.timeout(120)
def test_two_rollbacks_at_once(receiver, shared, api):
    saga = Saga(receiver.url, shared, api, "both", 6)
    done(saga)
    both = context.Barrier(2)
    said = [answer() for answer in [start(saga, both=both), start(saga, both=both)]]
    reports = sorted((one[1] for one in said if one), key=lambda report: len(report.already))
    assert [len(one.compensated) for one in reports] == [6, 0]
    assert [len(one.already) for one in reports] == [0, 6]
    assert receiver.taken == {saga.key(order): 1 for order in range(6)}
    toll = SagaToll()
    judge(receiver, saga, reports[0], toll)
    assert toll.mistakes == []
