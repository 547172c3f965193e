"""recover, settle, abandon and prune: on real flow runs of a real Prefect API."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.flow_engine import run_flow
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Completed, Crashed, Failed, Pending, Running

from prefect_resilience import Backoff, ConfigurationError, Retry, resilient_flow, resilient_task
from prefect_resilience.durable.batches.audit import KEPT, Audit, effects_in_archive, trail_of
from prefect_resilience.durable.batches.decisions import ApiUnavailable
from prefect_resilience.durable.batches.edge import recovery
from prefect_resilience.durable.batches.strategies import RecoveryTrail
from prefect_resilience.durable.effects.ledger import PREFIX, Ledger, open_ledger, place_of
from prefect_resilience.durable.effects.model import Doubted, Intend, Succeeded, decide
from prefect_resilience.durable.effects.model import FailedCall as NotDone_
from prefect_resilience.durable.sagas.undo import SAGAS, SagaLog
from prefect_resilience.effects import (
    Effect,
    RecoveryPolicy,
    abandon,
    arollback,
    batch,
    batch_status,
    list_batches,
    prune,
    recover,
    rollback,
    savepoint,
    settle,
)
from prefect_resilience.errors.exceptions import EffectBusy
from prefect_resilience.operations.flows import abandon_batch, prune_batches, recover_batch, settle_effect
from prefect_resilience.stores import MemoryStore
from prefect_resilience.stores.base import scan_all

pytestmark = [pytest.mark.api, pytest.mark.usefixtures("crashes_settle")]

EVENTS = {
    "done": lambda: Succeeded("c", {"as": "json", "value": 1}, "m-1"),
    "failed": lambda: NotDone_("c", {"code": "429", "message": "later"}),
    "unknown": lambda: Doubted("c", {"code": "TIMEOUT", "message": "no answer"}),
}


def put(batch_id, store=None, **states):
    """Effects in the ledger, as calls left them; "intended": whoever intended it died."""
    store = open_ledger(store).store
    for number, (key, state) in enumerate(states.items()):
        state, _, kind = state.partition(":")
        about = {"key": key, "batch": batch_id}
        intend = Intend("somebody who died", "c", False, kind or "external", about)
        document, _ = decide(None, intend, store.now() + number / 1_000_000)
        if state != "intended":
            document, _ = decide(document, EVENTS[state](), store.now())
        document["claim"] = uuid4().hex
        assert store.swap(place_of(batch_id, key), 0, document)


@pytest.fixture
def deployed(deployed_run):
    return lambda state, tags=(): str(deployed_run(state, tags=tags).id)


def run_of(run_id) -> Any:
    with get_client(sync_client=True) as client:
        return client.read_flow_run(run_id)


def set_state(run_id, state):
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(run_id, state, force=True)


# -- recovering


def test_a_failed_run_is_recovered_when_its_last_call_has_ended(deployed):
    """An automation asks once, when the run fails; a call that outlived its attempt may still run then."""
    run_id = deployed(Failed())
    ledger, place = open_ledger(), place_of(run_id, "a")
    ledger.intend(place, "c1", "external", {"key": "a", "batch": run_id})
    reports = []
    recovering = threading.Thread(target=lambda: reports.append(recover(run_id)))
    recovering.start()
    recovering.join(1)
    assert reports == [], "somebody is at it"
    ledger.report(place, Succeeded("c1", {"as": "json", "value": 1}))
    recovering.join(30)
    assert [one.action for one in reports] == ["rescheduled"]


@pytest.mark.smoke
@pytest.mark.requirement("004.06")
def test_a_deployed_run_runs_again_under_its_own_id(receiver, post):
    broken = threading.Event()
    broken.set()

    @resilient_task(effect=Effect(key="{batch_id}.{order}"), retry=None)
    def send(order):
        return post()

    @flow
    def invoices():
        sent = [send(1), send(2)]
        if broken.is_set():
            raise ConnectionError("after two of them")
        return [*sent, send(3)]

    deployment_id = invoices.to_deployment("d").apply()
    with get_client(sync_client=True) as client:
        run = client.create_flow_run_from_deployment(deployment_id)
    with pytest.raises(ConnectionError):
        run_flow(invoices, flow_run=run)
    run_id = str(run.id)
    hint = batch_status(run_id).hint
    assert (hint.strategy, hint.skip_until, hint.attempt) == ("restart_from_last_external", f"{run_id}.2", 1)
    planned = recover(run_id, dry_run=True)
    assert (planned.action, planned.dry_run, planned.audit) == ("rescheduled", True, ())
    assert run_of(run_id).state.is_failed(), "a dry run does nothing"

    report = recover(run_id, reason="the network is back", by="ada")
    assert (report.action, report.strategy) == ("rescheduled", "restart_from_last_external")
    assert report.flow_run_id == run_id
    state = run_of(run_id).state
    assert (state.name, state.type.value) == ("AwaitingRetry", "SCHEDULED")
    assert state.state_details.scheduled_time.timestamp() == pytest.approx(report.next_at, abs=1)
    again = recover(run_id)
    assert again.action == "refused"
    assert "already waits for a worker" in again.why

    broken.clear()
    run_flow(invoices, flow_run=run_of(run_id))
    assert run_of(run_id).state.is_completed()
    assert receiver.taken == {f"{run_id}.{order}": 1 for order in (1, 2, 3)}
    assert recover(run_id).action == "nothing"
    told = [(one.by, one.asked, one.outcome, one.reason) for one in batch_status(run_id).audit]
    assert told[0] == ("ada", "auto", "rescheduled", "the network is back")
    assert [one[2] for one in told[1:]] == ["refused", "nothing"]


class Busy(Exception):
    status_code, retry_after = 503, 3_600


def test_a_recovery_waits_until_the_service_is_back_and_counts_no_attempt(deployed, monkeypatch):
    @resilient_task(retry=Retry(attempts=2, backoff=Backoff.none()))
    def ask():
        raise Busy("busy")

    @resilient_flow(recovery=RecoveryPolicy(attempts=1, backoff=Backoff.constant(0)))
    def asks():
        state = ask(return_state=True)
        time.sleep(0.5)  # the flow goes on, and ends later
        state.result()

    with get_client(sync_client=True) as client:
        run = client.create_flow_run_from_deployment(asks.to_deployment("d").apply())
    began = time.time()
    with pytest.raises(Busy):
        run_flow(asks, flow_run=run)
    report = recover(str(run.id))
    assert (report.action, report.waits) == ("rescheduled", True)
    assert began + 3_600 <= report.next_at < time.time() + 3_599.6, "counted from the call, not from the end"
    monkeypatch.setattr(Busy, "retry_after", None)
    set_state(run.id, Pending())  # its time has come
    with pytest.raises(Busy):
        run_flow(asks, flow_run=run_of(run.id))
    report = recover(str(run.id))
    assert (report.action, report.waits) == ("rescheduled", False)
    trail = trail_of(Audit(open_ledger(), str(run.id)).document())
    assert (trail.recoveries, trail.waits) == (1, 1)
    recover(str(run.id), "restart", force=True)
    assert trail_of(Audit(open_ledger(), str(run.id)).document()) == RecoveryTrail()


def test_a_subflow_run_means_its_root(deployed):
    @flow
    def inner():
        raise ConnectionError("inner")

    @flow
    def outer():
        return str(inner(return_state=True).state_details.flow_run_id)

    state = outer(return_state=True)
    root = str(state.state_details.flow_run_id)
    report = recover(state.result(), dry_run=True)
    assert (report.batch_id, report.flow_run_id, report.action) == (root, root, "nothing")


def test_two_at_once_reschedule_once(deployed):
    run_id = deployed(Crashed(message="the worker died"))
    put(run_id, a="done")
    start = threading.Barrier(4)
    reports = []

    def one():
        start.wait()
        reports.append(recover(run_id))

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(report.action for report in reports) == ["refused"] * 3 + ["rescheduled"]
    with get_client(sync_client=True) as client:
        states = client.request("GET", "/flow_run_states/", params={"flow_run_id": run_id}).json()
    assert [state["name"] for state in states].count("AwaitingRetry") == 1
    assert len(batch_status(run_id).audit) == 4


def test_a_batch_that_nobody_knows_is_an_error_and_nothing_is_written(deployed):
    put("typo-2", a="failed")
    abandon("typo-2")
    before = [place for place, _ in scan_all(open_ledger().store, "")]
    for tried in (recover, abandon, rollback, lambda batch_id: recover(batch_id, "restart", dry_run=True)):
        with pytest.raises(
            ConfigurationError, match=r"^No batch or flow run 'typo'. Did you mean 'typo-2'\?$"
        ):
            tried("typo")
    with pytest.raises(ConfigurationError, match="No batch or flow run"):
        recover_batch(str(uuid4()))
    with pytest.raises(ConfigurationError, match="No batch or flow run 'typo'"):
        asyncio.run(arollback("typo"))
    with pytest.raises(ConfigurationError, match="No batch or flow run 'typo'"):
        settle("typo", "a", "done")
    assert [place for place, _ in scan_all(open_ledger().store, "")] == before
    assert recover(deployed(Completed())).action == "nothing", "a flow run without effects is known"
    savepoint("early", batch_id="typo")
    assert recover("typo").action == "nothing", "so is a batch with no more than a savepoint"
    with batch("new"):
        assert rollback().complete
        assert rollback("new").complete, "the batch around this code is meant"


@pytest.mark.requirement("004.18")
def test_a_person_may_insist(deployed):
    run_id = deployed(Failed(message="Flow run encountered an exception: PermissionError: no"))
    put(run_id, a="done")
    assert recover(run_id, "restart").strategy == "restart_from_last_external"
    assert run_of(run_id).state.name == "AwaitingRetry"
    for state in (Running(), Completed()):
        run_id = deployed(state)
        assert recover(run_id, "restart_batch").action == "refused"
        assert recover(run_id, "restart_batch", force=True).action == "rescheduled"
    run_id = deployed(Running())
    report = recover(run_id, force=True)
    assert (report.action, report.strategy) == ("rescheduled", "restart_batch")
    assert recover(run_id, "manual_only", force=True).action == "told"
    with pytest.raises(ConfigurationError, match="did you mean 'restart"):
        recover(run_id, "restrat")


undone = []


def unbook(name):
    undone.append(name)


@resilient_task(effect=Effect(key="{name}", compensate=unbook), retry=None)
def book(name):
    return f"m-{name}"


@flow
def trip(batch_id):
    with batch(batch_id):
        book("flight")
        book("hotel")


def test_what_is_declared_for_permanent_failures_is_done(deployed):
    undone.clear()
    run_id = deployed(Failed(message="Flow run encountered an exception: PermissionError: no"))
    trip(run_id)
    put(run_id, c="failed")
    assert recover(run_id).action == "told", "undeclared, it is left to a person"
    report = recover(run_id, policy=RecoveryPolicy(permanent="compensate"))
    states = {one.key: one.state for one in batch_status(run_id).effects if one.compensates is None}
    assert (report.action, report.strategy, undone) == ("compensated", "compensate", ["hotel", "flight"])
    assert states == {"flight": "compensated", "hotel": "compensated", "c": "failed"}
    assert "it was rolled back" in batch_status(run_id).hint.why
    (listed,) = list_batches()
    assert (listed.compensated, listed.failed, listed.done) == (2, 1, 0)


def test_a_rollback_that_was_cut_off_is_finished(monkeypatch, until):
    undone.clear()
    trip("b")

    def cut_off(name):
        raise KeyboardInterrupt

    with monkeypatch.context() as killed:
        killed.setattr("tests.durable.effects.test_recovery.unbook", cut_off)
        with pytest.raises(KeyboardInterrupt):
            recover("b", "compensate")
    # Whether the hotel knows that it is cancelled, only a person can say.
    until(lambda: batch_status("b").hint.strategy == "manual_only")
    (doubt,) = batch_status("b").hint.waiting
    assert doubt.startswith("compensate:hotel")
    assert list_batches()[0].unknown
    settle("b", doubt, "not_done")
    hint = batch_status("b").hint
    assert (hint.strategy, hint.automatic) == ("compensate", True)
    assert recover("b").action == "compensated"
    assert undone == ["hotel", "flight"]
    assert batch_status("b").hint is None


class Clocked(MemoryStore):
    """The store's clock stands still, and is set forward by the test."""

    def __init__(self, url):
        super().__init__(url)
        self.began, self.ahead = float(int(time.time())), 0.0

    def now(self):
        return self.began + self.ahead


@pytest.mark.requirement("004.17")
def test_pauses_grow_and_a_cap_ends_them(deployed):
    store = Clocked(f"memory://{uuid4().hex}")
    policy = RecoveryPolicy(attempts=3, backoff=Backoff.exponential(600, maximum=5_000, jitter=0.0))
    run_id = deployed(Crashed())
    pauses = []
    for _ in range(3):
        report = recover(run_id, policy=policy, store=store)
        assert report.action == "rescheduled"
        scheduled = run_of(run_id).state.state_details.scheduled_time.timestamp()
        assert scheduled == pytest.approx(report.next_at, abs=1)
        pauses.append(report.next_at - store.now())
        set_state(run_id, Crashed())
        store.ahead += 100
    assert pauses == [0, 500, 1_100], "600 and 1200 s, of which 100 s are over"
    report = recover(run_id, policy=policy, store=store)
    assert (report.action, report.strategy) == ("told", "manual_only")
    assert "3 times in a row" in report.why
    assert recover(run_id, "restart", policy=policy, store=store).action == "rescheduled", "a person may"
    set_state(run_id, Crashed())
    assert recover(run_id, policy=policy, store=store).next_at == store.now()


def test_a_recovery_that_was_cut_off(deployed):
    run_id = deployed(Crashed())
    ledger = open_ledger()
    audit = Audit(ledger, run_id)
    entry = audit.claim("ada", "auto", None)
    assert recover(run_id).action == "refused"
    assert batch_status(run_id).audit[-1].why == "ada is recovering it"
    ledger.owner.drop(entry.id)  # as if its process had died
    assert recover(run_id).action == "rescheduled"
    assert [one.outcome for one in batch_status(run_id).audit] == ["cut_off", "refused", "rescheduled"]
    assert not audit.begin_restart(entry), "whoever lost its claim does nothing any more"
    audit.finish(entry)
    assert audit.document()["claim"] is None


def test_an_error_goes_on_record_and_gives_the_claim_back(deployed, monkeypatch):
    run_id = deployed(Crashed())

    def fails(*_):
        raise RuntimeError("the API said no to Bearer hunter2-never-to-be-seen")

    with monkeypatch.context() as broken:
        broken.setattr(recovery, "run_again", fails)
        with pytest.raises(RuntimeError):
            recover(run_id)
    (entry,) = batch_status(run_id).audit
    assert entry.outcome == "error"
    assert "hunter2" not in entry.why
    assert recover(run_id).action == "rescheduled"


def test_without_the_api(deployed):
    run_id = deployed(Crashed())
    put(run_id, a="done", b="failed")
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        with pytest.raises(ApiUnavailable, match="API is unavailable"):
            recover(run_id)
        hint = batch_status(run_id).hint
    assert hint.strategy == "restart_from_last_external"
    assert "the end of its run is unknown" in hint.why
    assert run_of(run_id).state.is_crashed()


@pytest.mark.requirement("004.16")
def test_the_log_is_bounded():
    ledger = Ledger(MemoryStore(f"memory://{uuid4().hex}"))
    audit = Audit(ledger, "b")
    for number in range(KEPT + 5):
        audit.note("ada", "settle", why=str(number))
    kept = audit.entries()
    assert (len(kept), kept[0].why, kept[-1].why) == (KEPT, "5", str(KEPT + 4))
    assert audit.document()["total"] == KEPT + 5


# -- settling


@pytest.fixture
def doubtful(post, receiver):
    """A flow whose one effect was cut off; what becomes of the next run."""
    receiver.says("cut")

    @resilient_task(effect=Effect(key="invoice:{order}"), retry=None)
    def send(order):
        return post()

    states = []

    @flow
    def invoices(name):
        with batch(name):
            states.append(send(7, return_state=True))

    def run(name):
        invoices(name)
        return states[-1]

    return run


def test_a_person_says_that_it_was_done(doubtful, receiver):
    doubtful("b")
    assert batch_status("b").hint.waiting == ("invoice:7",)
    after = settle("b", "invoice:7", "done", {"id": "m-7"}, "m-7", by="ada", reason="asked them")
    assert (after.state, after.external_id, after.result) == ("done", "m-7", {"id": "m-7"})
    state = doubtful("b")
    assert (state.name, state.result()) == ("Replayed", {"id": "m-7"})
    assert receiver.taken == {"invoice:7": 1}
    (entry,) = batch_status("b").audit
    assert (entry.by, entry.outcome, entry.reason) == ("ada", "settled", "asked them")
    with pytest.raises(ConfigurationError, match="is done and not in doubt"):
        settle("b", "invoice:7", "not_done")


def test_settling_what_cannot_be(doubtful):
    with pytest.raises(ConfigurationError, match="No batch or flow run 'settles-nothing'"):
        settle("settles-nothing", "invoice:7", "done")
    put("b", one="intended", two="done")
    with pytest.raises(ConfigurationError, match="no effect 'onee' in batch 'b'; did you mean 'one'"):
        settle("b", "onee", "done")
    with pytest.raises(ConfigurationError, match="did you mean 'done'"):
        settle("b", "one", "dome")
    with pytest.raises(ConfigurationError, match="only for the answer 'done'"):
        settle("b", "one", "not_done", external_id="m")
    with pytest.raises(ConfigurationError, match="must be plain JSON"):
        settle("b", "one", "done", {1})
    ledger = open_ledger()
    ledger.intend(place_of("b", "three"), "c3", "external", {"key": "three", "batch": "b"})
    with pytest.raises(EffectBusy):
        settle("b", "three", "done")
    assert recover("b").action == "refused"
    ledger.report(place_of("b", "three"), NotDone_("c3"))
    assert settle("b", "one", "done").state == "done"


# -- giving up, and what is old


@pytest.mark.requirement("004.09")
def test_abandon_archives_before_it_clears():
    put("b", a="done", b="failed", c="unknown", d="unknown:idempotent", e="intended")
    planned = abandon("b", dry_run=True)
    assert (planned.action, len(batch_status("b").effects)) == ("abandoned", 5)
    report = abandon("b", reason="sent by hand", by="ada")
    assert (report.action, report.strategy) == ("abandoned", "abandon")
    assert "5 effects archived, 2 of them removed; still in doubt: 'c', 'e'" in report.why
    assert {one.key: one.state for one in batch_status("b").effects} == {
        "a": "done",
        "c": "unknown",
        "e": "unknown",
    }
    kept = effects_in_archive(open_ledger(), "b")
    assert sorted(one["effect"]["key"] for one in kept) == list("abcde")
    assert {(one["by"], one["why"]) for one in kept} == {("ada", "sent by hand")}
    (listed,) = list_batches()
    assert (listed.open, listed.abandoned_at is not None) == (False, True)
    for key in ("c", "e"):
        settle("b", key, "not_done")
    abandon("b")
    assert [one.key for one in batch_status("b").effects] == ["a"], "what is done is never forgotten"
    assert len(effects_in_archive(open_ledger(), "b")) == 5
    put("b", f="failed")
    assert list_batches()[0].open, "something was begun since"


@pytest.mark.requirement("004.24")
def test_prune_archives_what_is_old():
    store = Clocked(f"memory://{uuid4().hex}")
    put("old", store, a="done", b="failed")
    put("in-doubt", store, a="unknown")
    put("given-up", store, a="unknown")
    abandon("given-up", store=store)
    store.ahead += 1_000
    put("new", store, a="done")
    assert sorted(one.batch_id for one in prune(timedelta(seconds=500), dry_run=True, store=store)) == [
        "given-up",
        "old",
    ]
    assert len(list_batches(store=store)) == 4
    before = datetime.fromtimestamp(store.now() - 500, UTC).replace(tzinfo=None)
    assert len(prune(before, store=store)) == 2
    assert [one.batch_id for one in list_batches(store=store)] == ["in-doubt", "new"]
    assert len(effects_in_archive(Ledger(store), "old")) == 2
    assert Audit(Ledger(store), "old").entries()[-1].outcome == "pruned"
    assert prune(timedelta(days=1), store=store) == []
    with pytest.raises(ConfigurationError, match="before now"):
        prune(timedelta(days=-1), store=store)


LATER = datetime(2100, 1, 1, tzinfo=UTC)


def sagas(store):
    return [key for key, _ in scan_all(store, SAGAS)]


def test_a_rollback_with_one_that_is_given_up_and_the_archive():
    undone.clear()
    store = open_ledger().store
    with batch("trip"):
        book("flight")
        savepoint("booked")
        book("hotel")
        book("car")
    settle("trip", "hotel", "kept", by="ada")
    report = rollback("trip", to="booked")
    assert [one.key for one in report.compensated] == ["car"]
    assert rollback("trip").complete
    assert undone == ["car", "flight"]
    states = {one.key: one.state for one in batch_status("trip").effects if one.compensates is None}
    assert states == {"flight": "compensated", "hotel": "done", "car": "compensated"}
    # Pruned, nothing of it is left but the archive and the audit log.
    assert prune(timedelta(days=1)) == []
    assert [one.batch_id for one in prune(LATER, dry_run=True)] == ["trip"]
    assert sagas(store)
    assert [one.batch_id for one in prune(LATER, by="ada")] == ["trip"]
    assert list_batches() == []
    assert [*scan_all(store, PREFIX), *sagas(store)] == []
    assert len(effects_in_archive(open_ledger(), "trip")) == 5
    assert [one.outcome for one in batch_status("trip").audit] == ["settled", "pruned"]


@pytest.mark.requirement("004.24")
def test_what_prune_leaves_alone():
    store = open_ledger().store
    with batch("cut-off"):
        book("flight")
    log = SagaLog(open_ledger(), "cut-off")
    log.begin("claim-of-the-dead", None)
    log.give_up("claim-of-the-dead")
    # A rollback that is to be finished holds its batch.
    assert prune(LATER) == []
    assert sagas(store) == [f"{SAGAS}cut-off"]
    kept = store.load(f"{SAGAS}cut-off")
    assert kept is not None
    assert kept.expires_at is not None
    assert rollback("cut-off").complete
    assert [one.batch_id for one in prune(LATER)] == ["cut-off"]
    assert sagas(store) == []


# -- as flows


def test_the_same_as_flows(deployed):
    run_id = deployed(Crashed())
    put(run_id, a="done", b="unknown")
    assert recover_batch(run_id)["action"] == "told"
    assert settle_effect(run_id, "b", "not_done", reason="asked them") == "failed"
    report = recover_batch(run_id, policy={"attempts": 1})
    assert (report["action"], report["strategy"]) == ("rescheduled", "restart_from_last_external")
    assert "flow run" in report["audit"][-1]["by"]
    json.dumps(report)
    set_state(run_id, Crashed())
    assert abandon_batch(run_id, "enough")["action"] == "abandoned"
    assert prune_batches(0.0) == [run_id]
    with pytest.raises(ConfigurationError, match="0 or more"):
        prune_batches(-1.0)
