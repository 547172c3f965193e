"""Circuits, dead letters, batches, error budgets and minutes: rows of the page of bounded size."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
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
from prefect_resilience.guards.circuits.window import BUCKETS, WindowDocument
from prefect_resilience.operations.tuning.report import LatestAdvice, value_text

if TYPE_CHECKING:
    from prefect_resilience.durable.batches.edge.listing import BatchCounts
    from prefect_resilience.durable.batches.edge.status import BatchSummary

Row = dict[str, Any]
Rows = Mapping[str, Row]
Parts = dict[str, dict[str, Row]]

COUNTED = 10_000
"""So many open letters are counted."""
LETTERS_SHOWN = 50
TASKS_SHOWN = 50
BATCHES_SHOWN = 50
BUDGETS_SHOWN = 100
LONGEST_TEXT = 300
MINUTES = 60
OPEN = ("waiting", "in_doubt", "replaying")


def letters(listed: Iterable[DeadLetter], most: int = COUNTED) -> Parts:
    """The parts `letters` (the newest open ones) and `tasks` (the number of letters of each task).

    `listed`: the open letters, perhaps with others, the newest first; `most` of them are counted. `more` in
    the summary: there are others.
    """
    states: Counter[str] = Counter()
    shown: dict[str, Row] = {}
    tasks: dict[str, Counter[str]] = {}
    newest: dict[str, float] = {}
    rest = iter(listed)
    for letter in islice(rest, most):
        states[letter.status] += 1
        if letter.status not in OPEN:
            continue
        newest.setdefault(letter.name, letter.created_at.timestamp())
        tasks.setdefault(letter.name, Counter()).update([letter.status, f"category {letter.category}"])
        if len(shown) < LETTERS_SHOWN:
            shown[letter.id] = _letter(letter)
    more = next(rest, None) is not None
    groups = {name: {**_task(counts, newest[name]), "more": more} for name, counts in tasks.items()}
    first = sorted(groups, key=lambda name: (-groups[name]["waiting"], name))[:TASKS_SHOWN]
    totals = {state: states[state] for state in OPEN}
    return {
        "letters": shown,
        "tasks": {name: groups[name] for name in first},
        "summary": {"letters": {**totals, "more": more, "tasks": len(groups), "shown": len(shown)}},
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
            "going_on": one.intended,
            "done": one.done,
            "at": one.last_at,
            "more": one.uncounted,
        }
        for place, one in enumerate(islice(opened, BATCHES_SHOWN))
    }
    counted = {
        "open": counts.open,
        "more": counts.more,
        "in_doubt": counts.in_doubt,
        "effects": counts.effects,
        "shown": len(rows),
    }
    return {"batches": rows, "summary": {"batches": counted}}


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


# The last minutes of a circuit as a small curve, collected from its window document at each reading.
#
# A window document has twelve buckets of calls and drops those that leave the window. Calls since the last
# reading are added to slots of equal length, so that the curves of all circuits can be compared.

SLOT = 5.0
"""Seconds of one point of a curve."""

SLOTS = 36
LATE = 1.0
"""Seconds from the end of a slot until it is shown: workers merge their counts a little later."""

Series = dict[str, list[float]]
"""`calls` and `failed` by slot, the oldest first. A list of zeros is omitted."""


@dataclass(slots=True)
class Spark:
    """The calls of one circuit by slot. `seen`: the buckets of the last reading, `width`: their seconds."""

    slots: dict[int, tuple[float, float]] = field(default_factory=dict[int, tuple[float, float]])
    seen: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    width: float = 0.0

    def series(self, window: WindowDocument | None, now: float) -> Series:
        """The curve at `now`. A count-based window has no times; its curve shows its last calls."""
        if window is not None and "last" in window:
            recent: str = window["recent"][-SLOTS:]
            return _series([1.0] * len(recent), [float(outcome in "fF") for outcome in recent])
        last = math.floor((now - LATE) / SLOT)
        self._add(window, last - SLOTS)
        shown = [self.slots.get(slot, (0.0, 0.0)) for slot in range(last - SLOTS, last)]
        return _series([calls for calls, _ in shown], [failed for _, failed in shown])

    def _add(self, window: WindowDocument | None, oldest: int) -> None:
        width = 0.0 if window is None else window["seconds"] / BUCKETS
        before = self.seen if width == self.width else {}
        self.width, self.seen = width, {}
        buckets: list[list[int]] = [] if window is None else window["buckets"]
        for index, calls, failed, _ in buckets:
            known = before.get(index, (0, 0))
            if calls < known[0] or failed < known[1]:  # the circuit was reset since
                known = (0, 0)
            self.seen[index] = (calls, failed)
            if (calls, failed) != known:
                self._spread(index * width, width, calls - known[0], failed - known[1], oldest)
        self.slots = {slot: counts for slot, counts in self.slots.items() if slot >= oldest}

    def _spread(self, start: float, width: float, calls: int, failed: int, oldest: int) -> None:
        """Add the calls of a bucket to the slots that it covers, evenly."""
        end = start + width
        slot = max(math.floor(start / SLOT), oldest)
        while slot * SLOT < end:
            share = (min(end, (slot + 1) * SLOT) - max(start, slot * SLOT)) / width
            had = self.slots.get(slot, (0.0, 0.0))
            self.slots[slot] = (had[0] + calls * share, had[1] + failed * share)
            slot += 1


def _series(calls: list[float], failed: list[float]) -> Series:
    if not any(calls):
        return {}
    told: Series = {"calls": [_short(number) for number in calls]}
    if any(failed):
        told["failed"] = [_short(number) for number in failed]
    return told


def _short(number: float) -> Any:
    """A number with one decimal, to keep messages small: a page may get a thousand curves at once."""
    rounded = round(number, 1)
    return int(rounded) if rounded == int(rounded) else rounded


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
    series: Series = field(default_factory=dict[str, list[float]])
    spark: Spark = field(default_factory=Spark)


@dataclass
class Circuits:
    """The circuits of the last reading, with the curves of their last minutes."""

    _known: dict[str, _Known] = field(default_factory=dict[str, _Known])

    def read(self, values: Iterable[tuple[str, Any]], now: float) -> dict[str, dict[str, Row]]:
        """The parts `circuits`, `sparks` and `summary`, from the documents in a store.

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
            known.series = known.spark.series(document["window"], now)
        told = {name: known.row for name, known in self._known.items()}
        sparks = {name: known.series for name, known in self._known.items() if known.series}
        return {"circuits": told, "sparks": sparks, "summary": {"circuits": summary(told)}}


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
    """The number of circuits by state, and the headline of the page."""
    states = Counter(row["state"] for row in rows.values())
    refusing = states["open"] + states["forced_open"]
    opened = [
        (row["rank"], -row.get("opened_at", 0.0), name) for name, row in rows.items() if row["rank"] < 2
    ]
    return {
        "headline": headline(len(rows), refusing, states["half_open"], states["disabled"]),
        "level": "open" if refusing else "probing" if states["half_open"] else "good",
        "total": len(rows),
        "open": refusing,
        "half_open": states["half_open"],
        "disabled": states["disabled"],
        "worst": [name for _, _, name in sorted(opened)[:WORST_NAMED]],
    }


def headline(total: int, refusing: int, half_open: int, disabled: int) -> str:
    """The headline: "2 of 40 circuits open, 1 half-open"."""
    if not total:
        return "No circuit has been called yet"
    counts = [(refusing, "open"), (half_open, "half-open"), (disabled, "disabled")]
    told = [(number, word) for number, word in counts if number]
    if not told:
        return "The only circuit is closed" if total == 1 else f"All {total} circuits are closed"
    (number, word), *more = told
    circuits = "circuit" if total == 1 else "circuits"
    return ", ".join([f"{number} of {total} {circuits} {word}", *(f"{n} {w}" for n, w in more)])


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
