"""The list of batches. The effects of a batch are neighbours in the store, so the list is made in one pass,
and takes as much memory as the batches that are kept of it."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import Any, TypeVar

from prefect_resilience.durable.batches.audit import ARCHIVES, AUDITS, Audit
from prefect_resilience.durable.batches.edge.status import COUNTED, BatchSummary, newest_copies, state_of
from prefect_resilience.durable.effects.ledger import PREFIX, Ledger, open_ledger, place_of
from prefect_resilience.durable.effects.model import EffectDocument, EffectState
from prefect_resilience.stores.base import Store, scan_all

T = TypeVar("T")


EFFECTS_READ = 10_000
"""So many documents are read at most for a screen; then it says that there are more."""
EFFECTS_OF_EACH = 1_000
"""So many effects of each batch."""


class LargeLedger(Exception):
    """There are more effects than the caller wants to read."""


def list_batches(
    *,
    archived: bool = False,
    only_open: bool = False,
    limit: int | None = None,
    store: Store | str | None = None,
) -> list[BatchSummary]:
    """Every batch of the ledger: first those in doubt, then others that are open, then the rest. In each
    group, the batch with the latest activity comes first.

    The Prefect API is not asked for the states of their flow runs; `prefect-resilience batches list --open`
    does that. `archived`: instead the batches that left the ledger or were abandoned, the last one
    first. `only_open`:
    only batches that are open; this costs as much as they have effects, and otherwise as much as the ledger
    has. `limit`: the first batches of that list; only these are kept in memory. Raises StoreUnavailable.
    """
    ledger = open_ledger(store)
    if archived:
        return _batches_in_archive(ledger)[:limit]
    return in_order(open_batches(ledger) if only_open else each_batch(ledger), limit)


def each_batch(ledger: Ledger, most: int | None = None) -> Iterator[BatchSummary]:
    """Every batch of the ledger, by the place in the store. Raises LargeLedger after `most` effects."""
    abandoned = abandonments(ledger)
    for batch_id, rows in _by_batch(_at_most(most, _values(ledger, PREFIX))):
        summary = _summary(batch_id, ((row, ledger.is_busy(row)) for row in rows), abandoned.get(batch_id))
        if summary is not None:
            yield summary


def open_batches(ledger: Ledger) -> Iterator[BatchSummary]:
    """The batches that are open by their effects."""
    for batch_id, _ in _by_batch(_without_ended(_values(ledger, PREFIX, only_open=True))):
        summary = batch_of(ledger, batch_id)
        if summary is not None and summary.open:
            yield summary


def batch_of(ledger: Ledger, batch_id: str) -> BatchSummary | None:
    """The summary of one batch; None if it has no effects."""
    return _whole(ledger, batch_id, _values(ledger, place_of(batch_id)))


def glance(ledger: Ledger, counts: BatchCounts) -> Iterator[BatchSummary]:
    """The open batches, from a bounded number of documents.

    `counts.more`: there may be more of them. Of a large batch, effects that ended are not all counted: it is
    `uncounted`.
    """
    documents = _values(ledger, PREFIX, only_open=True)
    read = [*islice(documents, EFFECTS_READ)]
    counts.more = next(documents, None) is not None
    budget = EFFECTS_READ
    for batch_id, opened in _by_batch(_without_ended(read)):
        if budget <= 0:
            counts.more = True
            return
        effects = _values(ledger, place_of(batch_id))
        first = [*islice(effects, min(budget, EFFECTS_OF_EACH))]
        budget -= len(first)
        more = next(effects, None) is not None
        # The index has the open effects of a batch that is not read to its end.
        effects = chain(opened, (row for row in first if row["state"] in _ENDED)) if more else iter(first)
        summary = _whole(ledger, batch_id, effects)
        if summary is not None and summary.open:
            yield replace(summary, uncounted=more)


_ENDED = ("done", "compensated")


def _without_ended(effects: Iterable[EffectDocument]) -> Iterator[EffectDocument]:
    """A store without the index returns all effects: those that have ended need no second look."""
    return (effect for effect in effects if effect["state"] not in _ENDED)


def _values(ledger: Ledger, prefix: str, *, only_open: bool = False) -> Iterator[Any]:
    return (document.value for _, document in scan_all(ledger.store, prefix, only_open=only_open))


def _at_most(most: int | None, effects: Iterator[T]) -> Iterator[T]:
    yield from islice(effects, most)
    if next(effects, None) is not None:
        raise LargeLedger


def _whole(ledger: Ledger, batch_id: str, effects: Iterable[EffectDocument]) -> BatchSummary | None:
    abandoned = Audit(ledger, batch_id).document().get("abandoned_at")
    counted = ((effect, ledger.is_busy(effect)) for effect in effects if "compensates" not in effect)
    return _summary(batch_id, counted, abandoned)


def abandonments(ledger: Ledger) -> dict[str, float]:
    """When each batch that was abandoned was."""
    rows = _values(ledger, AUDITS)
    return {row["batch"]: row["abandoned_at"] for row in rows if row.get("abandoned_at") is not None}


def in_order(batches: Iterable[BatchSummary], limit: int | None = None) -> list[BatchSummary]:
    """First those in doubt, then others that are open, then the rest; in each group the latest first."""
    return sorted(batches, key=_order) if limit is None else heapq.nsmallest(limit, batches, key=_order)


def _order(one: BatchSummary) -> tuple[bool, bool, float]:
    return not one.open or not one.unknown, not one.open, -one.last_at


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


def _by_batch(effects: Iterable[EffectDocument]) -> Iterator[tuple[str, Iterator[EffectDocument]]]:
    """The effects of each batch, without those that compensate others: in the order of the store."""
    for batch_id, group in groupby(effects, key=itemgetter("batch")):
        yield batch_id, (effect for effect in group if "compensates" not in effect)


def _batches_in_archive(ledger: Ledger) -> list[BatchSummary]:
    abandoned = abandonments(ledger)
    listed: list[BatchSummary] = []
    for batch_id, archived in groupby(_values(ledger, ARCHIVES), key=lambda one: one["effect"]["batch"]):
        copies = sorted(
            (row for row in archived if "compensates" not in row["effect"]), key=itemgetter("archived_at")
        )
        # A batch with effects in the ledger has not left it.
        if not copies or ledger.store.scan(place_of(batch_id), None, 1):
            continue
        effects = ((effect, False) for effect in newest_copies(copies))
        if (summary := _summary(batch_id, effects, abandoned.get(batch_id))) is not None:
            listed.append(replace(summary, archived_at=copies[-1]["archived_at"]))
    listed += _list_abandoned(ledger, {batch.batch_id for batch in listed}, abandoned)
    return sorted(listed, key=lambda one: (-(one.archived_at or one.abandoned_at or 0.0), one.batch_id))


def _list_abandoned(
    ledger: Ledger, listed: set[str], abandoned: Mapping[str, float]
) -> Iterator[BatchSummary]:
    """The batches that were abandoned, also those without effects, unless an effect was begun since."""
    for batch_id in abandoned.keys() - listed:
        at = abandoned[batch_id]
        summary = batch_of(ledger, batch_id)
        if summary is None:
            summary = BatchSummary(batch_id, first_at=at, last_at=at, abandoned_at=at)
        if summary.abandoned_at is not None:
            yield summary


def _summary(
    batch_id: str, found: Iterable[tuple[EffectDocument, bool]], abandoned_at: float | None
) -> BatchSummary | None:
    """The summary of a batch in one pass; None if it has no effects."""
    states = Counter[str]()
    newest: EffectDocument | None = None
    first_at, last_at = float("inf"), float("-inf")
    for document, busy in found:
        states[_state_to_count(document, busy)] += 1
        first_at = min(first_at, document["first_at"])
        last_at = max(last_at, document["settled_at"] or document["intended_at"])
        if newest is None or document["intended_at"] > newest["intended_at"]:
            newest = document
    if newest is None:
        return None
    counts: dict[str, Any] = {state: states[state] for state in COUNTED}
    return BatchSummary(
        batch_id=batch_id,
        **counts,
        first_at=first_at,
        last_at=last_at,
        abandoned_at=abandoned_at if abandoned_at and abandoned_at >= newest["intended_at"] else None,
        flow_run_id=newest.get("flow_run_id"),
    )


def _state_to_count(document: EffectDocument, busy: bool) -> EffectState:
    state = state_of(document, busy)
    if state == "compensating":
        return "intended" if busy else "unknown"
    return state
