"""A command on another store than that of the run: nothing is changed, and the sentence says what to set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prefect import flow
from prefect.client.orchestration import get_client

from prefect_resilience import NotRecorded, dead_letters, resilient_task
from prefect_resilience.durable.batches.edge.marks import flow_run_of_name
from prefect_resilience.durable.effects.ledger import open_ledger
from prefect_resilience.effects import Effect, abandon, batch, batch_status, recover, reopen, rollback, settle
from prefect_resilience.operations.dashboard.desk import Desk
from prefect_resilience.stores.base import scan_all
from tests.durable.letters import shop
from tests.prefect_runs import until

pytestmark = pytest.mark.api

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
