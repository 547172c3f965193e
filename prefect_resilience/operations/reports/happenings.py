"""Figures from events of this package: failed and rejected attempts, circuits, effects in doubt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import pairwise
from math import inf
from typing import Any

from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.circuits.document import HISTORY_KEPT
from prefect_resilience.guards.circuits.model import CircuitSnapshot
from prefect_resilience.operations.reports.api import Api, Filter, Period, ours
from prefect_resilience.operations.reports.figures import CircuitFigures
from prefect_resilience.operations.reports.task_runs import moment
from prefect_resilience.telemetry.edge.events import PREFIX

# When circuits were open, from events and from the histories in their documents. Pure.
#
# Each change of a circuit begins a new generation. If the known generations are consecutive, no change
# between them is missing. A change is known from an event of a run or from the circuit's document, which
# also has changes outside of runs.

REFUSING = ("open", "forced_open")
FIRST = 2
"""The generation of the first change. A document begins with generation 1, closed."""

SAME = 0.01
"""The most seconds between the event and the document of one change."""


@dataclass(frozen=True, slots=True)
class StateChange:
    """A change of a circuit to the state `after`. Times are seconds since the epoch.

    `before`: the previous state, if known. `retry_at`: the time until which calls are rejected, if any.
    reason: why, if it is known from an event.
    """

    circuit: str
    at: float
    after: str
    generation: int
    before: str | None = None
    retry_at: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Stay:
    """A state of a circuit until its next known change. `follows`: no change before it is missing."""

    change: StateChange
    until: float
    follows: bool
    before: str | None

    @property
    def opening(self) -> bool:
        return self.change.after in REFUSING and self.before not in REFUSING

    @property
    def refusing(self) -> bool:
        return self.change.after in REFUSING


def circuits_of(
    changes: Iterable[StateChange],
    now: Iterable[CircuitSnapshot],
    since: float,
    until: float,
    *,
    every: bool = True,
) -> tuple[CircuitFigures, ...]:
    """Openings and time open of every circuit that changed or is not closed.

    `changes`: the changes from events. `every`: whether these are complete.
    """
    made = [
        _circuit(name, told, snapshot, (since, until), every)
        for name, told, snapshot in _by_circuit(changes, now)
    ]
    shown = [one for one in made if one is not None]
    return tuple(sorted(shown, key=lambda one: (-one.openings, -one.seconds_open, one.name)))


def _by_circuit(
    changes: Iterable[StateChange], now: Iterable[CircuitSnapshot]
) -> Iterator[tuple[str, list[StateChange], CircuitSnapshot | None]]:
    """Each circuit with the changes from events and its document, if there is one."""
    told: dict[str, list[StateChange]] = {}
    for change in changes:
        told.setdefault(change.circuit, []).append(change)
    # Events have redacted names, because a name may contain a parameter.
    snapshots = {redact(snapshot.name): snapshot for snapshot in now}
    for name in told.keys() | snapshots.keys():
        yield name, told.get(name, []), snapshots.get(name)


def _circuit(
    name: str, told: list[StateChange], now: CircuitSnapshot | None, period: tuple[float, float], every: bool
) -> CircuitFigures | None:
    """The figures of one circuit; None if it was closed all the time."""
    since, until = period
    stays = list(_stays(_known(name, told, now)))
    inside = [one for one in stays if since <= one.change.at < until]
    seconds = sum(_seconds_refused(one, since, until) for one in stays)
    state = None if now is None else now.state
    if not inside and not seconds and state in (None, "closed"):
        return None
    return CircuitFigures(
        name=name,
        openings=sum(one.opening for one in inside),
        seconds_open=seconds,
        state=state,
        complete=every and _complete(stays, now, since, until),
    )


def _known(name: str, told: list[StateChange], now: CircuitSnapshot | None) -> list[StateChange]:
    """Every change from events and from the document, without duplicates, in order."""
    known = list(told)
    for entered in () if now is None else now.history:
        one = StateChange(name, entered.at, entered.state, entered.generation, None, entered.retry_at)
        same = next((place for place, other in enumerate(told) if _is_same(other, one)), None)
        if same is None:
            known.append(one)
        else:
            # The document has the latest `retry_at`, the event has the previous state.
            known[same] = replace(told[same], retry_at=one.retry_at)
    if not known and now is not None and now.state in REFUSING:
        # A document of an older version, without a history.
        at = now.updated_at if now.opened_at is None else now.opened_at
        known.append(StateChange(name, at, now.state, now.generation, None, now.retry_at))
    return sorted(known, key=lambda one: (one.at, one.generation))


def _is_same(one: StateChange, other: StateChange) -> bool:
    return one.generation == other.generation and abs(one.at - other.at) < SAME


def _stays(changes: list[StateChange]) -> Iterator[Stay]:
    for place, change in enumerate(changes):
        last = changes[place - 1] if place else None
        follows = _follows(last, change)
        before = change.before
        if before is None and follows:
            before = "closed" if last is None or change.generation < last.generation else last.after
        yield Stay(change, _ended(change, changes[place + 1 :]), follows, before)


def _follows(last: StateChange | None, change: StateChange) -> bool:
    if last is None or change.generation != last.generation:
        return change.generation == FIRST or (last is not None and change.generation == last.generation + 1)
    # It was forced open again after probes were already allowed.
    return change.after == last.after == "forced_open"


def _ended(change: StateChange, later: list[StateChange]) -> float:
    """The end of the state, or a lower bound: a missing change may have ended it at once."""
    if not later:
        return inf
    certain = _follows(change, later[0]) or later[0].before == change.after
    return later[0].at if certain else change.at


def _seconds_refused(stay: Stay, since: float, until: float) -> float:
    """Seconds of the period in which calls were rejected, until a probe was allowed."""
    if not stay.refusing:
        return 0.0
    retry_at = inf if stay.change.retry_at is None else stay.change.retry_at
    return max(0.0, min(stay.until, retry_at, until) - max(stay.change.at, since))


def _complete(stays: list[Stay], now: CircuitSnapshot | None, since: float, until: float) -> bool:
    """Whether no change of the period is missing."""
    if stays and not stays[0].follows and stays[0].change.at > since:
        return False
    for last, stay in pairwise(stays):
        if not stay.follows and stay.change.at > since and last.change.at < until:
            return False
    return not stays or now is None or bool(now.history) or _up_to_date(stays[-1].change, now)


def _up_to_date(last: StateChange, now: CircuitSnapshot) -> bool:
    """Whether the last event is as new as a document without a history."""
    # After the open period a circuit is shown as half-open, one generation ahead of its document.
    ahead = 1 if now.state == "half_open" and last.after in REFUSING else 0
    return now.generation - last.generation <= ahead


MOST_CHANGES = 5_000
CIRCUITS = ("circuit.opened", "circuit.half-opened", "circuit.closed", "circuit.forced")
KEPT = timedelta(days=7)
"""How long Prefect keeps events, by default."""


@dataclass(frozen=True, slots=True)
class Happenings:
    """Counts of events. `refused`: rejected attempts by task. skipped: dead letters that replays skipped.

    changes: changes of circuits in the period, and for circuits that change often the last one before it;
    None if there are too many to read.
    """

    codes: dict[str, int]
    categories: dict[str, int]
    refused: dict[str, int]
    changes: list[StateChange] | None
    in_doubt: int
    skipped: int

    @property
    def failed_attempts(self) -> int:
        return sum(self.codes.values())


def happenings_of(api: Api, period: Period) -> Happenings:
    """Count the events of a period, and read those of circuits."""
    counts = {
        row["value"].removeprefix(f"{PREFIX}."): row["count"]
        for row in api.count_by("event", _named(period, *CIRCUITS, "effect.in-doubt", "dead-letter.skipped"))
    }
    codes, categories = _failed_attempts(api, period)
    changes = sum(counts.get(name, 0) for name in CIRCUITS)
    skipped = counts.get("dead-letter.skipped", 0)
    return Happenings(
        codes=codes,
        categories=categories,
        refused=_refused(api, period),
        changes=None if changes > MOST_CHANGES else changes_of(api, period) if changes else [],
        in_doubt=counts.get("effect.in-doubt", 0),
        # A letter that is skipped several times counts once.
        skipped=api.count_resources(_named(period, "dead-letter.skipped")) if skipped else 0,
    )


def _named(period: Period, *happenings: str) -> Filter:
    # By full names, for which the server has an index.
    return {"occurred": period.occurred(), "event": {"name": ours(*happenings)}}


def _failed_attempts(api: Api, period: Period) -> tuple[dict[str, int], dict[str, int]]:
    """Failed attempts by code and by category, which are both in the id of the events' resource."""
    codes: Counter[str] = Counter()
    categories: Counter[str] = Counter()
    for row in api.count_by("resource", _named(period, "attempt.failed")):
        category, _, code = row["value"].removeprefix(f"{PREFIX}.error.").partition(".")
        codes[code] += row["count"]
        categories[category] += row["count"]
    return dict(codes), dict(categories)


def _refused(api: Api, period: Period) -> dict[str, int]:
    """Rejected attempts by task, which is the resource of the events."""
    rows = api.count_by("resource", _named(period, "attempt.refused"))
    return {row["label"]: row["count"] for row in rows}


def changes_of(api: Api, period: Period) -> list[StateChange]:
    """The changes of circuits in the period, at most MOST_CHANGES, and for circuits that change often the
    last one before it."""
    events, _ = api.events(_named(period, *CIRCUITS), MOST_CHANGES)
    changes = [_change(event) for event in events]
    first: dict[str, StateChange] = {}
    for change in changes:
        first.setdefault(change.circuit, change)
    often = Counter(change.circuit for change in changes)
    # The history of a circuit that changed so often may not reach back to the start of the period.
    unclear = [
        one for name, one in first.items() if often[name] >= HISTORY_KEPT // 2 and one.generation > FIRST
    ]
    before = api.each(lambda one: _before(api, period, one), unclear)
    return [*(one for one in before if one is not None), *changes]


def _before(api: Api, period: Period, first: StateChange) -> StateChange | None:
    """The last change of a circuit before the period, if there is an event."""
    about = _named(Period(period.since - KEPT, period.since), *CIRCUITS)
    about["resource"] = {"id": [f"{PREFIX}.circuit.{first.circuit}"]}
    found = api.latest_event(about)
    return None if found is None else _change(found)


def _change(event: dict[str, Any]) -> StateChange:
    payload = event["payload"]
    occurred = moment(event["occurred"])
    return StateChange(
        circuit=event["resource"].get("prefect.resource.name", ""),
        at=payload.get("at") or (occurred.timestamp() if occurred else 0.0),
        after=str(payload.get("after")),
        generation=payload.get("generation") or 0,
        before=str(payload.get("before")),
        retry_at=payload.get("retry_at"),
        reason=payload.get("reason"),
    )
