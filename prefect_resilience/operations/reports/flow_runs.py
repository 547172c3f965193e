"""The flow runs of a period: their last states, and their earlier failures and crashes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.errors.taxonomy import bounded
from prefect_resilience.operations.reports.api import PAGE, Api, Filter, Period
from prefect_resilience.operations.reports.figures import (
    COMPLETED,
    CRASHED,
    FAILED,
    FINAL,
    BadEnd,
    FlowFigures,
    spread_of,
)
from prefect_resilience.operations.reports.task_runs import chunks, moment

BAD = (FAILED, CRASHED)
RUNNING = "RUNNING"
REPEATED = timedelta(seconds=30)
"""For this long after a crash Prefect may report it again, whatever the run's state is by then."""

SAID = 200


@dataclass(frozen=True, slots=True)
class StateAt:
    """One state of a flow run."""

    type: str
    name: str
    at: datetime
    message: str = ""


def bad_ends_of(
    run_id: str, name: str, states: Iterable[StateAt], since: datetime, until: datetime
) -> list[BadEnd]:
    """Each failure or crash of a flow run before `until`, in order, and its recovery by then."""
    seen = sorted((state for state in states if state.at < until), key=lambda state: state.at)
    begins = [place for place in range(len(seen)) if _ends_badly(seen, place)]
    ends = [*begins, len(seen)][1:]
    return [
        _bad_end(run_id, name, seen[begin], seen[begin + 1 : end], since, until)
        for begin, end in zip(begins, ends, strict=True)
    ]


def _ends_badly(states: Sequence[StateAt], place: int) -> bool:
    """Whether this state is a new failure or crash, not a second report of one."""
    state = states[place]
    if state.type not in BAD:
        return False
    for earlier in reversed(states[:place]):
        if earlier.type == RUNNING:
            return True
        if earlier.type in BAD:
            directly = states[place - 1].type in BAD
            return not directly and state.at - earlier.at > REPEATED
    return True


def _bad_end(
    run_id: str, name: str, state: StateAt, after: Sequence[StateAt], since: datetime, until: datetime
) -> BadEnd:
    again = next((one for one in after if one.type not in BAD), None)
    completed = next((one for one in after if one.type == COMPLETED), None)
    left = until if again is None else again.at
    return BadEnd(
        flow_run_id=run_id,
        flow_run=name,
        kind=state.type,
        state=state.name,
        at=state.at,
        again_at=None if again is None else again.at,
        by=None if again is None else bounded(redact(again.message), SAID) or None,
        completed_at=None if completed is None else completed.at,
        seconds=max(0.0, (left - max(state.at, since)).total_seconds()),
    )


def concerns(end: BadEnd, since: datetime) -> bool:
    """Whether a bad end or its recovery is not before `since`."""
    return any(at is not None and at >= since for at in (end.at, end.again_at, end.completed_at))


def with_bad_ends(figures: FlowFigures, runs: Iterable[Sequence[BadEnd]], since: datetime) -> FlowFigures:
    """The figures with those of bad ends. `runs`: the bad ends of each flow run, in order."""
    listed = [ends for ends in runs if ends]
    ends = [end for some in listed for end in some]
    recoveries = [_recovery(some) for some in listed]
    in_period = [seconds for at, seconds in filter(None, recoveries) if at >= since]
    return figures.model_copy(
        update={
            "crashes": sum(end.kind == CRASHED and end.at >= since for end in ends),
            "failures": sum(end.kind == FAILED and end.at >= since for end in ends),
            "recovered": len(in_period),
            "seconds_in_error": sum(end.seconds for end in ends),
            "recovery_time": spread_of(in_period),
        }
    )


def _recovery(ends: Sequence[BadEnd]) -> tuple[datetime, float] | None:
    """When a flow run completed after its bad ends, and the seconds since the first of them."""
    completed = ends[-1].completed_at
    return None if completed is None else (completed, (completed - ends[0].at).total_seconds())


OWN_TAG = "prefect-resilience"
"""The tag of the package's own deployments, and so of their runs. No figure has these runs."""
OWN: Filter = {"tags": {"all_": [OWN_TAG]}}

EVENT = "prefect.flow-run."
NAMES = ("Crashed", "Failed", "TimedOut")
"""Prefect's names for bad ends. A bad end with another name is found only if it is the run's last state."""

BEFORE = timedelta(days=2)
"""How far before the period to search for bad ends of runs that completed in it."""

MOST = 300
"""The largest number of runs with bad ends that are read; each takes a request."""


def flow_figures(
    api: Api, period: Period, unknown: list[str]
) -> tuple[FlowFigures, tuple[BadEnd, ...] | None]:
    """The figures, and the bad ends, the latest first; None if there are too many."""
    figures = _by_last_state(api, period)
    names = _ended_badly(api, period)
    if len(names) > MOST:
        unknown.append(
            f"Recoveries of failed and crashed flow runs: there are {len(names):,}, too many to read each."
        )
        return figures, None
    runs = list(api.each(lambda named: _bad_ends(api, period, *named), names.items()))
    shown = [[end for end in ends if concerns(end, period.since)] for ends in runs]
    ends = sorted((end for some in shown for end in some), key=lambda end: end.at, reverse=True)
    return with_bad_ends(figures, shown, period.since), tuple(ends)


def _by_last_state(api: Api, period: Period) -> FlowFigures:
    def count(kind: str) -> int:
        ended = _ended(period, kind)
        return api.count("flow_runs", ended) - api.count("flow_runs", {**ended, **OWN})

    counts = dict(zip(FINAL, api.each(count, FINAL), strict=True))
    named: dict[str, Any] = {kind.lower(): number for kind, number in counts.items()}
    return FlowFigures(runs=sum(counts.values()), **named)


def _ended(period: Period, *kinds: str) -> Filter:
    return {"end_time": period.ended(), "state": {"type": {"any_": list(kinds)}}}


def _ended_badly(api: Api, period: Period) -> dict[str, str]:
    """The names, by id, of flow runs that ended badly in the period or shortly before it."""
    wider = Period(period.since - BEFORE, period.until)
    about = {"occurred": wider.occurred(), "event": {"name": [EVENT + name for name in NAMES]}}
    found = {row["value"].removeprefix(EVENT): row["label"] for row in api.count_by("resource", about)}
    # Prefect keeps events only for some days, but it knows runs that are still failed or crashed.
    for row in api.flow_runs(_ended(period, *BAD), MOST + 1):
        found.setdefault(row["id"], row["name"])
    for ids in chunks(found, PAGE):
        for row in api.flow_runs({"id": {"any_": ids}, **OWN}, PAGE):
            del found[row["id"]]
    return found


def _bad_ends(api: Api, period: Period, run_id: str, name: str) -> list[BadEnd]:
    states = [_state(row) for row in api.get("/flow_run_states/", {"flow_run_id": run_id})]
    return bad_ends_of(run_id, name, states, period.since, period.until)


def _state(row: dict[str, Any]) -> StateAt:
    at = moment(row["timestamp"])
    assert at is not None
    return StateAt(row["type"], row["name"] or row["type"].title(), at, row["message"] or "")
