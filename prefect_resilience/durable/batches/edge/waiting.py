"""Which batches need somebody: by what the ledger has of them, and by how their flow runs stand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from prefect_resilience.durable.batches.archive import scanned
from prefect_resilience.durable.batches.audit import AUDITS
from prefect_resilience.durable.batches.edge.flow_runs import ApiUnavailable, BatchRun, runs_that_ended_badly
from prefect_resilience.durable.batches.edge.status import BatchSummary, in_order, list_batches
from prefect_resilience.durable.effects.ledger import open_ledger
from prefect_resilience.stores.base import Store

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
