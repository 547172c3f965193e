"""Dead letters, batches, error budgets and minutes as rows of the page. What is shown of each is bounded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from prefect_resilience.durable.letters.model import DeadLetter
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.budgets.model import BudgetStatus
from prefect_resilience.operations.dashboard.board import Row

if TYPE_CHECKING:
    from prefect_resilience.durable.batches.edge.status import BatchSummary

Parts = dict[str, dict[str, Row]]

LETTERS_SHOWN = 50
TASKS_SHOWN = 50
BATCHES_SHOWN = 50
BUDGETS_SHOWN = 100
LONGEST_TEXT = 300
MINUTES = 60
OPEN = ("waiting", "in_doubt", "replaying")


def letters(listed: Iterable[DeadLetter]) -> Parts:
    """The parts `letters` (the newest that are not done with) and `tasks` (how many each task has).

    `listed`: all letters, the newest first; they are read once, one after the other.
    """
    states: Counter[str] = Counter()
    shown: dict[str, Row] = {}
    tasks: dict[str, Counter[str]] = {}
    newest: dict[str, float] = {}
    for letter in listed:
        states[letter.status] += 1
        if letter.status not in OPEN:
            continue
        newest.setdefault(letter.name, letter.created_at.timestamp())
        tasks.setdefault(letter.name, Counter()).update([letter.status, f"category {letter.category}"])
        if len(shown) < LETTERS_SHOWN:
            shown[letter.id] = _letter(letter)
    groups = {name: _task(counts, newest[name]) for name, counts in tasks.items()}
    most = sorted(groups, key=lambda name: (-groups[name]["waiting"], name))[:TASKS_SHOWN]
    totals = {state: states[state] for state in (*OPEN, "replayed", "settled")}
    return {
        "letters": shown,
        "tasks": {name: groups[name] for name in most},
        "summary": {"letters": {**totals, "tasks": len(groups), "shown": len(shown)}},
    }


def _letter(letter: DeadLetter) -> Row:
    return {
        "name": letter.name,
        "kind": letter.kind,
        "status": letter.status,
        "at": letter.created_at.timestamp(),
        "error": redact(letter.summary())[:LONGEST_TEXT],
        "attempts": letter.attempts,
        "failures": letter.failures,
        "run": letter.flow_run_id,
        "left_out": [missing.path for missing in letter.left_out][:5],
    }


def _task(counts: Counter[str], newest: float) -> Row:
    categories = {key[9:]: number for key, number in counts.items() if key.startswith("category ")}
    ordered = sorted(categories.items(), key=lambda item: (-item[1], item[0]))
    return {**{state: counts[state] for state in OPEN}, "newest": newest, "categories": dict(ordered[:3])}


def batches(listed: Iterable[BatchSummary], names: Mapping[str, str]) -> Parts:
    """The part `batches`: those that are open, in the order in which they were listed (`place`).

    `names`: of flow runs, by batch, as far as they are known.
    """
    every = list(listed)
    opened = [one for one in every if one.open]
    rows = {
        one.batch_id: {
            "place": place,
            "name": names.get(one.batch_id),
            "in_doubt": one.unknown,
            "failed": one.failed,
            "going_on": one.intended,
            "done": one.done,
            "at": one.last_at,
        }
        for place, one in enumerate(opened[:BATCHES_SHOWN])
    }
    counted = {
        "total": len(every),
        "open": len(opened),
        "in_doubt": sum(one.unknown > 0 for one in opened),
        "effects": sum(one.unknown for one in opened),
        "shown": len(rows),
    }
    return {"batches": rows, "summary": {"batches": counted}}


def budgets(listed: Iterable[BudgetStatus]) -> Parts:
    """The part `budgets`: every error budget, those first that burn or have least left (`place`)."""
    ordered = sorted(listed, key=lambda one: (not one.burned, one.remaining, one.name))
    rows = {
        one.name: {
            "place": place,
            "objective": one.objective,
            "window": one.window,
            "remaining": round(one.remaining, 3),
            "burned": one.burned,
            "since": one.burning_since,
            "why": redact(one.why) if one.why else "",
            "runs": one.runs,
            "bad": one.bad,
        }
        for place, one in enumerate(ordered[:BUDGETS_SHOWN])
    }
    burning = sum(one.burned for one in ordered)
    return {"budgets": rows, "summary": {"budgets": {"total": len(ordered), "burning": burning}}}


def minutes(counts: Mapping[str, Iterable[Mapping[str, Any]]], now: datetime) -> Row:
    """How often each thing happened in each of the last MINUTES minutes; the last one is still going on.

    `counts`: what the Prefect API counted by time, a list of {"start_time", "count"} for each thing.
    """
    first = int(now.timestamp() // 60) - MINUTES + 1
    told: Row = {"first": first * 60}
    for thing, rows in counts.items():
        series = [0] * MINUTES
        for row in rows:
            place = int(datetime.fromisoformat(_zoned(row["start_time"])).timestamp() // 60) - first
            if 0 <= place < MINUTES:
                series[place] += int(row["count"])
        told[thing] = series
    return told


def _zoned(text: str) -> str:
    """Python 3.10 does not know Z."""
    return text.replace("Z", "+00:00")
