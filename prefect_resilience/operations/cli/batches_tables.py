"""Batches as tables. A state is told by a word and a sign; everybody can tell its colour apart."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from prefect.settings import get_current_settings
from pydantic import RootModel
from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from prefect_resilience.durable.batches.audit import AuditEntry
from prefect_resilience.durable.batches.edge import known
from prefect_resilience.durable.batches.edge.flow_runs import ApiUnavailable, find_runs, hint_of
from prefect_resilience.durable.batches.edge.recovery import RecoveryReport
from prefect_resilience.durable.batches.edge.status import (
    Archived,
    BatchStatus,
    BatchSummary,
    EffectStatus,
    list_batches,
)
from prefect_resilience.durable.batches.strategies import RecoveryHint
from prefect_resilience.durable.effects.ledger import open_ledger
from prefect_resilience.durable.sagas.report import KEYS_SHOWN
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.operations.cli import output
from prefect_resilience.operations.cli.output import printable

SIGNS = {
    "intended": "»",
    "unknown": "?",
    "failed": "✗",
    "done": "✓",
    "compensating": "?",
    "compensated": "↩",
}
COLOURS = {
    "intended": "#f0e442",
    "unknown": "bold #d55e00",
    "failed": "#e69f00",
    "done": "#56b4e9",
    "compensating": "bold #d55e00",
    "compensated": "#cc79a7",
}
COUNTED = ("unknown", "intended", "failed", "done", "compensated")
AUDIT_SHOWN = 20
RESULT_SHOWN = 60
DRY = {
    "rescheduled": "would run again",
    "compensated": "would be undone",
    "abandoned": "would be given up",
    "told": "waits for a person",
    "refused": "would be refused",
    "nothing": "needs nothing",
}
SAID = {
    "rescheduled": "runs again",
    "compensated": "was undone",
    "abandoned": "was given up",
    "told": "waits for a person",
    "refused": "was left alone",
    "nothing": "needs nothing",
}


def batches_table(
    found: Sequence[BatchSummary],
    hints: Mapping[str, RecoveryHint | None],
    runs: Mapping[str, str],
    now: float,
) -> Table:
    """The batches, a row each."""
    table = _table()
    table.add_column("state", no_wrap=True)
    table.add_column("batch", overflow="fold", min_width=16)
    table.add_column("effects", overflow="fold")
    table.add_column("age", justify="right", no_wrap=True)
    table.add_column("hint", overflow="fold", min_width=12)
    for one in found:
        hint = hints.get(one.batch_id)
        name = runs.get(one.batch_id)
        table.add_row(
            _standing(one),
            Text(printable(one.batch_id) + (f" ({printable(name)})" if name else "")),
            _counts(one),
            output.rough(now - one.first_at),
            Text("" if hint is None else f"{hint.strategy}: {printable(redact(hint.why))}"),
        )
    return table


def summary(found: Iterable[BatchSummary], url: str) -> str:
    """How many there are, how many are open and how many in doubt, in a line."""
    found = list(found)
    number = "1 batch" if len(found) == 1 else f"{len(found)} batches"
    doubts = sum(one.open and one.unknown > 0 for one in found)
    return f"{number}, {sum(one.open for one in found) or 'none'} open, {doubts or 'none'} in doubt, in {url}"


def batch_card(
    status: BatchStatus, hint: RecoveryHint | str | None, audit: Sequence[AuditEntry], now: float
) -> Iterator[RenderableType]:
    """Everything that is known of one batch; `hint`: how to go on, or why there is nothing to do."""
    card = Table.grid(padding=(0, 2))
    card.add_column(style="bold", no_wrap=True)
    card.add_column(overflow="fold")
    card.add_row("batch", Text(printable(status.batch_id)))
    if status.occurred_at is not None:
        card.add_row("run", Text(f"{status.state} since {output.local(status.occurred_at, now)}"))
    rows = _hint_rows(hint, now) if status.archived is None else _archive_rows(status.archived, now)
    for label, text in rows:
        card.add_row(label, Text(printable(redact(text))))
    yield card
    if status.effects:
        yield effects_table(status.effects, now)
    if audit:
        yield audit_table(audit[-AUDIT_SHOWN:])
    if len(audit) > AUDIT_SHOWN:
        yield f"and {len(audit) - AUDIT_SHOWN} earlier entries: --json shows them"


def _hint_rows(hint: RecoveryHint | str | None, now: float) -> Iterator[tuple[str, str]]:
    if not isinstance(hint, RecoveryHint):
        yield "hint", f"nothing to do: {hint}" if hint else "nothing to do"
        return
    yield "hint", hint.strategy + ("" if hint.automatic else ", by a person")
    yield "why", hint.why
    if hint.next_at is not None and hint.next_at > now:
        yield "not before", output.local(hint.next_at, now)
    for label, value in (("goes on at", hint.resume_from), ("done up to", hint.skip_until)):
        if value is not None:
            yield label, value
    for key in hint.waiting:
        yield "settle", key


def _archive_rows(archived: Archived, now: float) -> Iterator[tuple[str, str]]:
    yield "archived", f"{output.local(archived.at, now)} by {archived.by}: {archived.why}"
    if archived.savepoints:
        yield "savepoints", ", ".join(archived.savepoints)
    if archived.last_rollback is not None:
        to = archived.last_rollback.get("to")
        where = "" if to is None else f" to {to}"
        yield "rolled back", output.local(archived.last_rollback["at"], now) + where


def effects_table(effects: Iterable[EffectStatus], now: float) -> Table:
    """The effects, a row each."""
    table = _table()
    table.add_column("state", no_wrap=True)
    table.add_column("key", overflow="fold", min_width=12)
    table.add_column("kind", no_wrap=True)
    table.add_column("tries", justify="right", no_wrap=True)
    table.add_column("age", justify="right", no_wrap=True)
    table.add_column("outcome", overflow="fold", min_width=12)
    for one in effects:
        table.add_row(
            state_text(one.state),
            Text(printable(one.key)),
            one.kind,
            str(one.attempts),
            output.rough(now - one.intended_at),
            Text(printable(redact(_outcome(one)))),
        )
    return table


def _outcome(one: EffectStatus) -> str:
    if one.error is not None:
        return one.error
    if one.overdue_at is not None:
        return "its attempt is over, and its call still runs"
    parts = [] if one.external_id is None else [f"as {one.external_id}"]
    if one.result is not None:
        text = json.dumps(one.result)
        parts.append(text if len(text) <= RESULT_SHOWN else f"{text[:RESULT_SHOWN]}...")
    return " ".join(parts)


def audit_table(entries: Iterable[AuditEntry]) -> Table:
    """What was done to a batch, the newest last."""
    table = _table()
    table.add_column("when", no_wrap=True)
    table.add_column("who", overflow="fold", min_width=8)
    table.add_column("asked", no_wrap=True)
    table.add_column("outcome", no_wrap=True)
    table.add_column("why", overflow="fold", min_width=12)
    for entry in entries:
        why = entry.why if entry.reason is None else f"{entry.why} ({entry.reason})"
        after = "" if entry.ended is None else f", then {entry.ended}"
        table.add_row(
            _clock(entry.at),
            Text(printable(entry.by)),
            entry.asked,
            Text(printable(entry.outcome.replace("_", " ") + after)),
            Text(printable(redact(why))),
        )
    return table


def report_lines(report: RecoveryReport) -> Iterator[RenderableType]:
    """What a recovery did, in a sentence or two."""
    words = DRY if report.dry_run else SAID
    strategy = "" if report.strategy is None else f" ({report.strategy})"
    part = " in part" if report.action == "compensated" and report.not_undone else ""
    said = f"{words[report.action]}{part}{strategy}"
    yield f"{printable(report.batch_id)} {said}: {printable(redact(report.why))}."
    for one in report.not_undone[KEYS_SHOWN:]:
        yield f"Not undone: {printable(repr(one.key))} ({printable(redact(one.why))})."
    if report.next_at is not None and report.action == "rescheduled":
        yield f"A worker takes it from {_clock(report.next_at)} on."


def state_text(state: str) -> Text:
    """The state in a word, with its sign and colour."""
    return Text(f"{SIGNS.get(state, ' ')} {state}", style=COLOURS.get(state, ""))


def _standing(one: BatchSummary) -> Text:
    if one.archived_at is not None:
        return Text("- archived", style="#cc79a7")
    if one.abandoned_at is not None:
        return Text("- abandoned", style="#cc79a7")
    state = next((state for state in COUNTED if getattr(one, state)), "done")
    if one.ended is not None and state not in ("unknown", "intended"):
        return Text(f"✗ {one.ended.lower()}", style="bold #d55e00")
    return state_text(state)


def _counts(one: BatchSummary) -> Text:
    told = [f"{number} {state}" for state in COUNTED if (number := getattr(one, state))]
    return Text(", ".join(told) or "none")


# -- as JSON


def batch_row(one: BatchSummary, hint: RecoveryHint | None, runs: Mapping[str, str]) -> RootModel[Any]:
    shown = None if hint is None else hint.model_dump(mode="json")
    more = {"open": one.open, "total": one.total, "flow_run": runs.get(one.batch_id), "hint": shown}
    return RootModel[Any]({**asdict(one), **more})


def batch_as_json(
    status: BatchStatus, hint: RecoveryHint | None, audit: Iterable[AuditEntry]
) -> dict[str, Any]:
    return {
        "batch_id": status.batch_id,
        "state": status.state,
        "occurred_at": status.occurred_at,
        "seconds_in_error": status.seconds_in_error,
        "archived": None if status.archived is None else asdict(status.archived),
        "hint": None if hint is None else hint.model_dump(mode="json"),
        "effects": [effect_as_json(one) for one in status.effects],
        "audit": [entry.model_dump(mode="json") for entry in audit],
    }


def effect_as_json(one: EffectStatus) -> dict[str, Any]:
    return asdict(one)


def _table() -> Table:
    return Table(box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False, header_style="bold")


def _clock(time: float) -> str:
    return f"{datetime.fromtimestamp(time).astimezone():%Y-%m-%d %H:%M:%S}"


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
        one.batch_id: hint_of(ledger, one.batch_id, run=seen.runs.get(one.batch_id))
        for one in [one for one in shown if one.open][:HINTS_SHOWN]
    }
    return Found(batches, shown, hints, _names(shown, seen), ledger.store.now(), tuple(_caveats(seen)))


def _with_runs(url: str, archived: bool, since: datetime | timedelta) -> known.Batches:
    """With the flow runs that ended badly, where an API is configured to be asked for them."""
    if archived or get_current_settings().api.url is None:
        return known.Batches(list_batches(archived=archived, store=url), {})
    back = datetime.now(timezone.utc) - since if isinstance(since, timedelta) else since
    return known.batches_with_runs(url, back)


def _names(shown: list[BatchSummary], seen: known.Batches) -> dict[str, str]:
    """The names of the flow runs, as far as the API can be asked for them."""
    names = {run_id: run.name for run_id, run in seen.runs.items()}
    unknown = [one.batch_id for one in shown if one.batch_id not in names]
    if unknown and seen.trouble is None:
        with suppress(ApiUnavailable):
            names |= {batch_id: run.name for batch_id, run in find_runs(unknown).items()}
    return names


def _caveats(seen: known.Batches) -> list[str]:
    said: list[str] = []
    if seen.trouble is not None:
        said.append(f"How flow runs ended is unknown, and only effects say what is open: {seen.trouble}")
    if seen.more:
        said.append(f"More than {known.MOST_RUNS:,} flow runs ended badly: the latest of them are shown.")
    return said
