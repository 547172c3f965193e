"""One batch from its crash to the archive, in every store: the same answers from each."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prefect.states import Crashed

from prefect_resilience.durable.batches.audit import archived_effects, archived_saga
from prefect_resilience.durable.effects.ledger import PREFIX, open_ledger
from prefect_resilience.durable.sagas.undo import SAGAS, SagaLog
from prefect_resilience.effects import (
    abandon,
    batch,
    batch_status,
    list_batches,
    prune,
    recover,
    rollback,
    savepoint,
    settle,
)
from prefect_resilience.stores import Store
from prefect_resilience.stores.base import scan_all
from tests.durable.effects.test_recovery import book, put, undone
from tests.durable.effects.test_recovery import deployed as deployed

pytestmark = [pytest.mark.api, pytest.mark.usefixtures("crashes_settle")]

LATER = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture(params=["shared", "postgres_url", "redis_url"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store of each kind, as the configured one."""
    url = request.getfixturevalue(request.param)
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", url)
    undone.clear()
    return open_ledger().store


def sagas(store: Store) -> list[str]:
    return [key for key, _ in scan_all(store, SAGAS)]


@pytest.mark.requirement("004.07", "004.16")
def test_hints_recoveries_and_the_audit_log(store: Store, deployed: Any) -> None:
    run_id = deployed(Crashed())
    put(run_id, a="done", b="failed", c="unknown")
    hint = batch_status(run_id).hint
    assert hint is not None
    assert (hint.strategy, hint.waiting, hint.skip) == ("manual_only", ("c",), ("a",))
    assert recover(run_id).action == "told"
    assert settle(run_id, "c", "not_done", by="ada").state == "failed"
    assert recover(run_id, dry_run=True).strategy == "restart_from_last_external"
    report = recover(run_id, reason="it is back", by="ada")
    assert (report.action, report.flow_run_id) == ("rescheduled", run_id)
    assert [(one.asked, one.outcome) for one in report.audit] == [
        ("auto", "told"),
        ("settle", "settled"),
        ("auto", "rescheduled"),
    ]
    assert batch_status(run_id).audit == report.audit
    assert abandon(run_id, force=True).action == "abandoned"
    assert [one.key for one in batch_status(run_id).effects] == ["a"]
    assert sorted(one["effect"]["key"] for one in archived_effects(open_ledger(), run_id)) == ["a", "b", "c"]


def test_a_rollback_with_one_that_is_given_up_and_the_archive(store: Store) -> None:
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
    assert len(archived_effects(open_ledger(), "trip")) == 5
    kept = archived_saga(open_ledger(), "trip")
    assert kept is not None
    assert (kept["by"], kept["saga"]["last"]["skipped"]) == ("ada", 1)
    assert [one.outcome for one in batch_status("trip").audit] == ["settled", "pruned"]


@pytest.mark.requirement("004.24")
def test_what_prune_leaves_alone(store: Store) -> None:
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
