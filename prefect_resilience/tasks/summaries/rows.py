"""A summary as tables: its passes, failures, retries, rejections, fallbacks, replays and leftovers. Pure.

Outcomes of calls are those of the last pass. Circuits, letters and stores are those of the whole run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from prefect_resilience.durable.batches.run_passes import RunPass, Start
from prefect_resilience.errors.taxonomy import bounded
from prefect_resilience.tasks.summaries.story import PassSeen, Story
from prefect_resilience.telemetry.model import (
    CALL_COUNTS,
    ENDED_BADLY,
    REPLACED,
    REPLAYED,
    Happening,
    PassFacts,
    TaskRunSeen,
)

MOST_ROWS = 50
ERRORS_SHOWN = 4
SHORT = 160


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text; `more` is the number of rows that were left out."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    more: int = 0

    def cut(self, most: int) -> Table:
        """The table with at most `most` rows. `more` counts the rest."""
        return replace(self, rows=self.rows[:most], more=self.more + len(self.rows[most:]))


def tables_of(story: Story) -> list[Table]:
    """All tables with rows, in reading order."""
    seen = story.last
    by_task = _by_task_run(seen.happenings)
    made = [
        _failed(seen, by_task),
        _in_doubt(seen),
        _retried(seen, by_task),
        _refused(seen),
        _replaced(seen, by_task),
        _calls(seen),
        _replayed(seen),
        _circuits(story),
        _letters(story),
        _stores(story),
    ]
    return [table for table in made if table.rows]


def _table(title: str, columns: tuple[str, ...], rows: Iterable[tuple[str, ...]], total: int = 0) -> Table:
    known = [*rows]
    shown = tuple(known[:MOST_ROWS])
    return Table(title, columns, shown, max(total, len(known)) - len(shown))


def _by_task_run(happenings: Iterable[Happening]) -> dict[str, list[Happening]]:
    found: dict[str, list[Happening]] = {}
    for one in happenings:
        run_id = one.payload.get("task_run_id")
        if isinstance(run_id, str):
            found.setdefault(run_id, []).append(one)
    return found


def _failed(seen: PassFacts, by_task: Mapping[str, list[Happening]]) -> Table:
    runs = [run for run in seen.task_runs if run.last is not None and run.last.type in ENDED_BADLY]
    total = sum(count for name, count in seen.states.items() if seen.types.get(name) in ENDED_BADLY)
    rows = (
        (
            run.name,
            run.last.name if run.last else "",
            str(max(run.attempts, 1)),
            _last_error(run, by_task.get(run.id, ())),
        )
        for run in runs
    )
    return _table("Failed", ("task run", "state", "attempts", "error"), rows, total)


def _retried(seen: PassFacts, by_task: Mapping[str, list[Happening]]) -> Table:
    runs = [run for run in seen.task_runs if run.attempts > 1]
    runs.sort(key=lambda run: -run.attempts)
    rows = (
        (
            run.name,
            str(run.attempts),
            "; ".join(_errors(run, by_task.get(run.id, ()))),
            ", ".join(f"{wait:.1f}" for wait in waits_of(run)[: ERRORS_SHOWN * 2]),
            run.last.name if run.last else "",
        )
        for run in runs
    )
    columns = ("task run", "attempts", "errors", "waited, s", "ended")
    return _table("Retried", columns, rows, seen.retried)


def waits_of(run: TaskRunSeen) -> list[float]:
    """The seconds between each attempt and the next one."""
    found: list[float] = []
    since: float | None = None
    for state in run.states:
        if state.name == "AwaitingRetry":
            since = state.at
        elif state.type == "RUNNING" and since is not None:
            found.append(max(state.at - since, 0.0))
            since = None
    return found


def _errors(run: TaskRunSeen, happenings: Iterable[Happening]) -> list[str]:
    """The errors of the attempts; equal errors become one entry with a count."""
    told = [_said(one) for one in happenings if one.name == "retry.scheduled"]
    told = told or [
        bounded(state.message, SHORT)
        for state in run.states
        if state.name == "AwaitingRetry" and state.message
    ]
    counted: dict[str, int] = {}
    for text in told:
        counted[text] = counted.get(text, 0) + 1
    shown = [f"{text} (x{count})" if count > 1 else text for text, count in counted.items()]
    more = [f"and {len(shown) - ERRORS_SHOWN} others"] if len(shown) > ERRORS_SHOWN else []
    return shown[:ERRORS_SHOWN] + more


def _last_error(run: TaskRunSeen, happenings: Iterable[Happening]) -> str:
    told = [_said(one) for one in happenings if one.name == "run.failed"]
    return told[-1] if told else bounded(run.last.message, SHORT) if run.last else ""


def _said(one: Happening) -> str:
    """The error of an event in one line, in the form of `ErrorContext.summary`."""
    payload = one.payload
    code, category = _text(payload, "code"), _text(payload, "category")
    head = (
        category if code.lower() == category.lower() else " ".join(part for part in (code, category) if part)
    )
    message = _text(payload, "message").strip().splitlines()
    return bounded(f"{head}: {message[0]}" if message else head, SHORT)


def _refused(seen: PassFacts) -> Table:
    """Calls that a circuit rejected. Each is a failed attempt, or was answered by a fallback."""
    counted: dict[tuple[str, str], int] = {}
    for one in _named(seen.happenings, "retry.scheduled", "fallback.used", "run.failed"):
        if one.payload.get("category") == "circuit_open":
            key = (_text(one.payload, "circuit") or "?", _text(one.payload, "node_id") or one.subject)
            counted[key] = counted.get(key, 0) + 1
    rows = (
        (circuit, task, str(count))
        for (circuit, task), count in sorted(counted.items(), key=lambda it: -it[1])
    )
    return _table("Rejected by a circuit", ("circuit", "task", "times"), rows)


def _replaced(seen: PassFacts, by_task: Mapping[str, list[Happening]]) -> Table:
    used = _named(seen.happenings, "fallback.used")
    names = {run.id: run.name for run in seen.task_runs}
    rows = [
        (
            names.get(_text(one.payload, "task_run_id"), one.subject),
            _text(one.payload, "to"),
            "yes" if one.payload.get("degraded") else "no",
            _said(one),
        )
        for one in used
    ]
    told = {_text(one.payload, "task_run_id") for one in used}
    rows += [
        (run.name, "", "yes" if run.last.name == "Degraded" else "no", bounded(run.last.message, SHORT))
        for run in seen.task_runs
        if run.id not in told and run.last is not None and run.last.name in REPLACED
    ]
    total = max(seen.counts["fallback.used"], sum(seen.states[name] for name in REPLACED))
    columns = ("task run", "fallback", "degraded", "error")
    return _table("Answered by a fallback", columns, rows, total)


def _calls(seen: PassFacts) -> Table:
    """The guarded calls inside tasks and flows, one row for each function with a failed call or attempt."""
    functions = sorted({function for function, _ in seen.calls}, key=lambda one: -seen.calls[one, "attempts"])
    rows = (
        (
            function,
            *(f"{int(seen.calls[function, name]):,}" for name in CALL_COUNTS if name != "waited"),
            f"{seen.calls[function, 'waited']:,.1f}",
            bounded(seen.call_errors.get(function, ""), SHORT),
        )
        for function in functions
    )
    columns = ("function", "calls", "attempts", "rejected", "fallbacks", "failed", "waited, s", "last error")
    return _table("Calls inside tasks", columns, rows)


def _replayed(seen: PassFacts) -> Table:
    names = {run.id: run.name for run in seen.task_runs}
    rows = [
        (
            one.subject,
            names.get(_text(one.payload, "task_run_id"), _text(one.payload, "node_id")),
            _text(one.payload, "external_id"),
        )
        for one in _named(seen.happenings, "effect.replayed")
    ]
    if not rows:
        rows = [("", run.name, "") for run in seen.task_runs if run.last and run.last.name == REPLAYED]
    total = max(seen.counts["effect.replayed"], seen.states[REPLAYED])
    return _table("Replayed: done before, not repeated", ("effect", "task run", "external id"), rows, total)


def _in_doubt(seen: PassFacts) -> Table:
    rows = ((one.subject, _short(one.payload, "why")) for one in _named(seen.happenings, "effect.in-doubt"))
    return _table("In doubt", ("effect", "why"), rows, seen.counts["effect.in-doubt"])


def _circuits(story: Story) -> Table:
    moves = sorted((move for one in story.circuits for move in one.moves), key=lambda move: move.at)
    rows = (
        (
            clock(one.at),
            one.subject,
            f"{_text(one.payload, 'before')} → {_text(one.payload, 'after')}",
            _short(one.payload, "reason"),
        )
        for one in moves
    )
    return _table("Circuit changes", ("at", "circuit", "state", "why"), rows)


def _letters(story: Story) -> Table:
    left = story.letters
    told = {
        one.subject: one for one in _named(story.happenings, "dead-letter.created") if one.subject in left
    }
    rows = [(one.subject, _task_of(one), _said(one)) for one in told.values()]
    # Of some letters only the id is known.
    rows += [(letter, "", "") for letter in sorted(left - told.keys())]
    return _table("Dead letters", ("letter", "task", "error"), rows)


def _task_of(one: Happening) -> str:
    return _text(one.payload, "name") or _text(one.payload, "node_id")


def _stores(story: Story) -> Table:
    rows = (
        (clock(one.at), one.subject, _short(one.payload, "reason"))
        for one in _named(story.happenings, "store.unavailable")
    )
    total = sum(part.seen.counts["store.unavailable"] for part in story.passes)
    return _table("Unavailable stores", ("at", "store", "why"), rows, total)


def _named(happenings: Iterable[Happening], *names: str) -> list[Happening]:
    return sorted((one for one in happenings if one.name in names), key=lambda one: one.at)


def _text(payload: Mapping[str, Any], name: str) -> str:
    value = payload.get(name)
    return "" if value is None else str(value)


def _short(payload: Mapping[str, Any], name: str) -> str:
    return bounded(_text(payload, name), SHORT)


def clock(at: float) -> str:
    """The time of day in UTC."""
    return f"{datetime.fromtimestamp(at, UTC):%H:%M:%S}"


MOST_PASSES = 30
SHORT_END = 200
STATES_SHOWN = 8

_STARTED = {
    "schedule": "a schedule",
    "automation": "an automation",
    "recovery": "a recovery",
    "flow retry": "Prefect's own retry of the flow",
    "retry button": "the Retry button of Prefect's UI",
    "retry command": "the command prefect flow-run retry",
    "worker": "its worker, which rescheduled it for another process",
    "resumed": "a person who resumed it after it was suspended",
    "person": "a person",
    "program": "a Python program that called the flow",
    "parent": "its parent flow run",
    "unknown": "unknown",
}


def passes_table(story: Story) -> Table | None:
    """A row for each pass; None for a single pass."""
    if len(story.passes) < 2:
        return None
    columns = ("pass", "began", "started by", "ended", "took", "task runs", "retries", "outcomes")
    rows = [_row(part, story.passes[place - 1] if place else None) for place, part in enumerate(story.passes)]
    return Table(
        "Passes", columns, tuple(rows[:1] + rows[1:][-(MOST_PASSES - 1) :]), max(len(rows) - MOST_PASSES, 0)
    )


def _row(part: PassSeen, before: PassSeen | None) -> tuple[str, ...]:
    one, seen = part.run_pass, part.seen
    return (
        str(one.number),
        began(one, None if before is None else before.run_pass),
        bounded(started_by(one.start), SHORT_END),
        bounded(ended(one), SHORT_END),
        "" if one.seconds is None else span(one.seconds),
        f"{seen.total:,}",
        f"{seen.retries:,}",
        came_to(part),
    )


def started_by(start: Start) -> str:
    """The cause of a pass, with the person and the reason, if known."""
    who = _STARTED[start.cause]
    if start.cause == "recovery" and start.who:
        who = f"a recovery by {start.who}"
    elif start.who:
        who = start.who if start.cause == "person" else f"{who}, {start.who}"
    return f"{who}: {' '.join(start.why.split())}" if start.why else who


def ended(one: RunPass) -> str:
    """The end of a pass, with the message of its last state."""
    if one.ended is None:
        return "unknown: its end was not reported" if one.over else "still running"
    message = " ".join(one.message.split())
    return f"{one.end}: {message}" if message else one.end


def began(one: RunPass, before: RunPass | None) -> str:
    """When a pass began, and the time since the end of the pass before."""
    at = f"{clock(one.began)} UTC"
    if before is None or before.ended is None:
        return at
    return f"{at}, {span(max(one.began - before.ended, 0.0))} later"


def came_to(part: PassSeen) -> str:
    """The number of task runs of a pass in each state."""
    ordered = sorted((+part.seen.states).items(), key=lambda it: (-it[1], it[0]))
    shown = [f"{count:,} {name}" for name, count in ordered[:STATES_SHOWN]]
    rest = sum(count for _, count in ordered[STATES_SHOWN:])
    return ", ".join([*shown, *([f"{rest:,} others"] if rest else [])])


def span(seconds: float) -> str:
    """A time span for people."""
    if seconds < 90:
        return f"{seconds:.1f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
