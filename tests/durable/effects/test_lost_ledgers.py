"""A ledger that was emptied, evicted in part, or restored from an older copy sends nothing, and says so."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.flow_engine import run_flow
from prefect.states import Scheduled

from prefect_resilience import NotRecorded, dead_letters, resilient_task
from prefect_resilience.durable.batches.edge.marks import flow_run_of_name
from prefect_resilience.durable.effects import opening
from prefect_resilience.durable.effects.ledger import open_ledger
from prefect_resilience.effects import Effect, abandon, batch, batch_status, recover, reopen, rollback, settle
from prefect_resilience.operations.dashboard.desk import Desk
from prefect_resilience.stores import open_store
from prefect_resilience.stores.base import scan_all
from tests.durable.letters import shop
from tests.prefect_runs import until

pytestmark = pytest.mark.api


ORDERS = (1, 2, 3)


class Passes:
    """A flow that sends three messages, and fails after so many in its first pass; then it is run again."""

    def __init__(self, post: Any) -> None:
        self.broken: int | None = 2

        @resilient_task(effect=Effect(key="message:{order}"), retry=None)
        def send(order: int) -> str:
            return post()

        @flow
        def messages() -> list[str]:
            sent = []
            for order in ORDERS:
                if order - 1 == self.broken:
                    raise RuntimeError("the worker is gone")
                sent.append(send(order))
            return sent

        self.flow = messages
        self.id = self.flow(return_state=True).state_details.flow_run_id
        self.broken = None

    def again(self) -> Any:
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(self.id, Scheduled(), force=True)
            return run_flow(self.flow, flow_run=client.read_flow_run(self.id))


@pytest.fixture
def passes(shared: str, post: Any) -> Passes:
    return Passes(post)


def delete(url: str, prefix: str) -> int:
    store = open_store(url)
    return sum(store.delete(place, found.version) for place, found in list(scan_all(store, prefix)))


@pytest.mark.parametrize(
    ("gone", "says"),
    [
        (["effect"], "does not have the batch"),
        (["effects-batch/"], "does not have the batch"),
        (["effects/"], "has 0 of the 2 effects"),
        (["effects/{id}/message:1"], "has 1 of the 2 effects"),
    ],
    ids=["emptied", "without the batch", "without its effects", "without one of them"],
)
def test_nothing_is_sent_by_a_ledger_that_forgot(passes, receiver, shared, gone, says):
    batch = f"effects-batch/{passes.id}"
    until(lambda: sum(open_store(shared).load(batch).value["created"].values()) == 2)
    for prefix in gone:
        assert delete(shared, prefix.replace("{id}", str(passes.id))) > 0
    with pytest.raises(NotRecorded, match=rf"nothing was sent: .*{says}.*batches reopen {passes.id}"):
        passes.again()
    assert sum(receiver.taken.values()) == 2
    reopen(str(passes.id), reason="the receiver has none of them")
    passes.again()
    assert receiver.taken["message:3"] == 1
    assert [effect.state for effect in batch_status(str(passes.id)).effects] == ["done"] * 3
    passes.again()
    assert receiver.taken["message:3"] == 1


def test_an_older_copy_is_noticed_by_what_prefect_knows(tmp_path, monkeypatch, post, receiver, seen):
    file, copy = tmp_path / "ledger.db", tmp_path / "copy.db"
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", f"sqlite:///{file}")
    runs: list[Any] = []

    @resilient_task(effect=Effect(key="message:{order}"), retry=None)
    def send(order: int) -> str:
        return post()

    @flow(retries=1, retry_delay_seconds=0)
    def messages() -> list[str]:
        if runs:
            # Its last effect is in no copy: neither that nor the count of it, as for another process.
            restore(file, copy)
            opening.batches.counts.clear()
            return [send(order) for order in ORDERS]
        send(1)
        store = open_ledger().store
        until(lambda: [one for one in created(store).values() if one == 1])
        copied(file, copy)
        runs.append(send(2, return_state=True).state_details.task_run_id)
        seen.task_run(runs[0])
        # Else it would be counted in the background once the copy is back.
        until(lambda: [one for one in created(store).values() if one == 2])
        raise RuntimeError("after the second")

    with pytest.raises(
        NotRecorded, match="Prefect knows of 1 completed effects that the ledger does not have"
    ):
        messages()
    assert receiver.taken == {"message:1": 1, "message:2": 1}


def created(store: Any) -> dict[str, int]:
    found = [document.value["created"] for _, document in scan_all(store, "effects-batch/")]
    return found[0] if found else {}


def copied(file: Path, copy: Path) -> None:

    with sqlite3.connect(file) as source, sqlite3.connect(copy) as target:
        source.backup(target)


def restore(file: Path, copy: Path) -> None:

    with sqlite3.connect(copy) as source, sqlite3.connect(file) as target:
        source.backup(target)


# -- a command on another store than that of the run: nothing is changed, and it says what to set


MEND = "set PREFECT_RESILIENCE_STORE_URL to the store that its run used"


@pytest.fixture
def laptop(tmp_path: Path) -> str:
    """The store of a laptop that talks to the fleet's API."""
    return f"sqlite:///{tmp_path}/laptop.db"


@pytest.fixture
def failed(shared: str, post: Callable[..., Any]) -> Callable[[str | None], str]:
    """A flow run that did an effect, in its own batch or in one with a name, and failed; its id."""

    @resilient_task(effect=Effect(key="message:{order}"), retry=None)
    def send(order: int) -> str:
        return post()

    @flow
    def inner() -> None:
        send(1)

    @flow
    def messages(name: str | None) -> None:
        if name is None:
            inner()
        else:
            with batch(name):
                inner()
        raise ConnectionError("after it")

    return lambda name: str(messages(name, return_state=True).state_details.flow_run_id)


@pytest.fixture(params=["its own", "a name"])
def lost(request: pytest.FixtureRequest, failed: Any) -> str:
    """The id by which a person asks for a batch."""
    if request.param == "its own":
        return failed(None)
    name = f"invoices-{uuid4()}"
    failed(name)
    with get_client(sync_client=True) as client:
        # The API learns of a task run and of its tags some moments later.
        until(lambda: flow_run_of_name(client, name))
    return name


WAYS: dict[str, Callable[[str, str], Any]] = {
    "recover": lambda one, url: recover(one, store=url),
    "a dry run": lambda one, url: recover(one, dry_run=True, store=url),
    "restart": lambda one, url: recover(one, "restart", store=url),
    "compensate": lambda one, url: recover(one, "compensate", store=url),
    "abandon": lambda one, url: abandon(one, store=url),
    "rollback": lambda one, url: rollback(one, store=url),
    "settle": lambda one, url: settle(one, "message:1", "not_done", store=url),
    "the dashboard": lambda one, url: Desk(store=url).recover(one),
}


def test_nothing_is_changed_on_another_store(lost: str, laptop: str) -> None:
    for tried in WAYS.values():
        with pytest.raises(NotRecorded, match=f"nothing was changed: .*laptop.db.*{MEND}"):
            tried(lost, laptop)
    hint = batch_status(lost, store=laptop).hint
    assert hint is not None
    assert (hint.strategy, hint.automatic, MEND in hint.why) == ("manual_only", False, True)
    assert [place for place, _ in scan_all(open_ledger(laptop).store, "effects")] == []


def test_the_right_store_and_a_run_without_effects_are_recovered(
    shared: str, failed: Any, laptop: str
) -> None:
    lost = failed(None)
    assert recover(lost, dry_run=True).strategy == "restart_from_last_external"
    assert batch_status(lost).hint.strategy == "restart_from_last_external"  # pyright: ignore[reportOptionalMemberAccess]

    @flow
    def plain() -> None:
        raise ConnectionError("no effects")

    run_id = str(plain(return_state=True).state_details.flow_run_id)
    assert recover(run_id, dry_run=True, store=laptop).strategy == "restart_batch"


def test_a_person_may_insist_and_that_is_recorded(failed: Any, laptop: str) -> None:
    lost = failed(None)
    assert recover(lost, force=True, by="ada", store=laptop).action == "told"
    (entry,) = batch_status(lost, store=laptop).audit
    assert (entry.by, entry.asked, entry.force) == ("ada", "auto", True)
    reopen(lost, store=laptop)
    assert recover(lost, dry_run=True, store=laptop).strategy == "restart_batch"


def test_a_letter_in_another_store_is_not_replayed_against_an_empty_ledger(
    shared: str, laptop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`dead-letters replay --store FLEET` on a laptop: the letters are the fleet's, the ledger is not."""

    monkeypatch.setenv("RECEIVER", "http://127.0.0.1:9")

    @flow
    def orders() -> None:
        shop.pay(7)

    orders(return_state=True)
    (letter,) = dead_letters.list(store=shared)
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", laptop)
    for dry_run in (True, False):
        (outcome,) = dead_letters.replay(letter.id, dry_run=dry_run, store=shared).outcomes
        assert outcome.result == "skipped"
        assert MEND in outcome.message
    assert dead_letters.get(letter.id, store=shared).status == "waiting"
