"""Circuits as rows: their order, and what the command line and the dashboard show of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from typing import Any, Literal

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text

from prefect_resilience.base.text import lasting, plural
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.circuits.fleet import get_circuits
from prefect_resilience.guards.circuits.model import CircuitSnapshot
from prefect_resilience.operations.circuit_changes import CircuitChange
from prefect_resilience.operations.cli import look
from prefect_resilience.operations.cli.look import NUMBER, TEXT, WORD
from prefect_resilience.operations.cli.options import explained
from prefect_resilience.stores import open_store

Level = Literal["open", "probing", "failing", "off", "good"]
"""The colour of a circuit on the page. "failing": closed, but many calls fail; "off": disabled."""

STATES: dict[str, tuple[Level, str]] = {
    "forced_open": ("open", "set by an operator; calls are rejected"),
    "open": ("open", "calls are rejected until the next probe"),
    "half_open": ("probing", "probes decide whether it closes"),
    "disabled": ("off", "set by an operator; every call goes through, and nothing is counted"),
    "closed": ("good", "calls go through"),
}
"""The level and the meaning of each state, the worst state first."""

FAILING, FEWEST = 0.1, 5
"""A closed circuit is "failing" from this share of failures among at least FEWEST calls."""
ROWS_A_SECOND = 200
"""Circuits per second that get new figures on the page, at most. A change of state is shown at once."""
NARROWEST = 16
WORST_NAMED = 3


@dataclass(frozen=True, slots=True)
class FleetCircuits:
    """The circuits of a store; those that reject calls come first. `now`: its time, `url`: redacted."""

    url: str
    now: float
    circuits: tuple[CircuitSnapshot, ...]


def read_circuits(url: str) -> FleetCircuits:
    """Read every circuit in the store. Raises StoreUnavailable with a sentence for the operator."""
    with explained(url):
        circuits = get_circuits(url)
        now = open_store(url).now()
    order = list(STATES)
    circuits.sort(key=lambda circuit: (order.index(circuit.state), circuit.name))
    return FleetCircuits(redact(url), now, tuple(circuits))


@lru_cache(maxsize=4096)
def why(reason: str | None, last_error: str | None) -> str:
    """The reason of the state and the last error, if there are any. Cached: redacting is slow."""
    return "; ".join(dict.fromkeys(look.safe(text) for text in (reason, last_error) if text))


# -- on the command line


def circuits_table(fleet: FleetCircuits) -> RenderableType:
    """A row for each circuit; below the table the reason of each circuit that is not closed."""
    now, circuits = fleet.now, fleet.circuits
    longest = max((cell_len(look.printable(circuit.name)) for circuit in circuits), default=0)
    figures: look.Columns[CircuitSnapshot] = {
        "failed": (NUMBER, lambda circuit: f"{circuit.window_failures}/{circuit.window_calls}"),
        "in a row": (NUMBER, lambda circuit: str(circuit.consecutive_failures)),
        "opened": (NUMBER, lambda circuit: _span(circuit.opened_at, now, " ago")),
        "retry in": (NUMBER, lambda circuit: _span(now, circuit.retry_at)),
        "probes": (NUMBER, lambda circuit: str(circuit.probes_in_flight or "")),
    }
    columns: look.Columns[CircuitSnapshot] = {
        "state": (WORD, lambda circuit: look.state(circuit.state)),
        "circuit": (min(longest, NARROWEST), lambda circuit: circuit.name),
        # Omit a column that is empty for every circuit.
        **{heading: column for heading, column in figures.items() if any(map(column[1], circuits))},
    }
    return Group(look.table(columns, circuits), *_reasons(circuits))


def _span(begin: float | None, end: float | None, after: str = "") -> str:
    return "" if begin is None or end is None else f"{lasting(round(end - begin))}{after}"


def _reasons(circuits: Iterable[CircuitSnapshot]) -> Iterator[RenderableType]:
    for circuit in circuits:
        if circuit.state != "closed" and (reason := why(circuit.reason, circuit.last_error)):
            line = Text("  ").append(look.printable(circuit.name), style="bold").append(f": {reason}")
            line.no_wrap, line.overflow = True, "ellipsis"
            yield line


def counts_line(fleet: FleetCircuits) -> str:
    """One line: the number of circuits and of open ones."""
    rejecting = sum(STATES[circuit.state][0] == "open" for circuit in fleet.circuits)
    return f"{plural(len(fleet.circuits), 'circuit')}, {rejecting or 'none'} open, in {fleet.url}"


def card_rows(circuit: CircuitSnapshot, now: float) -> Iterator[tuple[str, look.Cell]]:
    """All facts about one circuit."""
    yield "circuit", circuit.name
    _, meaning = STATES[circuit.state]
    yield "state", look.state(circuit.state).append(f"  {meaning}", style="not bold default")
    for label, text in (("reason", circuit.reason), ("last error", circuit.last_error)):
        yield label, look.safe(text) if text else "none"
    for label, moment in (("opened", circuit.opened_at), ("retry", circuit.retry_at)):
        yield label, "-" if moment is None else look.local(moment, now)
    counted = f"{circuit.window_calls} calls, {circuit.window_failures} failed, {circuit.window_slow} slow"
    sample = f" (a sample: 1 call in {round(1 / circuit.share_counted):,})"
    yield "window", counted if circuit.share_counted >= 1 else counted + sample
    yield "in a row", f"{circuit.consecutive_failures} failures"
    if circuit.usual_failure_rate is not None:
        yield "usually", f"{circuit.usual_failure_rate:.1%} of the calls fail"
    yield "re-openings", f"{circuit.reopenings} since the last full recovery"
    yield "probes", f"{circuit.probes_in_flight} in flight"
    yield "generation", str(circuit.generation)
    yield "changed", look.local(circuit.updated_at, now) if circuit.updated_at else "never"


CHANGES: look.Columns[CircuitChange] = {
    "circuit": (12, lambda change: change.name),
    "before": (WORD, lambda change: look.state(change.before.state) if change.before else "new"),
    "after": (WORD, lambda change: look.state(change.after.state)),
    "until": (WORD, lambda change: look.clock(change.after.retry_at) if change.after.retry_at else ""),
    "why": (TEXT, lambda change: why(change.after.reason, change.after.last_error)),
}
"""Changed circuits, with their states before and after."""


# -- on the page


def page_row(circuit: CircuitSnapshot) -> dict[str, Any]:
    """The row of one circuit. `rank` sorts the worst first. `share`: failures among the calls."""
    calls = circuit.window_calls
    share = circuit.window_failures / calls if calls else 0.0
    level, _ = STATES[circuit.state]
    rank = list(STATES).index(circuit.state)
    if level == "good" and calls >= FEWEST and share >= FAILING:
        # Coarse steps, so that rows do not swap places with every call.
        level, rank = "failing", rank + (0 if share >= 0.5 else 1 if share >= 0.25 else 2)
    elif level == "good":
        rank += 3
    figures = circuit.model_dump(
        include={"opened_at", "retry_at", "window_calls", "consecutive_failures"}, exclude_defaults=True
    )
    reason = "" if circuit.state == "closed" else why(circuit.reason, circuit.last_error)
    return {
        **{"state": circuit.state, "level": level, "rank": rank},
        **{"share": round(share, 3), "why": reason, **figures},
    }


_MARKS = attrgetter(
    "state", "generation", "reopenings", "retry_at", "reason", "last_error", "probes_in_flight"
)
"""Fields of a circuit that change with its state, not with every call."""


@dataclass
class CircuitRows:
    """The rows of the last reading. While its state stays, a circuit gets new figures only at times."""

    _last: dict[str, tuple[Any, float, dict[str, Any]]] = field(default_factory=dict[str, Any])

    def read(self, circuits: Sequence[CircuitSnapshot], now: float) -> dict[str, dict[str, Any]]:
        """The rows of the page by name."""
        last, self._last = self._last, {}
        patience = max(1.0, len(circuits) / ROWS_A_SECOND)
        for circuit in circuits:
            marks, row = _MARKS(circuit), last.get(circuit.name)
            if row is None or row[0] != marks or now >= row[1]:
                row = marks, now + patience, page_row(circuit)
            self._last[circuit.name] = row
        return {name: row for name, (_, _, row) in self._last.items()}


def summary(rows: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The number of circuits by state, in figures and in words, and the worst of them."""
    states = Counter[str](row["state"] for row in rows.values())
    opened = sorted(
        (row["rank"], -row.get("opened_at", 0.0), name)
        for name, row in rows.items()
        if row["level"] == "open"
    )
    level = "open" if opened else "probing" if states["half_open"] else "good"
    return {
        "headline": headline(len(rows), {**states, "open": len(opened)}),
        "level": level,
        "total": len(rows),
        "open": len(opened),
        "worst": [name for _, _, name in opened[:WORST_NAMED]],
    }


def headline(total: int, counts: Mapping[str, int]) -> str:
    """The circuits in a few words: "2 of 40 circuits open, 1 half-open"."""
    if not total:
        return "No circuit has been called yet"
    words = ((state, state.replace("_", "-")) for state in ("open", "half_open", "disabled"))
    shown = [f"{counts[state]} {word}" for state, word in words if counts.get(state)]
    if not shown:
        return "The only circuit is closed" if total == 1 else f"All {total} circuits are closed"
    number, _, word = shown[0].partition(" ")
    return ", ".join([f"{number} of {plural(total, 'circuit')} {word}", *shown[1:]])
