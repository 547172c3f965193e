"""The circuits of the fleet as rows of the page: how bad each is, its rate, its curve; and the headline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, cast

from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.circuits import machine
from prefect_resilience.guards.circuits.link import snapshot_of
from prefect_resilience.guards.circuits.model import CircuitSnapshot
from prefect_resilience.guards.circuits.window import WindowDocument
from prefect_resilience.operations.dashboard.board import Row, Series, Spark

Level = Literal["open", "probing", "failing", "off", "good"]
"""What the colour says: calls are refused; probes decide; closed, but many calls fail; disabled; well."""

FAILING = 0.1
FEWEST = 5
"""A closed circuit is "failing" from this share of failures on, of at least so many calls."""

WORST_NAMED = 3
ROWS_A_SECOND = 200
"""So many circuits get new figures in a second, at most; a change of state is always told at once."""

_LEVELS: dict[str, Level] = {"open": "open", "forced_open": "open", "half_open": "probing", "disabled": "off"}
_RANKS = {"open": 0, "forced_open": 1, "half_open": 2, "disabled": 6, "closed": 7}
_MARKS = ("state", "generation", "openings", "retry_at", "reason", "last_error")
"""Fields of a document that change when its circuit does, and not with every call."""


@dataclass(slots=True)
class _Known:
    """What was told of a circuit, and from when on it may be told anew."""

    marks: tuple[Any, ...] = ()
    due_at: float = 0.0
    row: Row = field(default_factory=dict[str, Any])
    series: Series = field(default_factory=dict[str, list[float]])
    spark: Spark = field(default_factory=Spark)


@dataclass
class Circuits:
    """The circuits as they were read last, with the curves of their last minutes."""

    _known: dict[str, _Known] = field(default_factory=dict[str, _Known])

    def read(self, values: Iterable[tuple[str, Any]], now: float) -> dict[str, dict[str, Row]]:
        """The parts `circuits`, `sparks` and `summary`, from all documents as a store returned them.

        A circuit whose state did not change is looked at again only when it is its turn.
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
    """What must be equal for a circuit to be in the state in which it was."""
    document = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    marks = tuple(document.get(name) for name in _MARKS)
    retry_at, leases = document.get("retry_at"), document.get("leases")
    its_time_came = isinstance(retry_at, int | float) and retry_at <= now
    return (*marks, its_time_came, len(cast("dict[str, Any]", leases)) if isinstance(leases, dict) else 0)


def circuit_row(circuit: CircuitSnapshot, window: WindowDocument | None) -> Row:
    """One circuit; times are the store's.

    `rank` puts the worst first. `rate` is in calls a second, none where a window has no times. `share` is the
    share of failures among the calls in the window. What is 0, empty or unknown is left out.
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
        "rate": None if seconds is None else round(calls / seconds, 2),
        "in_row": circuit.consecutive_failures,
    }
    shown = {key: value for key, value in told.items() if value}
    return {"state": circuit.state, "level": level, "rank": rank, **shown}


def summary(rows: Mapping[str, Row]) -> Row:
    """How many circuits are in which state, in numbers and as the headline of the page."""
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
    """One sentence for one glance: "2 of 40 circuits open, 1 half-open"."""
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
    """In coarse steps, so that rows do not change places at every call."""
    return 3 if share >= 0.5 else 4 if share >= 0.25 else 5


@lru_cache(maxsize=4096)
def _why(*texts: str | None) -> str:
    """Kept, since masking takes longer than all the rest, and the texts stay the same for minutes."""
    return "; ".join(dict.fromkeys(redact(text) for text in texts if text))
