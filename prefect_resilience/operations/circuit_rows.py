"""Circuits as rows: their order, and what the command line and the dashboard show of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from prefect_resilience.base.text import plural
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.circuits.breaker import get_circuits
from prefect_resilience.guards.circuits.model import CircuitSnapshot
from prefect_resilience.operations.cli import look
from prefect_resilience.operations.cli.options import explain

Level = Literal["open", "probing", "failing", "off", "good"]
"""The colour of a circuit on the page. "failing": closed, but many calls fail; "off": disabled."""

LEVELS: dict[str, Level] = {
    **{"forced_open": "open", "open": "open", "half_open": "probing", "disabled": "off"},
    **{"failing": "failing", "closed": "good"},
}
"""The level of each state, and of a closed circuit that is failing; the worst first."""

FAILING, FEWEST = 0.1, 5
"""A closed circuit is "failing" from this share of failures among at least FEWEST calls."""
WORST_NAMED = 3


@dataclass(frozen=True, slots=True)
class FleetCircuits:
    """The circuits of a store; those that reject calls come first. `url`: redacted."""

    url: str
    circuits: tuple[CircuitSnapshot, ...]

    @property
    def counts_line(self) -> str:
        """One line: the number of circuits, and of those that are open, half-open or disabled."""
        return f"{headline([LEVELS[circuit.state] for circuit in self.circuits])}, in {self.url}"


def read_circuits(url: str) -> FleetCircuits:
    """Read every circuit in the store. Raises StoreUnavailable with a sentence for the operator."""
    with explain(url):
        circuits = get_circuits(url)
    order = list(LEVELS)
    circuits.sort(key=lambda circuit: (order.index(circuit.state), circuit.name))
    return FleetCircuits(redact(url), tuple(circuits))


def why(circuit: CircuitSnapshot) -> str:
    """The reason of the state and the last error; nothing for a closed circuit."""
    texts = (circuit.reason, circuit.last_error) if circuit.state != "closed" else ()
    return "; ".join(dict.fromkeys(look.safe(text) for text in texts if text))


COLUMNS: look.Columns = {
    **{"state": "state", "circuit": "name", "calls": "window_calls", "failed": "window_failures"},
    **{"in a row": "consecutive_failures", "opened": "opened_at", "retry": "retry_at", "why": why},
}
FEW: look.Columns = {"state": "state", "circuit": "name"}
CHANGES: look.Columns = {
    "circuit": "name",
    "before": lambda change: look.state(change.before.state if change.before else "new"),
    "after": lambda change: look.state(change.after.state),
    "until": lambda change: look.cell("retry_at", change.after.retry_at),
    "why": lambda change: change.after.reason,
}
"""Changed circuits, with their states before and after."""


def page_row(circuit: CircuitSnapshot) -> dict[str, Any]:
    """The row of one circuit on the page. `rank` sorts the worst first. `share`: failures among the calls."""
    calls = circuit.window_calls
    share = circuit.window_failures / calls if calls else 0.0
    is_failing = circuit.state == "closed" and calls >= FEWEST and share >= FAILING
    state = "failing" if is_failing else circuit.state
    figures = {"state", "opened_at", "retry_at", "window_calls", "consecutive_failures"}
    return {
        **circuit.model_dump(include=figures),
        **{"level": LEVELS[state], "rank": list(LEVELS).index(state)},
        **{"share": round(share, 3), "why": why(circuit)},
    }


def summary(rows: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The number of circuits, in figures and in words, and the worst of them."""
    levels = [row["level"] for row in rows.values()]
    opened = sorted(
        (row["rank"], -(row["opened_at"] or 0.0), name)
        for name, row in rows.items()
        if row["level"] == "open"
    )
    return {
        "headline": headline(levels),
        "level": next((level for level in ("open", "probing") if level in levels), "good"),
        **{"total": len(rows), "open": len(opened)},
        "worst": [name for _, _, name in opened[:WORST_NAMED]],
    }


def headline(levels: Sequence[str]) -> str:
    """The circuits in a few words: "2 open, 1 half-open of 40 circuits"."""
    words = {"open": "open", "probing": "half-open", "off": "disabled"}
    texts = [f"{levels.count(level)} {word}" for level, word in words.items() if level in levels]
    number = plural(len(levels), "circuit")
    return f"{', '.join(texts)} of {number}" if texts else f"{number}, none open"
