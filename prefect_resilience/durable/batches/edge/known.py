"""Lists, prunes and reopens batches. An unknown id is an error that names the nearest known id."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from prefect_resilience.base.policy import closest
from prefect_resilience.durable.batches.audit import ARCHIVES, AUDITS, SAGA_ARCHIVES, Audit, remove, said
from prefect_resilience.durable.batches.batch import check_batch_id
from prefect_resilience.durable.batches.decisions import ApiUnavailable, BatchRun
from prefect_resilience.durable.batches.edge.listing import (
    EFFECTS_READ,
    BatchCounts,
    LargeLedger,
    batch_of,
    each_batch,
    glance,
    in_order,
    open_batches,
)
from prefect_resilience.durable.batches.edge.status import (
    BatchStatus,
    BatchSummary,
    batch_status,
    check_recorded,
)
from prefect_resilience.durable.effects.ledger import PREFIX, Ledger, open_ledger, place_of
from prefect_resilience.durable.effects.opening import change_batch, is_counted, reopen_document
from prefect_resilience.durable.sagas.undo import SAGAS, SagaLog, new_saga
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.stores.base import Store
from prefect_resilience.stores.connected import prefix_end
from prefect_resilience.telemetry.edge.events import emit

LISTED = 5
NAMED = 2_000
"""An unknown id is compared with so many ids at most."""


def check_known(ledger: Ledger, batch_id: str) -> None:
    """Raise ConfigurationError for an id that neither the store nor Prefect knows.

    Raises ApiUnavailable if only the Prefect API could know it, and StoreUnavailable.
    """
    if in_ledger(ledger, batch_id):
        return
    from prefect_resilience.durable.batches.edge.flow_runs import find_run

    try:
        run = find_run(batch_id, by_name=True)
    except ApiUnavailable as error:
        raise ApiUnavailable(
            f"The ledger has no batch {batch_id!r}. Whether a flow run has that id is unknown: {error}"
        ) from error
    if run is None:
        raise ConfigurationError(unknown(batch_id, sorted(set(batch_ids(ledger)))))


def check_here(ledger: Ledger, batch_id: str) -> None:
    """`check_known`, and raise NotRecorded if another store has the records of the batch."""
    if not in_ledger(ledger, batch_id):
        check_known(ledger, batch_id)
        check_recorded(ledger, batch_id)


_PLACES = {PREFIX: None, AUDITS: None, SAGAS: None, ARCHIVES: "effect", SAGA_ARCHIVES: "saga"}
"""The prefixes of a batch's documents, and the field of the document that has the batch's id."""
_BY_EFFECT = frozenset({PREFIX, ARCHIVES})
"""Those with one document per effect."""


def in_ledger(ledger: Ledger, batch_id: str) -> bool:
    """Whether the store has any document of a batch: effects, savepoints, an audit log or an archive."""
    store = ledger.store
    return any(
        store.load(place_of(batch_id, prefix=prefix)[:-1]) for prefix in _PLACES.keys() - _BY_EFFECT
    ) or any(store.scan(place_of(batch_id, prefix=prefix), None, 1) for prefix in _BY_EFFECT)


def batch_ids(ledger: Ledger) -> Iterator[str]:
    """The ids of batches in the store, with duplicates; at most NAMED below each prefix."""
    for prefix, inside in _PLACES.items():
        after: str | None = None
        for _ in range(NAMED):
            page = ledger.store.scan(prefix, after, 1)
            if not page:
                break
            value = page[0][1].value
            batch_id = (value if inside is None else value[inside])["batch"]
            yield batch_id
            # The next batch: everything below this one is skipped.
            after = page[0][0] if prefix not in _BY_EFFECT else prefix_end(place_of(batch_id, prefix=prefix))


def unknown(batch_id: str, known: list[str]) -> str:
    """The message for an unknown batch, with the nearest known one."""
    message = f"No batch or flow run {batch_id!r}."
    near = closest(batch_id, known)
    if near is not None:
        return f"{message} Did you mean {near!r}?"
    if not known:
        check = "check that PREFECT_RESILIENCE_STORE_URL names the right store"
        return f"{message} The ledger has no batches: {check}."
    hidden = len(known) - LISTED
    more = " and more" if len(known) >= NAMED else f" and {hidden} more" if hidden > 0 else ""
    return f"{message} The ledger has {', '.join(map(repr, known[:LISTED]))}{more}."


MOST_RUNS = 1_000


@dataclass(frozen=True, slots=True)
class Batches:
    """The batches, those that need a person first, and the failed and crashed flow runs by their ids.

    `counts` has the numbers of all batches, also of those beyond the limit. `trouble`: why the Prefect API
    was unavailable; in that case only the effects show which batches are open. `more`: there are more such
    runs than were read. `left_out`: batches without an open effect and without such a run are neither listed
    nor counted, because the ledger is large.
    """

    batches: list[BatchSummary]
    counts: BatchCounts
    runs: Mapping[str, BatchRun]
    trouble: str | None = None
    more: bool = False
    left_out: bool = False


def find_batches(
    store: Store | str | None = None,
    since: datetime | None = None,
    *,
    limit: int | None = None,
    only_open: bool = False,
    every: bool = True,
) -> Batches:
    """The batches of the ledger, and the flow runs that failed or crashed since `since`.

    A run without effects is a batch too, and can be recovered. Without `since`, the Prefect API is not asked
    for runs. Without `every`, a bounded number of effects is read: if there are more, the open batches are
    listed, as `glance` sees them. Raises StoreUnavailable.
    """
    ledger = open_ledger(store)
    listed = Batches([], BatchCounts(), {})
    if since is not None:
        from prefect_resilience.durable.batches.edge.flow_runs import runs_that_ended_badly

        try:
            runs = runs_that_ended_badly(since, MOST_RUNS + 1)
            by_id = {str(run.id): run for run in runs[:MOST_RUNS]}
            listed = replace(listed, runs=by_id, more=len(runs) > MOST_RUNS)
        except ApiUnavailable as error:
            listed = replace(listed, trouble=str(error))

    def first(batches: Iterable[BatchSummary], counts: BatchCounts, left_out: bool = False) -> Batches:
        with_runs = _with_runs(ledger, batches, listed.runs)
        wanted = (batch for batch in with_runs if batch.open or not only_open)
        ordered = in_order(counts.counting(wanted), limit)
        return replace(listed, batches=ordered, counts=counts, left_out=left_out)

    if listed.runs or not only_open:
        with suppress(LargeLedger):
            return first(each_batch(ledger, None if every else EFFECTS_READ), BatchCounts())
    counts = BatchCounts()
    opened = open_batches(ledger) if every else glance(ledger, counts)
    return first(opened, counts, left_out=not only_open)


def _with_runs(
    ledger: Ledger, batches: Iterable[BatchSummary], runs: Mapping[str, BatchRun]
) -> Iterator[BatchSummary]:
    """The batches, each with the end of its run; then those of the other runs."""
    named = set[str]()
    for batch in batches:
        named.update(runs.keys() & {batch.batch_id, batch.flow_run_id})
        yield _with_run(batch, runs)
    for run_id, run in runs.items():
        if run_id in named:
            continue
        if (settled := batch_of(ledger, run_id)) is not None:
            yield _with_run(settled, runs)
        elif not run.inner:
            # A root run without effects in the ledger may still have recorded that it was abandoned.
            abandoned = Audit(ledger, run_id).document().get("abandoned_at")
            yield BatchSummary(
                run_id,
                first_at=run.since,
                last_at=run.since,
                abandoned_at=abandoned,
                flow_run_id=run_id,
                ended=run.state,
            )


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
    return in_order(pruning(older_than, dry_run=dry_run, by=by, store=store))


def pruning(
    older_than: datetime | timedelta,
    *,
    dry_run: bool = False,
    by: str | None = None,
    store: Store | str | None = None,
) -> Iterator[BatchSummary]:
    """`prune`, batch by batch: any number of batches takes little memory. A batch was removed when the
    iterator returns it."""
    from prefect_resilience.durable.batches.edge.flow_runs import acting_run, who

    ledger = open_ledger(store)
    before = _seconds(older_than, ledger.store.now())
    person = by or who()
    for batch in each_batch(ledger):
        if batch.last_at >= before or not _may_go(ledger, batch, before):
            continue
        if not dry_run:
            removed = remove(ledger, batch.batch_id, why="it is old", by=person)
            about = {"outcome": "pruned", "why": f"{removed} effects were archived"}
            Audit(ledger, batch.batch_id).note(person, "prune", **about, acting_run=acting_run())
        yield batch


def _may_go(ledger: Ledger, one: BatchSummary, before: float) -> bool:
    """Whether nothing happened in a batch since, and nothing in it is unfinished or, unless it was abandoned,
    in doubt."""
    saga = SagaLog(ledger, one.batch_id).saga() or new_saga(one.batch_id)
    marks = (*saga["savepoints"], saga["rollback"], saga["last"])
    if one.intended or any(mark is not None and mark["at"] >= before for mark in marks):
        return False
    return one.abandoned_at is not None or not (one.unknown or saga["rollback"])


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
    from prefect_resilience.durable.batches.edge.flow_runs import acting_run, who

    ledger = open_ledger(store)
    check_known(ledger, check_batch_id(batch_id))
    count = sum(is_counted(effect) for effect, _ in ledger.effects(batch_id))
    now = ledger.store.now()
    change_batch(ledger, batch_id, lambda document: reopen_document(document, batch_id, count, now))
    why = f"only the {count} effects in the ledger count from now on"
    about = {"outcome": "settled", "why": why, "acting_run": acting_run()}
    entry = Audit(ledger, batch_id).note(said(by) or who(), "reopen", reason, **about)
    emit("batch.reopened", "batch", batch_id, {"effects": count, "by": entry.by, "reason": entry.reason})
    return batch_status(batch_id, store=ledger.store)
