"""The circuits of a fleet: what commands and the dashboard show of each, and how an operator sets them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

from pydantic import BaseModel

from prefect_resilience.base.policy import nearest
from prefect_resilience.base.text import plural
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.circuits.breaker import get_circuit, get_circuits
from prefect_resilience.guards.circuits.model import CircuitSnapshot
from prefect_resilience.guards.circuits.registry import StoreReference
from prefect_resilience.operations.cli import look

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


def read_circuits(url: str) -> list[CircuitSnapshot]:
    """Every circuit in the store; those that reject calls come first. Raises StoreUnavailable."""
    order = list(LEVELS)
    return sorted(get_circuits(url), key=lambda circuit: (order.index(circuit.state), circuit.name))


def counts_line(circuits: Iterable[CircuitSnapshot], url: str) -> str:
    """One line: the number of circuits, and of those that are open, half-open or disabled."""
    return f"{headline([LEVELS[circuit.state] for circuit in circuits])}, in {redact(url)}"


def headline(levels: Sequence[str]) -> str:
    """The circuits in a few words: "2 open, 1 half-open of 40 circuits"."""
    words = {"open": "open", "probing": "half-open", "off": "disabled"}
    texts = [f"{levels.count(level)} {word}" for level, word in words.items() if level in levels]
    number = plural(len(levels), "circuit")
    return f"{', '.join(texts)} of {number}" if texts else f"{number}, none open"


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
    "before": lambda change: look.state(change.before.state),
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
    """The number of circuits, in figures and in words, and the worst of them. `rows`: the worst first."""
    levels = [row["level"] for row in rows.values()]
    opened = [name for name, row in rows.items() if row["level"] == "open"]
    opened.sort(key=lambda name: (rows[name]["rank"], -(rows[name]["opened_at"] or 0.0), name))
    level = next((level for level in ("open", "probing") if level in levels), "good")
    numbers = {"total": len(rows), "open": len(opened), "worst": opened[:WORST_NAMED]}
    return {"headline": headline(levels), "level": level, **numbers}


# -- what an operator changes, in a flow run or outside

Action = Literal["open", "close", "disable", "reset"]

DONE: dict[Action, str] = {"open": "opened", "close": "closed", "disable": "disabled", "reset": "reset"}
NAMES_SHOWN = 10


class CircuitChange(BaseModel, frozen=True):
    """The change of one circuit by one action.

    Example:
        >>> from prefect_resilience.operations import CircuitChange, change_circuit
        >>> before, after = change_circuit("labels", "reset"), change_circuit("labels", "open", "maintenance")
        >>> CircuitChange(name="labels", before=before, after=after).after.state
        'forced_open'
    """

    name: str
    before: CircuitSnapshot
    after: CircuitSnapshot


def change_circuit(
    name: str,
    action: Action,
    reason: str = "",
    until: datetime | timedelta | None = None,
    store: StoreReference = None,
) -> CircuitSnapshot:
    """Carry out the action for the whole fleet and return the circuit afterwards. Raises StoreUnavailable."""
    circuit = get_circuit(name, store)
    # The reason is kept in the store and shown with each rejected call, so it is redacted.
    why = redact(" ".join(reason.split())) or f"{DONE[action]} manually"
    if action == "open":
        circuit.force_open(why, until)
    else:
        {"close": circuit.force_closed, "disable": circuit.disable, "reset": circuit.reset}[action](why)
    return circuit.snapshot()


def find_circuit(name: str, circuits: Iterable[CircuitSnapshot]) -> CircuitSnapshot:
    """The circuit of this name. Raises ConfigurationError, which names similar circuits, if there is none."""
    by_name = {circuit.name: circuit for circuit in circuits}
    if name not in by_name:
        raise ConfigurationError(unknown_circuit(name, by_name))
    return by_name[name]


def unknown_circuit(name: str, names: Iterable[str]) -> str:
    """One sentence: no circuit has this name, and the similar names."""
    options = sorted(names)
    if not options:
        return f"there is no circuit {name!r}: the store has none yet; a circuit is stored at its first call"
    close = difflib.get_close_matches(name, options, n=3)
    return f"there is no circuit {name!r}{nearest(name, close or options[:NAMES_SHOWN])}"
