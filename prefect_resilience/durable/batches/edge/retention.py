"""prune: what was settled long ago leaves the ledger for the archive."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

from prefect_resilience.durable.batches.audit import Audit, remove, said, scanned
from prefect_resilience.durable.batches.batch import check_batch_id
from prefect_resilience.durable.batches.edge.known import check_known
from prefect_resilience.durable.batches.edge.recovery import who
from prefect_resilience.durable.batches.edge.status import (
    BatchStatus,
    BatchSummary,
    batch_status,
    list_batches,
)
from prefect_resilience.durable.effects.ledger import open_ledger
from prefect_resilience.durable.effects.opening import change_batch, is_counted, reopened_batch
from prefect_resilience.durable.sagas.report import SAGAS
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.stores.base import Store
from prefect_resilience.telemetry.edge.events import emit


def prune(
    older_than: datetime | timedelta,
    *,
    dry_run: bool = False,
    by: str | None = None,
    store: Store | str | None = None,
) -> list[BatchSummary]:
    """Take batches out of the ledger in which nothing has happened for that long; returns those.

    Args:
        older_than: A time (without an offset: in UTC), or a span before now. Choose it longer than any run is
            ever run again: a later run of a pruned batch sends nothing, since its records are gone.
        dry_run: Only say which they are.

    Their effects, savepoints and rollbacks are archived before, where they stay for a year. A batch in which
    something is going on or in doubt stays, unless it was abandoned; so does one whose rollback was cut off.
    Raises StoreUnavailable.
    """
    ledger = open_ledger(store)
    before = _seconds(older_than, ledger.store.now())
    sagas = {found.value["batch"]: found.value for _, found in scanned(ledger.store, SAGAS)}
    batches = list_batches(store=ledger.store)
    old = [
        one
        for one in batches
        if max(one.last_at, *_times(sagas.get(one.batch_id))) < before
        and _may_go(one, sagas.get(one.batch_id))
    ]
    if dry_run:
        return old
    person = by or who()
    for one in old:
        audit = Audit(ledger, one.batch_id)
        removed = remove(ledger, one.batch_id, why="it is old", by=person)
        audit.note(audit.entry(person, "prune", outcome="pruned", why=f"{removed} effects were archived"))
    # Savepoints of batches that did nothing, or whose effects are gone.
    for batch_id in sagas.keys() - {one.batch_id for one in batches}:
        if max(_times(sagas[batch_id])) < before and sagas[batch_id]["rollback"] is None:
            remove(ledger, batch_id, why="it is old", by=person)
    return old


def _may_go(one: BatchSummary, saga: dict[str, Any] | None) -> bool:
    cut_off = saga is not None and saga["rollback"] is not None
    return not one.intended and ((not one.unknown and not cut_off) or one.abandoned_at is not None)


def _times(saga: dict[str, Any] | None) -> Iterator[float]:
    """When something happened to a batch's savepoints."""
    yield 0.0
    for mark in [] if saga is None else [*saga["savepoints"], saga["rollback"], saga["last"]]:
        if mark is not None:
            yield mark["at"]


def _seconds(older_than: datetime | timedelta, now: float) -> float:
    if isinstance(older_than, timedelta):
        if older_than < timedelta():
            raise ConfigurationError(f"older_than={older_than} must be a span before now, not after it")
        return now - older_than.total_seconds()
    moment = older_than if older_than.tzinfo else older_than.replace(tzinfo=timezone.utc)
    return moment.timestamp()


def reopen(
    batch_id: str, *, by: str | None = None, reason: str | None = None, store: Store | str | None = None
) -> BatchStatus:
    """Go on with a batch of which the ledger lost records: what it has now is all that counts. The batch's
    status.

    Look at the receivers first: an effect that the ledger does not have is sent by the next run.

    Args:
        by: Who says so; the user and host, or the flow run, when left out.
        reason: Why, for the audit log.

    Raises ConfigurationError for a batch that neither the ledger nor Prefect knows, and StoreUnavailable.

    Example: `reopen("invoices-2026-11", reason="the disk was replaced; the bank has none of them")`
    """
    ledger = open_ledger(store)
    check_known(ledger, check_batch_id(batch_id))
    known = sum(is_counted(effect) for effect, _ in ledger.effects(batch_id))
    now = ledger.store.now()
    change_batch(ledger, batch_id, lambda document: reopened_batch(document, batch_id, known, now))
    audit = Audit(ledger, batch_id)
    why = f"the {known} effects that the ledger has are all that count"
    entry = audit.entry(said(by) or who(), "reopen", reason, outcome="settled", why=why)
    audit.settled(entry)
    emit("batch.reopened", "batch", batch_id, {"effects": known, "by": entry.by, "reason": entry.reason})
    return batch_status(batch_id, store=ledger.store)
