"""The list of batches. The effects of a batch are neighbours in the store, so the list is made in one pass,
and takes as much memory as the batches that are kept of it."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import Any

from prefect_resilience.durable.batches.audit import ARCHIVES, AUDITS, Audit
from prefect_resilience.durable.batches.decisions import ApiUnavailable, BatchRun
from prefect_resilience.durable.batches.edge.status import COUNTED, BatchSummary, newest_copies, state_of
from prefect_resilience.durable.effects.ledger import PREFIX, Ledger, open_ledger, place_of
from prefect_resilience.durable.effects.model import EffectDocument
from prefect_resilience.stores.base import Store, scan_all

EFFECTS_READ = 10_000
"""So many documents are read at most to find open batches; then it says that there are more."""
EFFECTS_OF_EACH = 1_000
"""So many effects of each batch."""
MOST_RUNS = 1_000


@dataclass(slots=True)
class BatchCounts:
    """The numbers of batches, of open ones, of open ones in doubt, and of the effects in doubt in these.

    `failed`: open ones without a doubt, with a failed effect or flow run. `more`: there are more,
    which were not counted.
    """

    total: int = 0
    open: int = 0
    in_doubt: int = 0
    effects: int = 0
    failed: int = 0
    more: bool = False

    def counting(self, batches: Iterable[BatchSummary]) -> Iterator[BatchSummary]:
        """The same batches; each is counted when it is taken."""
        for batch in batches:
            self.total += 1
            if batch.open:
                self.open += 1
                self.in_doubt += batch.unknown > 0
                self.effects += batch.unknown
                self.failed += not batch.unknown and bool(batch.failed or batch.ended)
            yield batch


@dataclass(frozen=True, slots=True)
class Batches:
    """The batches, those that need a person first, and the failed and crashed flow runs by their ids.

    `counts` has the numbers of all batches, also of those beyond the limit. `trouble`: why the Prefect API
    was unavailable; in that case only the effects show which batches are open. `more`: there are more such
    runs than were read. `left_out`: the settled batches of a large ledger.
    """

    batches: list[BatchSummary] = field(default_factory=list[BatchSummary])
    counts: BatchCounts = field(default_factory=BatchCounts)
    runs: Mapping[str, BatchRun] = field(default_factory=dict[str, BatchRun])
    trouble: str | None = None
    more: bool = False
    left_out: bool = False


def list_batches(
    *,
    archived: bool = False,
    only_open: bool = False,
    limit: int | None = None,
    store: Store | str | None = None,
) -> list[BatchSummary]:
    """Every batch of the ledger: first those in doubt, then others that are open, then the rest. In each
    group, the batch with the latest activity comes first.

    The Prefect API is not asked for the states of their flow runs; `prefect-resilience batches list` does
    that. `archived`: instead the batches that were pruned or abandoned, the latest first. `only_open`: only
    batches that are open, found in at most 10,000 effects. `limit`: the first batches of that list; only
    these are kept in memory. Raises StoreUnavailable.
    """
    ledger = open_ledger(store)
    if archived:
        return sorted(_in_archive(ledger), key=lambda batch: -batch.last_at)[:limit]
    return in_order(open_batches(ledger, BatchCounts()) if only_open else each_batch(ledger), limit)


def find_batches(
    store: Store | str | None = None,
    since: datetime | None = None,
    *,
    limit: int | None = None,
    every: bool = False,
    only_open: bool = False,
) -> Batches:
    """The batches of the ledger, and the flow runs that failed or crashed since `since`.

    Of a ledger with more than 10,000 effects only open batches, unless `every`: then `left_out` is true.

    A run without effects is a batch too, and can be recovered. `only_open`: without it, and without batches
    that are settled. Without `since`, the Prefect API is not asked for runs. Raises StoreUnavailable.
    """
    ledger, counts = open_ledger(store), BatchCounts()
    failed = _bad_ends(since) if since is not None else Batches()
    is_large = next(islice(_effects(ledger, PREFIX), EFFECTS_READ, None), None) is not None
    left_out = not every and not only_open and is_large
    batches = open_batches(ledger, counts) if only_open or left_out else each_batch(ledger)
    with_runs = _with_runs(ledger, batches, failed.runs)
    wanted = (batch for batch in with_runs if batch.open or not only_open)
    return replace(failed, batches=in_order(counts.counting(wanted), limit), counts=counts, left_out=left_out)


def _bad_ends(since: datetime) -> Batches:
    from prefect_resilience.durable.batches.edge.flow_runs import runs_that_ended_badly

    try:
        runs = runs_that_ended_badly(since, MOST_RUNS + 1)
    except ApiUnavailable as error:
        return Batches(trouble=str(error))
    return Batches(runs={str(run.id): run for run in runs[:MOST_RUNS]}, more=len(runs) > MOST_RUNS)


def _with_runs(
    ledger: Ledger, batches: Iterable[BatchSummary], runs: Mapping[str, BatchRun]
) -> Iterator[BatchSummary]:
    """The batches, each with the end of its run; then those of the other runs."""
    listed = set[str]()
    for batch in batches:
        listed.update(runs.keys() & {batch.batch_id, batch.flow_run_id})
        yield _with_run(batch, runs)
    for run_id, run in runs.items():
        if run_id in listed:
            continue
        if (settled := _batch_of(ledger, run_id)) is not None:
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


def in_order(batches: Iterable[BatchSummary], limit: int | None = None) -> list[BatchSummary]:
    """First those in doubt, then others that are open, then the rest; in each group the latest first."""
    return sorted(batches, key=_order) if limit is None else heapq.nsmallest(limit, batches, key=_order)


def _order(batch: BatchSummary) -> tuple[bool, bool, float]:
    return not batch.open or not batch.unknown, not batch.open, -batch.last_at


def each_batch(ledger: Ledger) -> Iterator[BatchSummary]:
    """Every batch of the ledger, by the place in the store."""
    for batch_id, effects in groupby(_effects(ledger, PREFIX), key=itemgetter("batch")):
        if (summary := _summary(ledger, batch_id, effects)) is not None:
            yield summary


def open_batches(ledger: Ledger, counts: BatchCounts) -> Iterator[BatchSummary]:
    """The batches that are open by their effects, from a bounded number of documents.

    `counts.more`: there may be more of them. Of a large batch, effects that ended are not all counted: it is
    `uncounted`.
    """
    documents = _effects(ledger, PREFIX, only_open=True)
    read = [*islice(documents, EFFECTS_READ)]
    counts.more = next(documents, None) is not None
    # A store without the index returns all effects.
    opened = (effect for effect in read if effect["state"] not in _ENDED and "compensates" not in effect)
    budget = EFFECTS_READ
    for batch_id, group in groupby(opened, key=itemgetter("batch")):
        if budget <= 0:
            counts.more = True
            return
        effects = _effects(ledger, place_of(batch_id))
        first = [*islice(effects, min(budget, EFFECTS_OF_EACH))]
        budget -= len(first)
        more = next(effects, None) is not None
        # The index has the open effects of a batch that is not read to its end.
        whole = chain(group, (row for row in first if row["state"] in _ENDED)) if more else iter(first)
        summary = _summary(ledger, batch_id, whole)
        if summary is not None and summary.open:
            yield replace(summary, uncounted=more)


def _in_archive(ledger: Ledger) -> Iterator[BatchSummary]:
    """The batches that left the ledger, and those that were abandoned and not begun again."""
    pruned = set[str]()
    copies = (document.value for _, document in scan_all(ledger.store, ARCHIVES))
    for batch_id, group in groupby(copies, key=lambda copy: copy["effect"]["batch"]):
        if not ledger.store.scan(place_of(batch_id), None, 1):
            summary = _summary(ledger, batch_id, newest_copies(group))
            if summary is not None:
                pruned.add(batch_id)
                yield summary
    for _, document in scan_all(ledger.store, AUDITS):
        batch_id, at = document.value["batch"], document.value.get("abandoned_at")
        if at is not None and batch_id not in pruned:
            summary = _batch_of(ledger, batch_id) or BatchSummary(
                batch_id, first_at=at, last_at=at, abandoned_at=at
            )
            if summary.abandoned_at is not None:
                yield summary


_ENDED = ("done", "compensated")


def _batch_of(ledger: Ledger, batch_id: str) -> BatchSummary | None:
    return _summary(ledger, batch_id, _effects(ledger, place_of(batch_id)))


def _effects(ledger: Ledger, prefix: str, *, only_open: bool = False) -> Iterator[EffectDocument]:
    return (document.value for _, document in scan_all(ledger.store, prefix, only_open=only_open))


def _summary(ledger: Ledger, batch_id: str, effects: Iterable[EffectDocument]) -> BatchSummary | None:
    """The summary of a batch in one pass; None if it has no effects but compensations."""
    states = Counter[str]()
    newest: EffectDocument | None = None
    first_at, last_at = float("inf"), float("-inf")
    for document in effects:
        if "compensates" in document:
            continue
        busy = ledger.is_busy(document)
        state = state_of(document, busy)
        states[("intended" if busy else "unknown") if state == "compensating" else state] += 1
        first_at = min(first_at, document["first_at"])
        last_at = max(last_at, document["settled_at"] or document["intended_at"])
        if newest is None or document["intended_at"] > newest["intended_at"]:
            newest = document
    if newest is None:
        return None
    counts: dict[str, Any] = {state: states[state] for state in COUNTED}
    abandoned_at = Audit(ledger, batch_id).document().get("abandoned_at")
    return BatchSummary(
        batch_id=batch_id,
        **counts,
        first_at=first_at,
        last_at=last_at,
        abandoned_at=abandoned_at if abandoned_at and abandoned_at >= newest["intended_at"] else None,
        flow_run_id=newest.get("flow_run_id"),
    )
