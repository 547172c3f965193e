"""Which batches there are: an id that nobody knows is an error that names the nearest one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from prefect_resilience.base.policy import closest
from prefect_resilience.durable.batches.audit import (
    ARCHIVES,
    AUDITS,
    SAGA_ARCHIVES,
    Audit,
    archive_place,
    saga_archive_place,
    scanned,
)
from prefect_resilience.durable.batches.edge.flow_runs import ApiUnavailable, BatchRun, runs_that_ended_badly
from prefect_resilience.durable.batches.edge.status import BatchSummary, in_order, list_batches
from prefect_resilience.durable.effects.ledger import PREFIX, Ledger, open_ledger, place_of
from prefect_resilience.durable.sagas.report import SAGAS, saga_place
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.stores.base import Store

LISTED = 5


def check_known(ledger: Ledger, batch_id: str) -> None:
    """Raise ConfigurationError for a batch of which there is no trace, and no flow run of that id.

    Raises ApiUnavailable where only the Prefect API could tell, and StoreUnavailable.
    """
    # Only now: what is asked here is Prefect.
    from prefect_resilience.durable.batches.edge.flow_runs import ApiUnavailable, find_run

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


def in_ledger(ledger: Ledger, batch_id: str) -> bool:
    """Whether the store has anything of a batch: effects, savepoints, an audit log or an archive."""
    store = ledger.store
    places = (Audit(ledger, batch_id).place, saga_place(batch_id), saga_archive_place(batch_id))
    prefixes = (place_of(batch_id), archive_place(batch_id))
    return any(store.load(place) is not None for place in places) or any(
        store.scan(prefix, None, 1) for prefix in prefixes
    )


def batch_ids(ledger: Ledger) -> Iterator[str]:
    """The batches of which the store has anything; one may come several times."""
    for prefix, inside in (
        (PREFIX, None),
        (AUDITS, None),
        (SAGAS, None),
        (ARCHIVES, "effect"),
        (SAGA_ARCHIVES, "saga"),
    ):
        for _, found in scanned(ledger.store, prefix):
            yield (found.value if inside is None else found.value[inside])["batch"]


def unknown(batch_id: str, known: list[str]) -> str:
    """That nobody knows a batch, and which one is meant perhaps."""
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
    """The batches, those that need somebody first, and the flow runs that ended badly, by their ids.

    `trouble`: why the Prefect API could not be asked; then only effects say what is open. `more`: there are
    more such runs than were looked at.
    """

    batches: list[BatchSummary]
    runs: Mapping[str, BatchRun]
    trouble: str | None = None
    more: bool = False


def batches_with_runs(store: Store | str | None = None, since: datetime | None = None) -> Batches:
    """Every batch of the ledger, and every flow run that failed or crashed since then: in the last 30 days.

    A run without effects is a batch as well, which can be recovered. Raises StoreUnavailable.
    """
    ledger = open_ledger(store)
    listed = list_batches(store=ledger.store)
    try:
        found = runs_that_ended_badly(since or datetime.now(timezone.utc) - LOOKS_BACK, MOST_RUNS + 1)
    except ApiUnavailable as error:
        return Batches(listed, {}, str(error))
    runs = {str(run.id): run for run in found[:MOST_RUNS]}
    known = [_with_run(one, runs) for one in listed]
    audits = {document.value["batch"]: document.value for _, document in scanned(ledger.store, AUDITS)}
    named = {name for one in listed for name in (one.batch_id, one.flow_run_id)}
    others = [
        _without_effects(run, audits) for run in runs.values() if not run.inner and str(run.id) not in named
    ]
    return Batches(in_order([*known, *others]), runs, more=len(found) > MOST_RUNS)


def _with_run(batch: BatchSummary, runs: Mapping[str, BatchRun]) -> BatchSummary:
    run = runs.get(batch.batch_id) or runs.get(batch.flow_run_id or "")
    return batch if run is None else replace(batch, ended=run.state, last_at=max(batch.last_at, run.since))


def _without_effects(run: BatchRun, audits: Mapping[str, Any]) -> BatchSummary:
    """An outermost run of which the ledger has nothing, or nothing but that somebody has given it up."""
    batch_id = str(run.id)
    abandoned = audits[batch_id]["abandoned_at"] if batch_id in audits else None
    return BatchSummary(
        batch_id,
        intended=0,
        unknown=0,
        failed=0,
        done=0,
        compensated=0,
        first_at=run.since,
        last_at=run.since,
        abandoned_at=abandoned,
        flow_run_id=batch_id,
        ended=run.state,
    )
