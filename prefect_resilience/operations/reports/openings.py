"""How often circuits opened, and how long they rejected calls. Pure.

A circuit's document has its latest changes, with their times. Events of runs count earlier openings, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf

from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.circuits.model import CircuitEntered, CircuitSnapshot
from prefect_resilience.operations.reports.figures import CircuitFigures

REJECTING = ("open", "forced_open")
FIRST = 2
"""The generation of the first change. A document begins with generation 1, closed."""


def circuits_of(
    openings: Mapping[str, int], documents: Iterable[CircuitSnapshot], since: float, until: float
) -> tuple[CircuitFigures, ...]:
    """The figures of every circuit that opened or is not closed. `openings`: how many have an event."""
    figures: list[CircuitFigures] = []
    # Events have redacted names, because a name may contain a parameter.
    snapshots = {redact(snapshot.name): snapshot for snapshot in documents}
    for name in openings.keys() | snapshots.keys():
        snapshot = snapshots.get(name, CircuitSnapshot(name=name))
        number, seconds = _rejections(snapshot.history, since, until)
        begins = [change for change in snapshot.history if change.generation == FIRST or change.at <= since]
        circuit = CircuitFigures(
            name=name,
            openings=max(number, openings.get(name, 0)),
            seconds_open=seconds,
            state=snapshot.state if name in snapshots else None,
            complete=number >= openings.get(name, 0) and bool(begins or not snapshot.history),
        )
        if circuit.openings or seconds or circuit.state not in (None, "closed") or not circuit.complete:
            figures.append(circuit)
    return tuple(
        sorted(figures, key=lambda circuit: (-circuit.openings, -circuit.seconds_open, circuit.name))
    )


def _rejections(history: Sequence[CircuitEntered], since: float, until: float) -> tuple[int, float]:
    """The openings in the period, and the seconds of it in which calls were rejected."""
    openings, seconds = 0, 0.0
    for last, change, later in zip((None, *history), history, (*history[1:], None), strict=False):
        if change.state not in REJECTING:
            continue
        # Before the first change that is known, the circuit may have been open.
        is_opening = last.state not in REJECTING if last else change.generation == FIRST
        openings += is_opening and since <= change.at < until
        end = min(inf if change.retry_at is None else change.retry_at, later.at if later else inf, until)
        seconds += max(0.0, end - max(change.at, since))
    return openings, seconds
