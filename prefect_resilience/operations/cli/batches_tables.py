"""Batches as tables. Each state has a word and a sign as well as a colour."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from prefect.settings import get_current_settings
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from prefect_resilience.base.text import lasting, plural
from prefect_resilience.durable.batches.audit import AuditEntry
from prefect_resilience.durable.batches.decisions import RecoveryReport
from prefect_resilience.durable.batches.edge import known
from prefect_resilience.durable.batches.edge.flow_runs import ApiUnavailable, find_runs
from prefect_resilience.durable.batches.edge.listing import EFFECTS_READ, BatchCounts, list_batches
from prefect_resilience.durable.batches.edge.snapshots import hint_of
from prefect_resilience.durable.batches.edge.status import Archived, BatchStatus, BatchSummary, EffectStatus
from prefect_resilience.durable.batches.strategies import RecoveryHint
from prefect_resilience.durable.effects.ledger import open_ledger
from prefect_resilience.durable.sagas.report import KEYS_SHOWN
from prefect_resilience.operations.cli import look
from prefect_resilience.operations.cli.look import NUMBER, TEXT, WORD, printable, safe

COUNTED = ("unknown", "intended", "failed", "done", "compensated")
AUDIT_SHOWN = 20
RESULT_SHOWN = 60
ACTIONS = {
    "rescheduled": ("would run again", "runs again"),
    "compensated": ("would be rolled back", "was rolled back"),
    "abandoned": ("would be abandoned", "was abandoned"),
    "told": ("needs a person", "needs a person"),
    "refused": ("would not be changed", "was not changed"),
    "nothing": ("needs no recovery", "needs no recovery"),
}
"""Words for each action of a recovery: planned, and done."""
OUTCOMES = {"told": "needs a person"}
"""Words for outcomes in the audit log that do not speak for themselves."""


def batches_table(found: FoundBatches) -> Table:
    """A row for each batch."""
    columns = {"state": WORD, "batch": 16, "effects": TEXT, "age": NUMBER, "hint": 12}
    return look.table(columns, (_batch_cells(one, found) for one in found.shown))


def _batch_cells(one: BatchSummary, found: FoundBatches) -> Iterator[look.Cell]:
    hint, name = found.hints.get(one.batch_id), found.names.get(one.batch_id)
    yield _standing(one)
    yield one.batch_id + (f" ({name})" if name else "")
    yield ", ".join(_counts(one)) or "none"
    yield lasting(round(found.now - one.first_at))
    large = "a large batch: see `batches show`" if one.uncounted else ""
    yield large if hint is None else f"{hint.strategy}: {safe(hint.why)}"


def _counts(one: BatchSummary) -> Iterator[str]:
    for state in COUNTED:
        if number := getattr(one, state):
            least = "+" if one.uncounted and state in ("done", "compensated") else ""
            yield f"{number}{least} {state}"


def summary(counts: BatchCounts, url: str, *, left_out: bool = False) -> str:
    """One line: the number of batches, of open ones, and of those with an effect whose outcome is unknown.

    `left_out`: settled batches were not counted.
    """
    least = "+" if counts.more else ""
    opened = f"{counts.open or 'none'}{least} open"
    number = opened if left_out else f"{plural(counts.total, 'batch', 'batches')}, {opened}"
    return f"{number}, {counts.in_doubt or 'none'}{least} with an unknown outcome, in {url}"


def batch_card(status: BatchStatus, hint: RecoveryHint | str | None, now: float) -> Iterator[RenderableType]:
    """All facts about one batch. `hint`: how to recover it, or why there is nothing to do."""
    yield look.card((label, safe(text)) for label, text in _card_rows(status, hint, now))
    if status.effects:
        yield effects_table(status.effects, now)
    if status.audit:
        yield audit_table(status.audit[-AUDIT_SHOWN:])
    if len(status.audit) > AUDIT_SHOWN:
        yield f"and {len(status.audit) - AUDIT_SHOWN} earlier entries: --json shows them"


def _card_rows(status: BatchStatus, hint: RecoveryHint | str | None, now: float) -> Iterator[tuple[str, str]]:
    yield "batch", status.batch_id
    if status.occurred_at is not None:
        yield "run", f"{status.state} since {look.local(status.occurred_at, now)}"
    if status.archived is None:
        yield from _hint_rows(hint, now)
    else:
        yield from _archive_rows(status.archived, now)


def _hint_rows(hint: RecoveryHint | str | None, now: float) -> Iterator[tuple[str, str]]:
    if not isinstance(hint, RecoveryHint):
        yield "hint", hint or "nothing to do"
        return
    yield "hint", hint.strategy + ("" if hint.automatic else ", not automatic")
    yield "why", hint.why
    if hint.next_at is not None and hint.next_at > now:
        yield "not before", look.local(hint.next_at, now)
    for label, value in (("continues at", hint.resume_from), ("done up to", hint.skip_until)):
        if value is not None:
            yield label, value
    for key in hint.waiting:
        yield "settle", key


def _archive_rows(archived: Archived, now: float) -> Iterator[tuple[str, str]]:
    yield "archived", f"{look.local(archived.at, now)} by {archived.by}: {archived.why}"
    if archived.savepoints:
        yield "savepoints", ", ".join(archived.savepoints)
    if archived.last_rollback is not None:
        to = archived.last_rollback.get("to")
        where = "" if to is None else f" to {to}"
        yield "rolled back", look.local(archived.last_rollback["at"], now) + where


def effects_table(effects: Iterable[EffectStatus], now: float) -> Table:
    """A row for each effect."""
    columns = {"state": WORD, "key": 12, "kind": WORD, "attempts": NUMBER, "age": NUMBER, "outcome": 12}
    rows = (
        (
            look.state(one.state),
            one.key,
            one.kind,
            str(one.attempts),
            lasting(round(now - one.intended_at)),
            safe(_outcome(one)),
        )
        for one in effects
    )
    return look.table(columns, rows)


def _outcome(one: EffectStatus) -> str:
    if one.error is not None:
        return one.error
    if one.overdue_at is not None:
        return "abandoned call still running"
    parts = [] if one.external_id is None else [f"as {one.external_id}"]
    if one.result is not None:
        text = json.dumps(one.result)
        parts.append(text if len(text) <= RESULT_SHOWN else f"{text[:RESULT_SHOWN]}...")
    return " ".join(parts)


def audit_table(entries: Iterable[AuditEntry]) -> Table:
    """The audit log of a batch, the newest entry last."""
    columns = {"when": WORD, "who": 8, "request": WORD, "outcome": WORD, "why": 12}
    rows = (
        (
            look.clock(entry.at),
            entry.by,
            entry.asked + (", forced" if entry.force else ""),
            OUTCOMES.get(entry.outcome, entry.outcome.replace("_", " "))
            + ("" if entry.ended is None else f", then {entry.ended}"),
            safe(entry.why if entry.reason is None else f"{entry.why} ({entry.reason})"),
        )
        for entry in entries
    )
    return look.table(columns, rows)


def report_lines(report: RecoveryReport) -> Iterator[RenderableType]:
    """The report of a recovery, in a sentence or two."""
    would, did = ACTIONS[report.action]
    strategy = "" if report.strategy is None else f" ({report.strategy})"
    part = " in part" if report.action == "compensated" and report.not_undone else ""
    said = f"{would if report.dry_run else did}{part}{strategy}"
    yield f"{printable(report.batch_id)} {said}: {safe(report.why)}."
    for one in report.not_undone[KEYS_SHOWN:]:
        yield f"Not compensated: {printable(repr(one.key))} ({safe(one.why)})."
    if report.next_at is not None and report.action == "rescheduled":
        yield f"A worker starts it at {look.clock(report.next_at)} or later."


def _standing(one: BatchSummary) -> Text:
    if one.archived_at is not None:
        return look.state("archived")
    if one.abandoned_at is not None:
        return look.state("abandoned")
    state = next((state for state in COUNTED if getattr(one, state)), "done")
    if one.ended is not None and state not in ("unknown", "intended"):
        return look.state("failed", one.ended.lower())
    return look.state(state)


# -- as JSON


def batch_row(one: BatchSummary, found: FoundBatches | None = None) -> dict[str, Any]:
    name = found.names.get(one.batch_id) if found else None
    hint = found.hints.get(one.batch_id) if found else None
    return {**asdict(one), "open": one.open, "total": one.total, "flow_run": name, "hint": hint}


def batch_as_json(status: BatchStatus) -> dict[str, Any]:
    return {
        "batch_id": status.batch_id,
        "state": status.state,
        "occurred_at": status.occurred_at,
        "seconds_in_error": status.seconds_in_error,
        "archived": None if status.archived is None else asdict(status.archived),
        "hint": status.hint,
        "effects": [asdict(one) for one in status.effects],
        "audit": status.audit,
    }


HINTS_SHOWN = 200


@dataclass(frozen=True, slots=True)
class FoundBatches:
    """The first matching batches, with hints and the names of their flow runs, and the counts of all.

    `now`: the store's time. `caveats`: sentences about what is unknown or left out. `left_out`: settled
    batches are not counted.
    """

    counts: BatchCounts
    left_out: bool
    shown: list[BatchSummary]
    hints: dict[str, RecoveryHint | None]
    names: dict[str, str]
    now: float
    caveats: tuple[str, ...]


def find(
    url: str, *, archived: bool, only_open: bool, every: bool, since: datetime | timedelta, limit: int
) -> FoundBatches:
    """Find the batches of a store; at most `limit` are shown. Raises StoreUnavailable."""
    ledger = open_ledger(url)
    if archived:
        listed = list_batches(archived=True, store=url)
        seen = known.Batches(listed[:limit], BatchCounts(len(listed)), {})
    else:
        api = get_current_settings().api.url is not None
        back = datetime.now(UTC) - since if isinstance(since, timedelta) else since
        seen = known.find_batches(url, back if api else None, limit=limit, only_open=only_open, every=every)
    shown = seen.batches
    hints = {
        one.batch_id: hint_of(ledger, one.batch_id, run=seen.runs.get(one.batch_id))
        for one in [one for one in shown if one.open and not one.uncounted][:HINTS_SHOWN]
    }
    caveats = tuple(_caveats(seen))
    return FoundBatches(
        seen.counts, seen.left_out, shown, hints, _names(shown, seen), ledger.store.now(), caveats
    )


def _names(shown: list[BatchSummary], seen: known.Batches) -> dict[str, str]:
    """The names of the flow runs, as far as the API answers."""
    names = {run_id: run.name for run_id, run in seen.runs.items()}
    unknown = [one.batch_id for one in shown if one.batch_id not in names]
    if unknown and seen.trouble is None:
        with suppress(ApiUnavailable):
            names |= {batch_id: run.name for batch_id, run in find_runs(unknown).items()}
    return names


def _caveats(seen: known.Batches) -> list[str]:
    said: list[str] = []
    if seen.trouble is not None:
        said.append(
            f"How flow runs ended is unknown, so batches are open only by their effects: {seen.trouble}"
        )
    if seen.more:
        said.append(f"More than {known.MOST_RUNS:,} flow runs failed or crashed; only the latest are shown.")
    if seen.left_out:
        said.append(
            f"The ledger has more than {EFFECTS_READ:,} effects: only batches with open effects, and flow "
            "runs that failed or crashed, are listed and counted. --all reads every effect."
        )
    if seen.counts.more:
        said.append("More batches are open than were counted. --all counts them all.")
    return said
