"""When circuits rejected calls, from the events of runs and from the circuits' documents. Pure.

A document has the latest changes of its circuit, those outside of runs too; events have earlier ones. Each
change begins a new generation: if the generations are consecutive, no change is missing.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import NamedTuple

from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.circuits.model import CircuitSnapshot
from prefect_resilience.operations.reports.figures import CircuitFigures

REJECTING = ("open", "forced_open")
FIRST = 2
"""The generation of the first change. A document begins with generation 1, closed."""

SAME = 0.01
"""The most seconds between the event and the document of one change."""


class StateChange(NamedTuple):
    """A change of a circuit to the state `after`. Times are seconds since the epoch.

    `before`: the previous state, if known. `retry_at`: the time until which calls are rejected, if any.
    """

    at: float
    after: str
    generation: int
    before: str | None = None
    retry_at: float | None = None


def circuits_of(
    events: dict[str, list[StateChange]],
    documents: Iterable[CircuitSnapshot] | None,
    since: float,
    until: float,
) -> tuple[CircuitFigures, ...]:
    """Openings and time open of every circuit that changed or is not closed. `documents`: None if unknown."""
    # Events have redacted names, because a name may contain a parameter.
    snapshots = {redact(snapshot.name): snapshot for snapshot in documents or ()}
    figures: list[CircuitFigures] = []
    for name in events.keys() | snapshots.keys():
        snapshot = snapshots.get(name)
        openings, seconds, complete = _open_time(_changes(events.get(name, []), snapshot), since, until)
        figures.append(
            CircuitFigures(
                name=name,
                openings=openings,
                seconds_open=seconds,
                state=snapshot.state if snapshot else None,
                complete=complete and documents is not None,
            )
        )
    shown = [
        one
        for one in figures
        if one.openings or one.seconds_open or one.state not in (None, "closed") or not one.complete
    ]
    return tuple(sorted(shown, key=lambda one: (-one.openings, -one.seconds_open, one.name)))


def _changes(events: list[StateChange], now: CircuitSnapshot | None) -> list[StateChange]:
    """Every known change, in order: those of events, until the document's history begins."""
    history = now.history if now else ()
    begin = history[0].at - SAME if history else inf
    entered = [StateChange(one.at, one.state, one.generation, None, one.retry_at) for one in history]
    return sorted([change for change in events if change.at < begin]) + entered


def _open_time(changes: list[StateChange], since: float, until: float) -> tuple[int, float, bool]:
    """Openings, the seconds in which calls were rejected, and whether no change of the period is missing."""
    openings, seconds, complete = 0, 0.0, True
    for last, change, later in zip([None, *changes], changes, [*changes[1:], None], strict=False):
        follows = _follows(last, change)
        before = change.before or (_before(last, change) if follows else None)
        if change.after in REJECTING:
            openings += before not in REJECTING and since <= change.at < until
            seconds += max(0.0, min(_end(change, later), until) - max(change.at, since))
        if not follows and change.at > since and (last is None or last.at < until):
            complete = False
    return openings, seconds, complete


def _follows(last: StateChange | None, change: StateChange) -> bool:
    """Whether no change between these two is missing."""
    if last is None or change.generation != last.generation:
        return change.generation == FIRST or (last is not None and change.generation == last.generation + 1)
    # It was forced open again after probes were already allowed.
    return change.after == last.after == "forced_open"


def _before(last: StateChange | None, change: StateChange) -> str:
    return "closed" if last is None or change.generation < last.generation else last.after


def _end(change: StateChange, later: StateChange | None) -> float:
    """When calls may pass again, or a lower bound: a missing change may have ended the state at once."""
    end = inf if change.retry_at is None else change.retry_at
    if later is None:
        return end
    return min(end, later.at) if _follows(change, later) or later.before == change.after else change.at
