"""Batches as rows: what the command line and the dashboard show of each batch, and of its effects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from prefect.settings import get_current_settings
from rich.console import RenderableType
from rich.text import Text

from prefect_resilience.base.text import lasting, plural
from prefect_resilience.durable.batches.audit import AuditEntry
from prefect_resilience.durable.batches.decisions import RecoveryReport
from prefect_resilience.durable.batches.edge import known
from prefect_resilience.durable.batches.edge.flow_runs import ApiUnavailable, find_runs
from prefect_resilience.durable.batches.edge.listing import EFFECTS_READ, BatchCounts, list_batches
from prefect_resilience.durable.batches.edge.snapshots import hint_of
from prefect_resilience.durable.batches.edge.status import BatchStatus, BatchSummary, EffectStatus
from prefect_resilience.durable.batches.strategies import RecoveryHint
from prefect_resilience.durable.effects.ledger import open_ledger
from prefect_resilience.durable.sagas.report import KEYS_SHOWN
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.operations.cli import look
from prefect_resilience.operations.cli.look import NUMBER, TEXT, WORD, printable, safe

COUNTED = ("unknown", "intended", "failed", "done", "compensated")
AUDIT_SHOWN = 20
RESULT_SHOWN = 60
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

    @property
    def as_json(self) -> dict[str, Any]:
        summary = self.summary
        extra = {"open": summary.open, "total": summary.total, "flow_run": self.flow_run, "hint": self.hint}
        return {**asdict(summary), **extra}


@dataclass(frozen=True, slots=True)
class BatchList:
    """The first matching batches, and the counts of all. `now`: the store's time.

    `caveats`: sentences about what is unknown or left out. `left_out`: settled batches are not counted.
    """

    rows: list[BatchRow]
    counts: BatchCounts
    left_out: bool
    now: float
    caveats: tuple[str, ...]


def find(
    store: str | None,
    *,
    archived: bool = False,
    only_open: bool = False,
    every: bool = False,
    since: datetime | timedelta = timedelta(days=30),
    limit: int,
    hints: int = HINTS_SHOWN,
) -> BatchList:
    """Find the batches of a store; at most `limit` are shown, the first `hints` with a hint.

    Raises StoreUnavailable.
    """
    ledger, has_api = open_ledger(store), get_current_settings().api.url is not None
    if archived:
        listed = list_batches(archived=True, store=store)
        seen = known.Batches(listed[:limit], BatchCounts(len(listed)), {})
    else:
        back = datetime.now(UTC) - since if isinstance(since, timedelta) else since
        seen = known.find_batches(
            store, back if has_api else None, limit=limit, only_open=only_open, every=every
        )
    names = _names(seen) if has_api else {}
    rows: list[BatchRow] = []
    for batch in seen.batches:
        hint = None
        if batch.open and not batch.uncounted and hints:
            hints -= 1
            hint = hint_of(ledger, batch.batch_id, run=seen.runs.get(batch.batch_id))
        rows.append(BatchRow(batch, names.get(batch.batch_id), hint))
    return BatchList(rows, seen.counts, seen.left_out, ledger.store.now(), tuple(_caveats(seen)))


def _names(seen: known.Batches) -> dict[str, str]:
    """The names of the flow runs, as far as the API answers."""
    names = {run_id: run.name for run_id, run in seen.runs.items()}
    nameless = [batch.batch_id for batch in seen.batches if batch.batch_id not in names]
    if nameless and seen.trouble is None:
        with suppress(ApiUnavailable):
            names |= {batch_id: run.name for batch_id, run in find_runs(nameless).items()}
    return names


def _caveats(seen: known.Batches) -> Iterator[str]:
    if seen.trouble is not None:
        yield f"How flow runs ended is unknown, so batches are open only by their effects: {seen.trouble}"
    if seen.more:
        yield f"More than {known.MOST_RUNS:,} flow runs failed or crashed; only the latest are shown."
    if seen.left_out:
        yield (
            f"The ledger has more than {EFFECTS_READ:,} effects: only batches with open effects, and flow "
            "runs that failed or crashed, are listed and counted. --all reads every effect."
        )
    if seen.counts.more:
        yield "More batches are open than were counted. --all counts them all."


# -- on the command line


def batch_columns(now: float) -> look.Columns[BatchRow]:
    """The table of batches."""
    return {
        "state": (WORD, lambda row: _state(row.summary)),
        "batch": (16, lambda row: row.summary.batch_id + (f" ({row.flow_run})" if row.flow_run else "")),
        "effects": (TEXT, lambda row: _effects(row.summary)),
        "age": (NUMBER, lambda row: lasting(round(now - row.summary.first_at))),
        "hint": (12, _hint),
    }


def _state(batch: BatchSummary) -> Text:
    for state in ("archived", "abandoned"):
        if getattr(batch, f"{state}_at") is not None:
            return look.state(state)
    state = next((state for state in COUNTED if getattr(batch, state)), "done")
    if batch.ended is not None and state not in ("unknown", "intended"):
        return look.state("failed", batch.ended.lower())
    return look.state(state)


def _effects(batch: BatchSummary) -> str:
    least = ("done", "compensated") if batch.uncounted else ()
    numbers = {state: getattr(batch, state) for state in COUNTED}
    return ", ".join(f"{n}{'+' * (state in least)} {state}" for state, n in numbers.items() if n) or "none"


def _hint(row: BatchRow) -> str:
    if row.hint is None:
        return "a large batch: see `batches show`" if row.summary.uncounted else ""
    return f"{row.hint.strategy}: {safe(row.hint.why)}"


def counts_line(found: BatchList, store: str) -> str:
    """One line: the number of batches, of open ones, and of those with an effect whose outcome is unknown."""
    counts, least = found.counts, "+" if found.counts.more else ""
    opened = f"{counts.open or 'none'}{least} open"
    number = opened if found.left_out else f"{plural(counts.total, 'batch', 'batches')}, {opened}"
    return f"{number}, {counts.in_doubt or 'none'}{least} with an unknown outcome, in {redact(store)}"


def batch_card(status: BatchStatus, hint: RecoveryHint | str, now: float) -> Iterator[RenderableType]:
    """All facts about one batch. `hint`: how to recover it, or why there is nothing to do."""
    yield look.card((label, safe(text)) for label, text in _card_rows(status, hint, now))
    if status.effects:
        yield look.table(effect_columns(now), status.effects)
    if status.audit:
        yield look.table(AUDIT, status.audit[-AUDIT_SHOWN:])
    if len(status.audit) > AUDIT_SHOWN:
        yield f"and {len(status.audit) - AUDIT_SHOWN} earlier entries: --json shows them"


def _card_rows(status: BatchStatus, hint: RecoveryHint | str, now: float) -> Iterator[tuple[str, str]]:
    yield "batch", status.batch_id
    if status.occurred_at is not None:
        yield "run", f"{status.state} since {look.local(status.occurred_at, now)}"
    if (archived := status.archived) is not None:
        yield "archived", f"{look.local(archived.at, now)} by {archived.by}: {archived.why}"
        if archived.savepoints:
            yield "savepoints", ", ".join(archived.savepoints)
        if (last := archived.last_rollback) is not None:
            to = "" if last.get("to") is None else f" to {last['to']}"
            yield "rolled back", look.local(last["at"], now) + to
    elif isinstance(hint, str):
        yield "hint", hint
    else:
        yield "hint", hint.strategy + ("" if hint.automatic else ", not automatic")
        yield "why", hint.why
        if hint.next_at is not None and hint.next_at > now:
            yield "not before", look.local(hint.next_at, now)
        for label, value in (("continues at", hint.resume_from), ("done up to", hint.skip_until)):
            if value is not None:
                yield label, value
        yield from (("settle", key) for key in hint.waiting)


def effect_columns(now: float) -> look.Columns[EffectStatus]:
    """The table of the effects of a batch."""
    return {
        "state": (WORD, lambda effect: look.state(effect.state)),
        "key": (12, lambda effect: effect.key),
        "kind": (WORD, lambda effect: effect.kind),
        "attempts": (NUMBER, lambda effect: str(effect.attempts)),
        "age": (NUMBER, lambda effect: lasting(round(now - effect.intended_at))),
        "outcome": (12, lambda effect: safe(_outcome(effect))),
    }


def _outcome(effect: EffectStatus) -> str:
    if effect.error is not None:
        return effect.error
    if effect.overdue_at is not None:
        return "abandoned call still running"
    text = "" if effect.result is None else json.dumps(effect.result)
    short = text if len(text) <= RESULT_SHOWN else f"{text[:RESULT_SHOWN]}..."
    return " ".join(filter(None, (effect.external_id and f"as {effect.external_id}", short)))


def _audit_outcome(entry: AuditEntry) -> str:
    outcome = "needs a person" if entry.outcome == "told" else entry.outcome.replace("_", " ")
    return outcome if entry.ended is None else f"{outcome}, then {entry.ended}"


AUDIT: look.Columns[AuditEntry] = {
    "when": (WORD, lambda entry: look.clock(entry.at)),
    "who": (8, lambda entry: entry.by),
    "request": (WORD, lambda entry: entry.asked + (", forced" if entry.force else "")),
    "outcome": (WORD, _audit_outcome),
    "why": (12, lambda entry: safe(f"{entry.why} ({entry.reason})" if entry.reason else entry.why)),
}
"""The audit log of a batch, the newest entry last."""


def report_line(report: RecoveryReport) -> str:
    """The report of a recovery in a sentence, without the batch."""
    would, did = ACTIONS[report.action]
    part = " in part" if report.action == "compensated" and report.not_undone else ""
    strategy = "" if report.strategy is None else f" ({report.strategy})"
    return f"{would if report.dry_run else did}{part}{strategy}: {safe(report.why)}"


def report_lines(report: RecoveryReport) -> Iterator[RenderableType]:
    """The report of a recovery, in a sentence or two."""
    yield f"{printable(report.batch_id)} {report_line(report)}."
    for effect in report.not_undone[KEYS_SHOWN:]:
        yield f"Not compensated: {printable(repr(effect.key))} ({safe(effect.why)})."
    if report.next_at is not None and report.action == "rescheduled":
        yield f"A worker starts it at {look.clock(report.next_at)} or later."


# -- on the page


def page_rows(found: BatchList) -> tuple[dict[str, Any], dict[str, Any]]:
    """The rows of the first open batches by their ids, and the summary of all: as `batches list --json`."""
    rows = {row.summary.batch_id: {"place": place, **row.as_json} for place, row in enumerate(found.rows)}
    return rows, {**asdict(found.counts), "shown": len(rows)}
