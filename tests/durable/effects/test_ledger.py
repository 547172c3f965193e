"""Owners that die, stores that come and go, and callers that are interrupted in between."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from functools import partial

import pytest
from prefect import flow

from prefect_resilience import StoreUnavailable, resilient_task
from prefect_resilience.base import places
from prefect_resilience.durable.effects import ledger, owner
from prefect_resilience.durable.effects.ledger import Ledger, open_ledger, place_of, remedy
from prefect_resilience.durable.effects.model import AlreadyDone, FailedCall, InProgress, Send, Succeeded
from prefect_resilience.effects import Effect, NotDone, batch
from prefect_resilience.errors.exceptions import InDoubt
from prefect_resilience.stores import MemoryStore
from tests.durable.effects.test_effects_in_runs import abandoned
from tests.guards.circuits.conftest import HandStore
from tests.prefect_runs import until

PLACE = place_of("b", "k")


class LeaseStore(HandStore):
    """It counts the renewals of the lease, and the calls while it is away."""

    def __init__(self):
        super().__init__()
        self.renewals = self.refused = 0

    def swap(self, key, *args, **options):
        version = super().swap(key, *args, **options)
        self.renewals += key.startswith(owner.PREFIX)
        return version

    def delete(self, *args):
        self._contact()
        return super().delete(*args)

    def _contact(self):
        self.refused += self.away
        super()._contact()


@pytest.fixture
def store(monkeypatch):
    monkeypatch.setattr(owner, "TICK_SECONDS", 0.01)
    made = LeaseStore()
    yield made
    made.away = False
    made_owner = owner.owner_in(made)
    for claim in list(made_owner._held):
        made_owner.drop(claim)


def elsewhere(store) -> Ledger:
    """The ledger as another process sees it."""
    other = Ledger(store)
    other.owner = owner.Owner(store)
    return other


def of_another_machine(monkeypatch):
    """A process whose death only its lease can tell."""
    monkeypatch.setattr(owner, "this_process", lambda: None)


def test_one_owner_and_one_lease_for_all(store):
    here, there = Ledger(store), elsewhere(store)
    assert here.intend(PLACE, "c1", "external", {"key": "k"}) == Send(known=False)
    assert here.intend(place_of("b", "l"), "c2", "external", {"key": "l"}) == Send(known=False)
    assert there.look(PLACE) == here.look(PLACE) == InProgress()
    assert there.intend(PLACE, "c3", "external", {"key": "k"}) == InProgress()
    assert not there.owner._held
    here.report(PLACE, Succeeded("c1", {"as": "json", "value": 1}, "m"))
    assert there.look(PLACE) == AlreadyDone({"as": "json", "value": 1}, "m")
    assert store.renewals == 2
    assert [effect["key"] for effect, _ in here.effects("b")] == ["k", "l"]


def test_a_lease_is_renewed_while_calls_go_on_and_revived_when_it_was_lost(store, monkeypatch):
    of_another_machine(monkeypatch)
    monkeypatch.setattr(owner, "RENEW_SECONDS", 0.02)
    here, there = Ledger(store), elsewhere(store)
    here.intend(PLACE, "c1", "external", {})
    for _ in range(5):
        renewals = store.renewals
        store.time += owner.LEASE_SECONDS * 0.6
        until(lambda: store.renewals > renewals + 1)  # noqa: B023
        assert there.look(PLACE) == InProgress()
    first = here.owner.id
    store.away = True
    time.sleep(0.05)
    store.time += 2 * (owner.LEASE_SECONDS + owner.QUIET_SECONDS)
    store.away = False
    renewals = store.renewals
    until(lambda: store.renewals > renewals)
    assert here.owner.id == first
    assert there.look(PLACE) == InProgress(), "it lives, and its claim is the last one"
    assert here.intend(place_of("b", "l"), "c2", "external", {}) == Send(known=False)
    assert there.look(place_of("b", "l")) == InProgress()


def test_a_store_that_goes_away_between_the_intention_and_the_call(store):
    here = Ledger(store)
    here.owner.hold("warm")
    swap = store.swap

    def taken_and_lost(*args):
        swap(*args)
        store.away = True
        raise StoreUnavailable("the answer was lost")

    store.swap = taken_and_lost
    with pytest.raises(StoreUnavailable):
        here.intend(PLACE, "c1", "external", {})
    store.swap, store.away = swap, False
    until(lambda: not here.owner._reports)
    assert here.look(PLACE) == Send(), "it was withdrawn, since nothing was sent"


def test_a_report_is_made_until_the_store_takes_it(store, monkeypatch):
    monkeypatch.setattr(ledger, "RECORD_FOR", 0.1)
    here = Ledger(store)
    here.intend(PLACE, "c1", "external", {})
    store.away = True
    with pytest.raises(StoreUnavailable):
        here.report_patiently(PLACE, Succeeded("c1", 1))
    assert here.owner.lives(here.owner.id, "c1")
    store.away = False
    until(lambda: not here.owner.busy)
    assert isinstance(here.look(PLACE), AlreadyDone)


def test_a_report_that_makes_no_sense_does_not_hold_up_others(store, caplog):
    here = Ledger(store)
    here.intend(PLACE, "c1", "external", {})
    here.report_later("", FailedCall("c0"))
    here.report_later(PLACE, FailedCall("c1"))
    until(lambda: not here.owner.busy)
    assert here.look(PLACE) == Send()
    assert "could not be recorded" in caplog.text


def test_a_lease_that_cannot_be_written_down(store, monkeypatch, caplog):
    monkeypatch.setattr(owner, "RENEW_SECONDS", -1.0)
    here = Ledger(store)
    here.intend(PLACE, "c1", "external", {})
    monkeypatch.setattr(owner, "this_process", lambda: object())
    until(lambda: "lease of this process's effects could not be renewed" in caplog.text)


def test_a_store_in_which_others_are_always_first(store, monkeypatch):
    monkeypatch.setattr(ledger, "MOST_CHANGES", 3)
    here = Ledger(store)
    here.owner.hold("c1")
    monkeypatch.setattr(store, "swap", lambda *args: 0)
    with pytest.raises(StoreUnavailable, match="too many concurrent changes"):
        here.intend(PLACE, "c1", "external", {})


def test_a_hold_that_fails_holds_nothing(store):
    here = elsewhere(store)
    store.away = True
    with pytest.raises(StoreUnavailable):
        here.intend(PLACE, "c1", "external", {})
    assert not here.owner.busy


def test_leaving_in_order(store):
    here = Ledger(store)
    here.intend(PLACE, "c1", "external", {})
    here.report_later(PLACE, FailedCall("c1"))
    here.owner.leave()
    assert store.load(owner.PREFIX + here.owner.id) is None
    elsewhere(store).owner.leave()


def test_leaving_while_the_store_is_away(store):
    there = elsewhere(store)
    there.intend(PLACE, "c1", "external", {})
    refused = store.refused
    store.away = True
    there.owner.leave()
    assert store.refused == refused, "the call may still run, until the process is gone"
    there.owner.drop("c1")
    there.owner.leave()
    assert store.refused > refused, "nobody tried to end the lease"
    store.away = False
    assert store.load(owner.PREFIX + there.owner.id) is not None, "its lease ends by itself"


def test_a_ledger_that_is_configured_wrongly(monkeypatch):
    monkeypatch.setattr(places, "documents", lambda: "nowhere://at/all")
    with pytest.raises(StoreUnavailable, match="nowhere"):
        open_ledger()


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("the root flow run, which identifies the batch, could not be read: ConnectError", "Prefect API"),
        ("could not extend file base/5/16389: No space left on device", "free some space"),
        ("database or disk is full", "free some space"),
        ("MISCONF Redis is configured to save RDB snapshots", "free some space"),
        ("-NOREPLICAS Not enough good replicas to write.", "min-replicas-to-write"),
        ("database is locked", "holds its lock"),
        ("canceling statement due to lock timeout", "holds its lock"),
        ('password authentication failed for user "ada"', "the user and the password"),
        ("NOAUTH Authentication required.", "the user and the password"),
        ("permission denied for table prefect_resilience_documents", "give this program write access"),
        (
            "the store sqlite:////a?timeout=1 could not answer: [Errno 20] Not a directory: '/full'",
            "write access",
        ),
        ("Error 111 connecting to localhost:6379. Connection refused.", "start it, or correct its address"),
        ("there is no kind of store 'mysql'", "repair it, or set another store"),
    ],
)
def test_remedies(said: str, words: str) -> None:
    assert words in remedy(said)


# -- processes


def test_where_the_system_says_nothing(monkeypatch):
    mine = owner.this_process()
    monkeypatch.setattr(owner, "_stat", lambda pid: None)
    assert owner.this_process() is None
    assert not owner.is_gone(mine)

    def not_yours(pid, signal):
        raise PermissionError

    monkeypatch.setattr(os, "kill", not_yours)
    assert not owner.is_gone(mine)

    def no_proc(*_):
        raise OSError

    monkeypatch.setattr(os, "readlink", no_proc)
    assert owner._machine() is None


def test_a_forked_child_owns_nothing(store):
    here = Ledger(store)
    here.intend(PLACE, "c1", "external", {})

    def look(answers):
        answers.send((here.owner.id, bool(here.owner._held), not owner._state.running))

    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=look, args=(theirs,))
    child.start()
    child.join(20)
    other, holds, no_thread = ours.recv()
    assert other != here.owner.id
    assert (holds, no_thread) == (False, True)


# -- in runs


@pytest.mark.api
@pytest.mark.parametrize("fails", ["look", "intend", "verified", "report_patiently"])
@pytest.mark.parametrize("kind", ["external", "conditional"])
def test_a_store_that_goes_away_at_any_step(kind, fails, monkeypatch):
    calls = []

    # With a circuit it is looked at before it is intended.
    circuit = "looked-through" if fails == "look" else None
    effect = Effect(kind=kind, key="{order}", verify=lambda key: NotDone())

    @resilient_task(effect=effect, retry=None, circuit=circuit)
    def send(order):
        calls.append(order)
        return order

    @flow
    def scenario():
        with batch("b"):
            return send(1)

    def away(*args):
        raise StoreUnavailable("the store is away")

    abandoned("b", "1")
    monkeypatch.setattr(Ledger, fails, away)
    if kind == "external":
        was_sent = fails == "report_patiently"
        with pytest.raises(InDoubt if was_sent else StoreUnavailable):
            scenario()
        assert calls == [1] * was_sent
    else:
        assert scenario() == 1


def test_an_effect_with_nothing_before_its_call_takes_two_steps_and_no_question():
    steps = []

    class Counted(MemoryStore):
        def load(self, key):
            steps.append("load")
            return super().load(key)

        def swap(self, key, *args):
            steps.append("lease" if key.startswith(owner.PREFIX) else "swap")
            return super().swap(key, *args)

    here = Ledger(Counted("memory://counted"))
    here.intend(PLACE, "c1", "external", {})
    here.report(PLACE, Succeeded("c1", 1))
    assert steps == ["lease", "swap", "swap"]
    assert here.intend(PLACE, "c2", "external", {}) == AlreadyDone(1, None)
    assert not here.owner._held


@pytest.mark.api
def test_whoever_is_first_after_both_have_looked():
    """Somebody else claims the effect between the look and the intention: wait, and replay."""
    calls = []

    @resilient_task(effect=Effect(key="{order}"), retry=None, circuit="a-race")
    def send(order):
        calls.append(order)
        return "mine"

    @flow
    def scenario(monkey):
        with batch("b"), pytest.MonkeyPatch.context() as patch:
            intend = Ledger.intend

            def second(self, place, claim, *args):
                other = elsewhere(self.store)
                intend(other, place, "theirs", *args)
                answer = intend(self, place, claim, *args)
                report = partial(other.report, place, Succeeded("theirs", {"as": "json", "value": "theirs"}))
                threading.Timer(0.1, report).start()
                return answer

            patch.setattr(Ledger, "intend", second)
            return send(1, return_state=True)

    state = scenario(None)
    assert (state.name, state.result()) == ("Replayed", "theirs")
    assert calls == []
