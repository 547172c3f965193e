"""Prunes and reopens batches. An unknown id is an error that names the nearest known id."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice

from prefect_resilience.base.durations import moment_of
from prefect_resilience.base.policy import closest
from prefect_resilience.durable.batches.audit import ARCHIVES, AUDITS, Audit, one_line, remove
from prefect_resilience.durable.batches.batch import check_batch_id
from prefect_resilience.durable.batches.edge.listing import each_batch, in_order
from prefect_resilience.durable.batches.edge.status import (
    BatchStatus,
    BatchSummary,
    batch_status,
    check_recorded,
)
from prefect_resilience.durable.effects.ledger import PREFIX, Ledger, open_ledger, place_of
from prefect_resilience.durable.effects.opening import BATCHES, change_batch, is_counted, reopen_document
from prefect_resilience.durable.sagas.undo import SAGAS, SagaLog
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.stores.base import Store, scan_all
from prefect_resilience.telemetry.edge.events import emit

NAMED = 2_000
"""An unknown id is compared with so many ids of each kind at most."""


def check_known(ledger: Ledger, batch_id: str) -> None:
    """Raise ConfigurationError for an id that neither the store nor Prefect knows.

    Raises ApiUnavailable if only the Prefect API could know it, and StoreUnavailable.
    """
    if in_ledger(ledger, batch_id):
        return
    from prefect_resilience.durable.batches.edge.flow_runs import find_run

    if find_run(batch_id, by_name=True) is None:
        # The ids of batches that did an external effect or have an audit log.
        known = (scan_all(ledger.store, prefix) for prefix in (BATCHES, AUDITS))
        ids = {document.value["batch"] for entries in known for _, document in islice(entries, NAMED)}
        near = closest(batch_id, sorted(ids))
        mend = "Check that PREFECT_RESILIENCE_STORE_URL names the right store."
        if near is not None:
            mend = f"Did you mean {near!r}?"
        raise ConfigurationError(f"No batch or flow run {batch_id!r}. {mend}")


def check_here(ledger: Ledger, batch_id: str) -> None:
    """`check_known`, and raise NotRecorded if another store has the records of the batch."""
    if not in_ledger(ledger, batch_id):
        check_known(ledger, batch_id)
        check_recorded(ledger, batch_id)


def in_ledger(ledger: Ledger, batch_id: str) -> bool:
    """Whether the store has any document of a batch: effects, savepoints, an audit log or an archive."""
    places = [place_of(batch_id, prefix=prefix) for prefix in (PREFIX, AUDITS, SAGAS, ARCHIVES)]
    return any(ledger.store.load(place[:-1]) or ledger.store.scan(place, None, 1) for place in places)


def prune(
    older_than: datetime | timedelta,
    *,
    dry_run: bool = False,
    by: str | None = None,
    store: Store | str | None = None,
) -> list[BatchSummary]:
    """Archive batches without activity since `older_than` and remove them from the ledger. Returns them.

    Args:
        older_than: A time (without an offset: in UTC), or a span before now. Choose a longer span than any
            run may be run again: a later run of a pruned batch sends nothing, since its records are gone.
        dry_run: Change nothing; only return the batches.
        by: Who prunes them; default: the user and host, or the flow run.

    Effects stay in the archive for a year; savepoints do not. A batch with an effect in progress stays
    in the ledger. So does a batch in doubt or with an unfinished rollback, unless it was abandoned.
    Raises StoreUnavailable.
    """
    from prefect_resilience.durable.batches.edge.flow_runs import who

    if isinstance(older_than, timedelta) and older_than < timedelta():
        raise ConfigurationError(f"older_than={older_than} must not be negative: write a span before now")
    ledger, person = open_ledger(store), by or who()
    before = moment_of(older_than, datetime.fromtimestamp(ledger.store.now(), UTC)).timestamp()
    pruned: list[BatchSummary] = []
    for batch in each_batch(ledger):
        if batch.last_at >= before or not _may_go(ledger, batch, before):
            continue
        if not dry_run:
            removed = remove(ledger, batch.batch_id, why="it is old", by=person)
            about = {"outcome": "pruned", "why": f"{removed} effects were archived"}
            Audit(ledger, batch.batch_id).note(person, "prune", **about)
        pruned.append(batch)
    return in_order(pruned)


def _may_go(ledger: Ledger, batch: BatchSummary, before: float) -> bool:
    """Whether nothing happened in a batch since, and nothing in it is unfinished or, unless it was abandoned,
    in doubt."""
    saga = SagaLog(ledger, batch.batch_id).document()
    marks = (*saga["savepoints"], saga["rollback"], saga["last"])
    if batch.intended or any(mark is not None and mark["at"] >= before for mark in marks):
        return False
    return batch.abandoned_at is not None or not (batch.unknown or saga["rollback"])


def reopen(
    batch_id: str, *, by: str | None = None, reason: str | None = None, store: Store | str | None = None
) -> BatchStatus:
    """Continue a batch whose records the ledger lost: only its current records count. Returns its status.

    Check the receivers first: the next run sends every effect that the ledger does not have.

    Args:
        by: Who reopens it; default: the user and host, or the flow run.
        reason: Why, for the audit log.

    Raises ConfigurationError for a batch that neither the ledger nor Prefect knows, and StoreUnavailable.

    Example: `reopen("invoices-2026-11", reason="the disk was replaced; the bank has none of them")`
    """
    from prefect_resilience.durable.batches.edge.flow_runs import who

    ledger = open_ledger(store)
    check_known(ledger, check_batch_id(batch_id))
    count = sum(is_counted(effect) for effect, _ in ledger.effects(batch_id))
    now = ledger.store.now()
    change_batch(ledger, batch_id, lambda document: reopen_document(document, batch_id, count, now))
    about = {"outcome": "settled", "why": f"only the {count} effects in the ledger count from now on"}
    entry = Audit(ledger, batch_id).note(one_line(by) or who(), "reopen", reason, **about)
    emit("batch.reopened", "batch", batch_id, {"effects": count, "by": entry.by, "reason": entry.reason})
    return batch_status(batch_id, store=ledger.store)
