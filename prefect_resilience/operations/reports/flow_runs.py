"""The flow runs of a period: their last states, and their earlier failures and crashes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from statistics import median
from typing import NamedTuple

from prefect_resilience.operations.reports.api import PAGE, Api, Filter, Period
from prefect_resilience.operations.reports.figures import (
    COMPLETED,
    CRASHED,
    FAILED,
    FINAL,
    FlowFigures,
)
from prefect_resilience.operations.reports.task_runs import chunks

BAD = (FAILED, CRASHED)
RUNNING = "RUNNING"
REPEATED = timedelta(seconds=30)
"""For this long after a crash Prefect may report it again, whatever the run's state is by then."""


class StateAt(NamedTuple):
    """One state of a flow run."""

    at: datetime
    type: str


class BadEnd(NamedTuple):
    """One failure or crash of a flow run, when it was scheduled again, and when the run then completed."""

    kind: str
    at: datetime
    again_at: datetime | None = None
    completed_at: datetime | None = None


def bad_ends_of(states: Iterable[StateAt], until: datetime) -> list[BadEnd]:
    """Each failure or crash of a flow run before `until`, in order, and its recovery by then."""
    ends: list[BadEnd] = []
    earlier: StateAt | None = None
    reported: datetime | None = None
    for state in sorted((state for state in states if state.at < until), key=lambda state: state.at):
        if state.type == RUNNING:
            reported = None
        if state.type in BAD:
            directly = earlier is not None and earlier.type in BAD
            # Otherwise it is a second report of the same end.
            if reported is None or (not directly and state.at - reported > REPEATED):
                ends.append(BadEnd(state.type, state.at))
            reported = state.at
        elif ends:
            end = ends[-1]
            completed_at = end.completed_at or (state.at if state.type == COMPLETED else None)
            ends[-1] = end._replace(again_at=end.again_at or state.at, completed_at=completed_at)
        earlier = state
    return ends


def seconds_of(end: BadEnd, period: Period) -> float:
    """How long a run was failed or crashed in the period."""
    return max(0.0, ((end.again_at or period.until) - max(end.at, period.since)).total_seconds())


def with_bad_ends(figures: FlowFigures, runs: Iterable[Sequence[BadEnd]], period: Period) -> FlowFigures:
    """The figures with those of bad ends. `runs`: the bad ends of each flow run, in order."""
    since = period.since
    # Without the bad ends that were over before the period.
    runs = [[end for end in ends if any(at and at >= since for at in end[1:])] for ends in runs]
    ends = [end for some in runs for end in some]
    # When each flow run completed after its bad ends, and since the first of them.
    completed = [(some[-1].completed_at, some[0].at) for some in runs if some]
    recoveries = [(end - begin).total_seconds() for end, begin in completed if end and end >= since]
    return figures.model_copy(
        update={
            "crashes": sum(end.kind == CRASHED and end.at >= since for end in ends),
            "failures": sum(end.kind == FAILED and end.at >= since for end in ends),
            "recovered": len(recoveries),
            "seconds_in_error": sum(seconds_of(end, period) for end in ends),
            "recovery_time": median(recoveries) if recoveries else None,
        }
    )


OWN_TAG = "prefect-resilience"
"""The tag of the package's own deployments, and so of their runs. No figure has these runs."""
OWN: Filter = {"tags": {"all_": [OWN_TAG]}}

EVENT = "prefect.flow-run."
NAMES = ("Crashed", "Failed", "TimedOut")
"""Prefect's names for bad ends. A bad end with another name is found only if it is the run's last state."""

BEFORE = timedelta(days=2)
"""How far before the period to search for bad ends of runs that completed in it."""

MOST = PAGE - 1
"""The largest number of runs with bad ends that are read; each takes a request."""


def flow_figures(api: Api, period: Period, unknown: list[str]) -> FlowFigures:
    """The figures; without those of bad ends if there are too many."""
    figures = _by_last_state(api, period)
    ids = _find_bad_ends(api, period)
    if len(ids) > MOST:
        unknown.append(
            f"Recoveries of failed and crashed flow runs: there are {len(ids):,}, too many to read each."
        )
        return figures
    return with_bad_ends(figures, api.each(lambda run_id: _bad_ends(api, period, run_id), ids), period)


def _by_last_state(api: Api, period: Period) -> FlowFigures:
    def count(kind: str) -> int:
        ended = _end_filter(period, kind)
        return api.count("flow_runs", ended) - api.count("flow_runs", {**ended, **OWN})

    counts = {kind.lower(): number for kind, number in zip(FINAL, api.each(count, FINAL), strict=True)}
    return FlowFigures.model_validate({"runs": sum(counts.values()), **counts})


def _end_filter(period: Period, *kinds: str) -> Filter:
    return {"end_time": period.ends(), "state": {"type": {"any_": list(kinds)}}}


def _find_bad_ends(api: Api, period: Period) -> set[str]:
    """The ids of flow runs that ended badly in the period or shortly before it."""
    wider = Period(period.since - BEFORE, period.until)
    about = {"occurred": wider.occurred(), "event": {"name": [EVENT + name for name in NAMES]}}
    ids = {row["value"].removeprefix(EVENT) for row in api.count_by("resource", about)}
    # Prefect keeps events only for some days, but it knows runs that are still failed or crashed.
    ids |= {row["id"] for row in api.page(_end_filter(period, *BAD), kind="flow_runs")}
    for some in chunks(ids, PAGE):
        ids -= {row["id"] for row in api.page({"id": {"any_": some}, **OWN}, kind="flow_runs")}
    return ids


def _bad_ends(api: Api, period: Period, run_id: str) -> list[BadEnd]:
    rows = api.get("/flow_run_states/", {"flow_run_id": run_id})
    states = [StateAt(datetime.fromisoformat(row["timestamp"]), row["type"]) for row in rows]
    return bad_ends_of(states, period.until)
