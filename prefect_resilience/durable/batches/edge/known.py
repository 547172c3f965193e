"""Lists, prunes and reopens batches. An unknown id is an error that names the nearest known id."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from prefect_resilience.base.policy import closest
from prefect_resilience.durable.batches.audit import ARCHIVES, AUDITS, SAGA_ARCHIVES, Audit, remove, said
from prefect_resilience.durable.batches.batch import check_batch_id
from prefect_resilience.durable.batches.edge.flow_runs import (
    ApiUnavailable,
    BatchRun,
    find_run,
    runs_that_ended_badly,
    who,
)
from prefect_resilience.durable.batches.edge.status import (
    BatchStatus,
    BatchSummary,
    abandonments,
    batch_status,
    in_order,
    list_batches,
)
from prefect_resilience.durable.effects.ledger import PREFIX, Ledger, open_ledger, place_of, scanned
from prefect_resilience.durable.effects.opening import change_batch, is_counted, reopened_batch
from prefect_resilience.durable.sagas.report import SAGAS
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.stores.base import Store
from prefect_resilience.telemetry.edge.events import emit

LISTED = 5


def check_known(ledger: Ledger, batch_id: str) -> None:
    """Raise ConfigurationError for an id that neither the store nor Prefect knows.

    Raises ApiUnavailable if only the Prefect API could know it, and StoreUnavailable.
    """
    if in_ledger(ledger, batch_id):
        return
    try:
        run = find_run(batch_id, ())
    except ApiUnavailable as error:
        raise ApiUnavailable(
            f"The ledger has no batch {batch_id!r}. Whether a flow run has that id is unknown: {error}"
        ) from error
    if run is None:
        raise ConfigurationError(unknown(batch_id, sorted(set(batch_ids(ledger)))))


_PLACES = {PREFIX: None, AUDITS: None, SAGAS: None, ARCHIVES: "effect", SAGA_ARCHIVES: "saga"}
"""The prefixes of a batch's documents, and the field of the document that has the batch's id."""


def in_ledger(ledger: Ledger, batch_id: str) -> bool:
    """Whether the store has any document of a batch: effects, savepoints, an audit log or an archive."""
    store = ledger.store
    prefixes = (PREFIX, ARCHIVES)
    return any(store.load(place_of(batch_id, prefix=one)[:-1]) for one in _PLACES.keys() - prefixes) or any(
        store.scan(place_of(batch_id, prefix=one), None, 1) for one in prefixes
    )


def batch_ids(ledger: Ledger) -> Iterator[str]:
    """The ids of all batches in the store, with duplicates."""
    for prefix, inside in _PLACES.items():
        for _, found in scanned(ledger.store, prefix):
            yield (found.value if inside is None else found.value[inside])["batch"]


def unknown(batch_id: str, known: list[str]) -> str:
    """The message for an unknown batch, with the nearest known one."""
    said = f"No batch or flow run {batch_id!r}."
    near = closest(batch_id, known)
    if near is not None:
        return f"{said} Did you mean {near!r}?"
    if not known:
        check = "check that PREFECT_RESILIENCE_STORE_URL names the right store"
        return f"{said} The ledger has no batches: {check}."
    more = f" and {len(known) - LISTED} more" if len(known) > LISTED else ""
    return f"{said} The ledger has {', '.join(map(repr, known[:LISTED]))}{more}."


MOST_RUNS = 1_000
LOOKS_BACK = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class Batches:
    """The batches, those that need a person first, and the failed and crashed flow runs by their ids.

    `trouble`: why the Prefect API was unavailable; in that case only the effects show which batches are open.
    `more`: there are more such runs than were read.
    """

    batches: list[BatchSummary]
    runs: Mapping[str, BatchRun]
    trouble: str | None = None
    more: bool = False


def batches_with_runs(store: Store | str | None = None, since: datetime | None = None) -> Batches:
    """Every batch of the ledger, and every flow run that failed or crashed since `since` (default: 30 days).

    A run without effects is a batch too, and can be recovered. Raises StoreUnavailable.
    """
    ledger = open_ledger(store)
    listed = list_batches(store=ledger.store)
    try:
        found = runs_that_ended_badly(since or datetime.now(UTC) - LOOKS_BACK, MOST_RUNS + 1)
    except ApiUnavailable as error:
        return Batches(listed, {}, str(error))
    runs = {str(run.id): run for run in found[:MOST_RUNS]}
    known = [_with_run(one, runs) for one in listed]
    abandoned = abandonments(ledger)
    named = {name for one in listed for name in (one.batch_id, one.flow_run_id)}
    # Root runs without effects in the ledger, which may still have recorded that they were abandoned.
    others = [
        BatchSummary(
            one,
            first_at=run.since,
            last_at=run.since,
            abandoned_at=abandoned.get(one),
            flow_run_id=one,
            ended=run.state,
        )
        for one, run in runs.items()
        if not run.inner and one not in named
    ]
    return Batches(in_order([*known, *others]), runs, more=len(found) > MOST_RUNS)


def _with_run(batch: BatchSummary, runs: Mapping[str, BatchRun]) -> BatchSummary:
    run = runs.get(batch.batch_id) or runs.get(batch.flow_run_id or "")
    return batch if run is None else replace(batch, ended=run.state, last_at=max(batch.last_at, run.since))


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

    Effects, savepoints and rollbacks stay in the archive for a year. A batch with an effect in progress stays
    in the ledger. So does a batch in doubt or with an unfinished rollback, unless it was abandoned.
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
    # Savepoints of batches without effects.
    for batch_id in sagas.keys() - {one.batch_id for one in batches}:
        if max(_times(sagas[batch_id])) < before and sagas[batch_id]["rollback"] is None:
            remove(ledger, batch_id, why="it is old", by=person)
    return old


def _may_go(one: BatchSummary, saga: dict[str, Any] | None) -> bool:
    cut_off = saga is not None and saga["rollback"] is not None
    return not one.intended and ((not one.unknown and not cut_off) or one.abandoned_at is not None)


def _times(saga: dict[str, Any] | None) -> Iterator[float]:
    """The times of a batch's savepoints and rollbacks; at least 0.0."""
    yield 0.0
    for mark in [] if saga is None else [*saga["savepoints"], saga["rollback"], saga["last"]]:
        if mark is not None:
            yield mark["at"]


def _seconds(older_than: datetime | timedelta, now: float) -> float:
    if isinstance(older_than, timedelta):
        if older_than < timedelta():
            raise ConfigurationError(f"older_than={older_than} must not be negative: write a span before now")
        return now - older_than.total_seconds()
    moment = older_than if older_than.tzinfo else older_than.replace(tzinfo=UTC)
    return moment.timestamp()


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
    ledger = open_ledger(store)
    check_known(ledger, check_batch_id(batch_id))
    known = sum(is_counted(effect) for effect, _ in ledger.effects(batch_id))
    now = ledger.store.now()
    change_batch(ledger, batch_id, lambda document: reopened_batch(document, batch_id, known, now))
    audit = Audit(ledger, batch_id)
    why = f"only the {known} effects in the ledger count from now on"
    entry = audit.entry(said(by) or who(), "reopen", reason, outcome="settled", why=why)
    audit.settled(entry)
    emit("batch.reopened", "batch", batch_id, {"effects": known, "by": entry.by, "reason": entry.reason})
    return batch_status(batch_id, store=ledger.store)
