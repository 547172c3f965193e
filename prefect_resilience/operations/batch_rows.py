"""Batches as rows: what the command line and the dashboard show of each batch, and of its effects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from prefect_resilience.base.durations import moment_of
from prefect_resilience.base.edge.current_settings import api_url
from prefect_resilience.base.text import plural, printable
from prefect_resilience.durable.batches.decisions import (
    ApiUnavailable,
    RecoveryReport,
    RecoveryRequest,
    hint_for,
)
from prefect_resilience.durable.batches.edge.listing import (
    EFFECTS_READ,
    MOST_RUNS,
    BatchCounts,
    Batches,
    find_batches,
    list_batches,
)
from prefect_resilience.durable.batches.edge.status import BatchSummary, hint_of, snapshot_of
from prefect_resilience.durable.batches.strategies import RecoveryHint
from prefect_resilience.durable.effects.ledger import open_ledger
from prefect_resilience.durable.sagas.compensations import KEYS_SHOWN
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.operations.cli import look
from prefect_resilience.operations.cli.look import safe

COUNTED = ("unknown", "intended", "failed", "done", "compensated")
HINTS_SHOWN = 200
ACTIONS = {
    "rescheduled": ("would run again", "runs again"),
    "compensated": ("would be rolled back", "was rolled back"),
    "abandoned": ("would be abandoned", "was abandoned"),
    "told": ("needs a person", "needs a person"),
    "refused": ("would not be changed", "was not changed"),
    "nothing": ("needs no recovery", "needs no recovery"),
}
"""Words for each action of a recovery: planned, and done."""


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A batch with the name of its flow run and the hint how to recover it, as far as they are known."""

    summary: BatchSummary
    flow_run: str | None = None
    hint: RecoveryHint | None = None
    archived: bool = False

    @property
    def as_json(self) -> dict[str, Any]:
        own = {"state": self.state, "flow_run": self.flow_run, "hint": self.hint}
        return {**asdict(self.summary), "open": self.summary.open, "total": self.summary.total, **own}

    @property
    def state(self) -> str:
        """How the batch was closed, or its flow run ended; else the state of its worst effect."""
        summary = self.summary
        if summary.abandoned_at or self.archived:
            return "abandoned" if summary.abandoned_at else "archived"
        worst = next((state for state in COUNTED if getattr(summary, state)), "done")
        return worst if summary.ended is None or worst in ("unknown", "intended") else summary.ended.lower()

    @property
    def effects(self) -> str:
        """The number of effects in each state: "2 unknown, 1 done"; with a "+" if not all are counted."""
        least = ("done", "compensated") if self.summary.uncounted else ()
        numbers = {state: getattr(self.summary, state) for state in COUNTED}
        texts = (f"{n}{'+' * (state in least)} {state}" for state, n in numbers.items() if n)
        return ", ".join(texts) or "none"


def find(
    store: str | None,
    *,
    archived: bool = False,
    only_open: bool = False,
    every: bool = False,
    since: datetime | timedelta = timedelta(days=30),
    limit: int,
    hints: int = HINTS_SHOWN,
) -> tuple[list[BatchRow], Batches]:
    """The rows of the first `limit` batches, the first `hints` of them with a hint; and what is known of all.

    Raises StoreUnavailable.
    """
    if archived:
        listed = list_batches(archived=True, store=store)
        return [BatchRow(batch, archived=True) for batch in listed[:limit]], Batches(
            listed[:limit], BatchCounts(len(listed))
        )
    ledger, has_api = open_ledger(store), api_url() is not None
    back = moment_of(since, datetime.now(UTC))
    batches = find_batches(store, back if has_api else None, limit=limit, only_open=only_open, every=every)
    names = _names(batches) if has_api else {}
    rows: list[BatchRow] = []
    for batch in batches.batches:
        hint = None
        if batch.open and not batch.uncounted and hints:
            hints -= 1
            hint = (
                hint_of(ledger, batch.batch_id, run=batches.runs.get(batch.batch_id))
                if has_api
                else hint_for(snapshot_of(ledger, batch.batch_id), RecoveryRequest(), 0.5)
            )
        rows.append(BatchRow(batch, names.get(batch.batch_id), hint))
    return rows, batches


def _names(batches: Batches) -> dict[str, str]:
    """The names of the flow runs, as far as the API answers."""
    names = {run_id: run.name for run_id, run in batches.runs.items()}
    nameless = [batch.batch_id for batch in batches.batches if batch.batch_id not in names]
    if nameless and batches.trouble is None:
        from prefect_resilience.durable.batches.edge.flow_runs import find_runs

        with suppress(ApiUnavailable):
            names |= {batch_id: run.name for batch_id, run in find_runs(nameless).items()}
    return names


def caveats(batches: Batches) -> Iterator[str]:
    """Sentences about what is unknown or left out."""
    if batches.trouble is not None:
        yield f"How flow runs ended is unknown, so batches are open only by their effects: {batches.trouble}"
    if batches.more:
        yield f"More than {MOST_RUNS:,} flow runs failed or crashed; only the latest are shown."
    if batches.left_out:
        yield f"The ledger has more than {EFFECTS_READ:,} effects: --all shows its settled batches, too."
    if batches.counts.more:
        yield "More batches are open than were counted. --all counts them all."


COLUMNS: look.Columns = {
    **{"state": "state", "batch": lambda row: row.summary.batch_id, "effects": "effects"},
    "began": lambda row: look.cell("at", row.summary.first_at),
    "hint": lambda row: row.hint and f"{row.hint.strategy}: {look.safe(row.hint.why)}",
}
EFFECTS: look.Columns = {
    **{"state": "state", "key": "key", "kind": "kind", "attempts": "attempts", "intended": "intended_at"},
    **{"external id": "external_id", "error": "error"},
    "result": lambda effect: None if effect.result is None else look.clip(json.dumps(effect.result), 60),
}
AUDIT: look.Columns = {
    **{"at": "at", "by": "by", "request": lambda row: f"{row.asked}, forced" if row.force else row.asked},
    **{"outcome": "outcome", "why": "why", "reason": "reason"},
}


def counts_line(listed: Batches, store: str) -> str:
    """One line: the number of batches, of open ones, and of those with an effect whose outcome is unknown."""
    counts, least = listed.counts, "+" if listed.counts.more else ""
    opened = f"{counts.open or 'none'}{least} open"
    number = plural(counts.total, "batch", "batches")
    return (
        f"{number}, {opened}, {counts.in_doubt or 'none'}{least} with an unknown outcome, in {redact(store)}"
    )


def report_line(report: RecoveryReport) -> str:
    """The report of a recovery in a sentence, without the batch."""
    would, did = ACTIONS[report.action]
    part = " in part" if report.action == "compensated" and report.not_undone else ""
    strategy = "" if report.strategy is None else f" ({report.strategy})"
    return f"{would if report.dry_run else did}{part}{strategy}: {safe(report.why)}"


def report_lines(report: RecoveryReport) -> Iterator[str]:
    """The report of a recovery, in a sentence or two."""
    yield f"{printable(report.batch_id)} {report_line(report)}."
    for effect in report.not_undone[KEYS_SHOWN:]:
        yield f"Not compensated: {printable(repr(effect.key))} ({safe(effect.why)})."


def page_rows(listed: list[BatchRow], counts: BatchCounts) -> tuple[dict[str, Any], dict[str, Any]]:
    """The rows of the first open batches by their ids, and the summary of all: as `batches list --json`."""
    rows = {row.summary.batch_id: {"place": place, **row.as_json} for place, row in enumerate(listed)}
    return rows, {**asdict(counts), "shown": len(rows)}
