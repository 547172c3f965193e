"""Circuits, dead letters, batches, error budgets and minutes: rows of the page of bounded size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, cast

from prefect_resilience.durable.letters.model import DeadLetter
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.budgets.model import BudgetStatus
from prefect_resilience.guards.circuits import machine
from prefect_resilience.guards.circuits.model import CircuitSnapshot
from prefect_resilience.guards.circuits.view import snapshot_of
from prefect_resilience.guards.circuits.window import WindowDocument
from prefect_resilience.operations.letter_rows import OPEN, grouped
from prefect_resilience.operations.tuning.report import LatestAdvice, value_text

if TYPE_CHECKING:
    from prefect_resilience.durable.batches.edge.listing import BatchCounts
    from prefect_resilience.durable.batches.edge.status import BatchSummary

Row = dict[str, Any]
Rows = Mapping[str, Row]
Parts = dict[str, dict[str, Row]]

COUNTED = 10_000
"""So many open letters are counted."""
GROUPS_SHOWN = 50
BATCHES_SHOWN = 50
BUDGETS_SHOWN = 100
MINUTES = 60


def letters(listed: Iterable[DeadLetter], most: int = COUNTED) -> Parts:
    """The part `letters`: the open letters in groups of one task and one kind of error.

    `listed`: the open letters, perhaps with others, the newest first; `most` of them are counted. `more` in
    the summary: there are others.
    """
    rest = iter(listed)
    groups = grouped(islice(rest, most))
    more = next(rest, None) is not None
    totals = {state: sum(group.states[state] for group in groups) for state in OPEN}
    rows = {
        f"{group.name}: {group.kind}": {"place": place, "more": more, **group.row}
        for place, group in enumerate(groups[:GROUPS_SHOWN])
    }
    counted = {**totals, "more": more, "groups": len(groups), "shown": len(rows)}
    return {"letters": rows, "summary": {"letters": counted}}


def batches(opened: Iterable[BatchSummary], counts: BatchCounts, names: Mapping[str, str]) -> Parts:
    """The part `batches`: the first open batches in the order of `opened`, which is their `place`.

    `counts`: those of the open batches. `names`: the names of flow runs by batch, as far as they are known.
    """
    rows = {
        one.batch_id: {
            "place": place,
            "name": names.get(one.batch_id),
            "in_doubt": one.unknown,
            "failed": one.failed,
            "ended": one.ended,
            "going_on": one.intended,
            "done": one.done,
            "at": one.last_at,
            "more": one.uncounted,
        }
        for place, one in enumerate(islice(opened, BATCHES_SHOWN))
    }
    return {"batches": rows, "summary": {"batches": {**asdict(counts), "shown": len(rows)}}}


def budgets(listed: Iterable[BudgetStatus]) -> Parts:
    """The part `budgets`: every error budget; burning ones and those with the least left come first."""
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


def advice(latest: LatestAdvice | None) -> Parts:
    """The part `advice`: what the weekly flow `tune` advised last."""
    if latest is None:
        return {"advice": {}, "summary": {"advice": {}}}
    rows = {
        f"{one.task}, {one.option}": {
            "place": place,
            "now": redact(value_text(one.now)),
            "better": redact(value_text(one.better)),
            "why": redact(one.why),
        }
        for place, one in enumerate(latest.lines)
    }
    return {"advice": rows, "summary": {"advice": {"at": latest.at, "headline": latest.headline}}}


def minutes(counts: Mapping[str, Iterable[Mapping[str, Any]]], now: datetime) -> Row:
    """Counts for each of the last MINUTES minutes, the current one included.

    `counts`: counts by time from the Prefect API, a list of {"start_time", "count"} for each kind of event.
    """
    first = int(now.timestamp() // 60) - MINUTES + 1
    told: Row = {"first": first * 60}
    for thing, rows in counts.items():
        series = [0] * MINUTES
        for row in rows:
            place = int(datetime.fromisoformat(row["start_time"]).timestamp() // 60) - first
            if 0 <= place < MINUTES:
                series[place] += int(row["count"])
        told[thing] = series
    return told


Level = Literal["open", "probing", "failing", "off", "good"]
"""The colour of a circuit. "failing": closed, but many calls fail; "off": disabled."""

FAILING = 0.1
FEWEST = 5
"""A closed circuit is "failing" from this share of failures among at least FEWEST calls."""

WORST_NAMED = 3
ROWS_A_SECOND = 200
"""Circuits per second that get new figures, at most. A change of state is always shown at once."""

_LEVELS: dict[str, Level] = {"open": "open", "forced_open": "open", "half_open": "probing", "disabled": "off"}
_RANKS = {"open": 0, "forced_open": 1, "half_open": 2, "disabled": 6, "closed": 7}
_MARKS = ("state", "generation", "openings", "retry_at", "reason", "last_error")
"""Fields of a document that change with the state of its circuit, not with every call."""


@dataclass(slots=True)
class _Known:
    """The last row of a circuit, and the time when it may be updated."""

    marks: tuple[Any, ...] = ()
    due_at: float = 0.0
    row: Row = field(default_factory=dict[str, Any])


@dataclass
class Circuits:
    """The circuits of the last reading."""

    _known: dict[str, _Known] = field(default_factory=dict[str, _Known])

    def read(self, values: Iterable[tuple[str, Any]], now: float) -> dict[str, dict[str, Row]]:
        """The parts `circuits` and `summary`, from the documents in a store.

        A circuit whose state did not change is updated only when its row is due.
        """
        seen = dict(values)
        patience = max(1.0, len(seen) / ROWS_A_SECOND)
        self._known = {name: self._known.get(name) or _Known() for name in seen}
        for name, value in seen.items():
            known, marks = self._known[name], _marks(value, now)
            if now < known.due_at and marks == known.marks:
                continue
            document = machine.read(value)
            known.marks, known.due_at = marks, now + patience
            known.row = circuit_row(snapshot_of(name, document, now), document["window"])
        told = {name: known.row for name, known in self._known.items()}
        return {"circuits": told, "summary": {"circuits": summary(told)}}


def _marks(value: Any, now: float) -> tuple[Any, ...]:
    """Fields that are equal as long as the state of a circuit is unchanged."""
    document = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    marks = tuple(document.get(name) for name in _MARKS)
    retry_at, leases = document.get("retry_at"), document.get("leases")
    its_time_came = isinstance(retry_at, int | float) and retry_at <= now
    return (*marks, its_time_came, len(cast("dict[str, Any]", leases)) if isinstance(leases, dict) else 0)


def circuit_row(circuit: CircuitSnapshot, window: WindowDocument | None) -> Row:
    """The row of one circuit; times are the store's.

    `rank` sorts the worst first. `rate`: calls per second, absent for a window of calls or a sample.
    `share`: failures among the calls in the window. Values that are 0, empty or unknown are omitted.
    """
    calls, failures = circuit.window_calls, circuit.window_failures
    seconds: float | None = None if window is None else window.get("seconds")
    share = failures / calls if calls else 0.0
    level = _level(circuit.state, calls, share)
    rank = _RANKS[circuit.state] if level != "failing" else _failing_rank(share)
    told: Row = {
        "opened_at": circuit.opened_at,
        "retry_at": circuit.retry_at,
        "reopenings": circuit.reopenings,
        "probes": circuit.probes_in_flight,
        "why": "" if circuit.state == "closed" else _why(circuit.reason, circuit.last_error),
        "window": seconds,
        "calls": calls,
        "failures": failures,
        "slow": circuit.window_slow,
        "share": round(share, 3),
        # In a large fleet the window is a sample of the calls, and their rate is unknown.
        "rate": None if seconds is None or circuit.share_counted < 1 else round(calls / seconds, 2),
        "in_row": circuit.consecutive_failures,
    }
    shown = {key: value for key, value in told.items() if value}
    return {"state": circuit.state, "level": level, "rank": rank, **shown}


def summary(rows: Mapping[str, Row]) -> Row:
    """The number of circuits by state, in figures and in words."""
    states = Counter(row["state"] for row in rows.values())
    refusing = states["open"] + states["forced_open"]
    opened = [
        (row["rank"], -row.get("opened_at", 0.0), name) for name, row in rows.items() if row["rank"] < 2
    ]
    return {
        "headline": circuits_headline(len(rows), refusing, states["half_open"], states["disabled"]),
        "level": "open" if refusing else "probing" if states["half_open"] else "good",
        "total": len(rows),
        "open": refusing,
        "half_open": states["half_open"],
        "disabled": states["disabled"],
        "worst": [name for _, _, name in sorted(opened)[:WORST_NAMED]],
    }


def circuits_headline(total: int, refusing: int, half_open: int, disabled: int) -> str:
    """The circuits in a few words: "2 of 40 circuits open, 1 half-open"."""
    if not total:
        return "No circuit has been called yet"
    counts = [(refusing, "open"), (half_open, "half-open"), (disabled, "disabled")]
    shown = [(number, word) for number, word in counts if number]
    if not shown:
        return "The only circuit is closed" if total == 1 else f"All {total} circuits are closed"
    (number, word), *more = shown
    circuits = "circuit" if total == 1 else "circuits"
    return ", ".join([f"{number} of {total} {circuits} {word}", *(f"{n} {w}" for n, w in more)])


NEEDS: tuple[tuple[str, str, str, str, Level], ...] = (
    ("batches", "effects", "effect in doubt to settle", "effects in doubt to settle", "open"),
    ("letters", "in_doubt", "interrupted replay to check", "interrupted replays to check", "open"),
    ("batches", "failed", "failed batch to recover", "failed batches to recover", "probing"),
    ("letters", "waiting", "dead letter to replay", "dead letters to replay", "probing"),
    ("budgets", "burning", "error budget burning", "error budgets burning", "open"),
)
"""What needs a person: the part of the summary, its count, one of it, several of it, and the level."""


def headline(summary: Mapping[str, Row]) -> Row:
    """The headline of the page: first what needs a person, then the circuits.

    Example:
        >>> headline({"letters": {"waiting": 6}})["text"]
        '6 dead letters to replay'
    """
    needs, levels = list[str](), list[Level]()
    for part, count, one, several, level in NEEDS:
        counts = summary.get(part, {})
        if number := counts.get(count, 0):
            least = "+" if counts.get("more") else ""
            needs.append(f"{number:,}{least} {several if least or number > 1 else one}")
            levels.append(level)
    circuits = summary.get("circuits", {})
    levels.append(circuits.get("level", "good"))
    if circuits.get("open"):
        needs.insert(0, circuits["headline"])
    return {
        "text": ", ".join(needs) or "Nothing needs a person",
        "level": next(level for level in ("open", "probing", "good") if level in levels),
    }


def _level(state: str, calls: int, share: float) -> Level:
    if state == "closed":
        return "failing" if calls >= FEWEST and share >= FAILING else "good"
    return _LEVELS[state]


def _failing_rank(share: float) -> int:
    """Coarse steps, so that rows do not swap places with every call."""
    return 3 if share >= 0.5 else 4 if share >= 0.25 else 5


@lru_cache(maxsize=4096)
def _why(*texts: str | None) -> str:
    """Cached: redacting is the slowest part of a row, and the texts stay the same for minutes."""
    return "; ".join(dict.fromkeys(redact(text) for text in texts if text))
