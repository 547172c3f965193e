"""What `batches list` shows: batches, flow runs that ended badly, and how to go on with them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from prefect.settings import get_current_settings

from prefect_resilience.durable.batches.edge import recovery, waiting
from prefect_resilience.durable.batches.edge.flow_runs import ApiUnavailable, find_runs
from prefect_resilience.durable.batches.edge.status import BatchSummary, list_batches
from prefect_resilience.durable.batches.strategies import RecoveryHint
from prefect_resilience.durable.effects.ledger import open_ledger

HINTS_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Found:
    """Every batch that is meant, and of those that are shown the hints and the names of their flow runs.

    `now` is the store's clock, `caveats` what is to be said of all that.
    """

    batches: list[BatchSummary]
    shown: list[BatchSummary]
    hints: dict[str, RecoveryHint | None]
    names: dict[str, str]
    now: float
    caveats: tuple[str, ...]


def find(url: str, *, archived: bool, only_open: bool, since: datetime | timedelta, limit: int) -> Found:
    """The batches of a store, at most `limit` of them to be shown. Raises StoreUnavailable."""
    ledger = open_ledger(url)
    seen = _with_runs(url, archived, since)
    batches = [one for one in seen.batches if one.open or not only_open]
    shown = batches[:limit]
    hints = {
        one.batch_id: recovery.hint_of(ledger, one.batch_id, run=seen.runs.get(one.batch_id))
        for one in [one for one in shown if one.open][:HINTS_SHOWN]
    }
    return Found(batches, shown, hints, _names(shown, seen), ledger.store.now(), tuple(_caveats(seen)))


def _with_runs(url: str, archived: bool, since: datetime | timedelta) -> waiting.Batches:
    """With the flow runs that ended badly, where an API is configured to be asked for them."""
    if archived or get_current_settings().api.url is None:
        return waiting.Batches(list_batches(archived=archived, store=url), {})
    back = datetime.now(timezone.utc) - since if isinstance(since, timedelta) else since
    return waiting.batches_with_runs(url, back)


def _names(shown: list[BatchSummary], seen: waiting.Batches) -> dict[str, str]:
    """The names of the flow runs, as far as the API can be asked for them."""
    names = {run_id: run.name for run_id, run in seen.runs.items()}
    unknown = [one.batch_id for one in shown if one.batch_id not in names]
    if unknown and seen.trouble is None:
        with suppress(ApiUnavailable):
            names |= {batch_id: run.name for batch_id, run in find_runs(unknown).items()}
    return names


def _caveats(seen: waiting.Batches) -> list[str]:
    said: list[str] = []
    if seen.trouble is not None:
        said.append(f"How flow runs ended is unknown, and only effects say what is open: {seen.trouble}")
    if seen.more:
        said.append(f"More than {waiting.MOST_RUNS:,} flow runs ended badly: the latest of them are shown.")
    return said
