"""A ledger that was emptied, evicted in part, or restored from an older copy sends nothing, and says so."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.flow_engine import run_flow
from prefect.states import Scheduled

from prefect_resilience import NotRecorded, resilient_task
from prefect_resilience.durable.effects import opening
from prefect_resilience.durable.effects.ledger import open_ledger
from prefect_resilience.effects import Effect, batch_status, reopen
from prefect_resilience.stores import open_store
from prefect_resilience.stores.base import scan_all
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
