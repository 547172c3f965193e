"""The flow runs of a period: their last states, and their earlier failures and crashes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

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


class StateAt(NamedTuple):
    """One state of a flow run."""

    at: datetime
    type: str
    name: str
    message: str = ""


def bad_ends_of(
    run_id: str, name: str, states: Iterable[StateAt], since: datetime, until: datetime
) -> list[BadEnd]:
    """Each failure or crash of a flow run before `until`, in order, and its recovery by then."""
    ends: list[BadEnd] = []
    earlier: StateAt | None = None
    reported: datetime | None = None
    for state in sorted((one for one in states if one.at < until), key=lambda state: state.at):
        if state.type == RUNNING:
            reported = None
        if state.type in BAD:
            directly = earlier is not None and earlier.type in BAD
            # Otherwise it is a second report of the same end.
            if reported is None or (not directly and state.at - reported > REPEATED):
                end = BadEnd(
                    flow_run_id=run_id, flow_run=name, kind=state.type, state=state.name, at=state.at
                )
                ends.append(end.model_copy(update={"seconds": _overlap(state.at, until, since)}))
            reported = state.at
        elif ends:
            ends[-1] = _follow_up(ends[-1], state, since)
        earlier = state
    return ends


def _follow_up(end: BadEnd, state: StateAt, since: datetime) -> BadEnd:
    """The bad end with what a later state says about its recovery."""
    changes: dict[str, Any] = {}
    if end.again_at is None:
        by = bounded(redact(state.message), SAID) or None
        changes = {"again_at": state.at, "by": by, "seconds": _overlap(end.at, state.at, since)}
    if state.type == COMPLETED and end.completed_at is None:
        changes["completed_at"] = state.at
    return end.model_copy(update=changes)


def _overlap(begin: datetime, end: datetime, since: datetime) -> float:
    return max(0.0, (end - max(begin, since)).total_seconds())


def concerns(end: BadEnd, since: datetime) -> bool:
    """Whether a bad end or its recovery is not before `since`."""
    return any(at is not None and at >= since for at in (end.at, end.again_at, end.completed_at))


def with_bad_ends(figures: FlowFigures, runs: Iterable[Sequence[BadEnd]], since: datetime) -> FlowFigures:
    """The figures with those of bad ends. `runs`: the bad ends of each flow run, in order."""
    runs = [ends for ends in runs if ends]
    ends = [end for some in runs for end in some]
    # When each flow run completed after its bad ends, and since the first of them.
    completed = [(some[-1].completed_at, some[0].at) for some in runs]
    recoveries = [(end - begin).total_seconds() for end, begin in completed if end and end >= since]
    return figures.model_copy(
        update={
            "crashes": sum(end.kind == CRASHED and end.at >= since for end in ends),
            "failures": sum(end.kind == FAILED and end.at >= since for end in ends),
            "recovered": len(recoveries),
            "seconds_in_error": sum(end.seconds for end in ends),
            "recovery_time": spread_of(recoveries),
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
    runs = [
        [end for end in ends if concerns(end, period.since)]
        for ends in api.each(lambda named: _bad_ends(api, period, *named), names.items())
    ]
    ends = sorted((end for some in runs for end in some), key=lambda end: end.at, reverse=True)
    return with_bad_ends(figures, runs, period.since), tuple(ends)


def _by_last_state(api: Api, period: Period) -> FlowFigures:
    def count(kind: str) -> int:
        ended = _ended(period, kind)
        return api.count("flow_runs", ended) - api.count("flow_runs", {**ended, **OWN})

    counts = {kind.lower(): number for kind, number in zip(FINAL, api.each(count, FINAL), strict=True)}
    return FlowFigures.model_validate({"runs": sum(counts.values()), **counts})


def _ended(period: Period, *kinds: str) -> Filter:
    return {"end_time": period.ended(), "state": {"type": {"any_": list(kinds)}}}


def _ended_badly(api: Api, period: Period) -> dict[str, str]:
    """The names, by id, of flow runs that ended badly in the period or shortly before it."""
    wider = Period(period.since - BEFORE, period.until)
    about = {"occurred": wider.occurred(), "event": {"name": [EVENT + name for name in NAMES]}}
    names = {row["value"].removeprefix(EVENT): row["label"] for row in api.count_by("resource", about)}
    # Prefect keeps events only for some days, but it knows runs that are still failed or crashed.
    names |= {row["id"]: row["name"] for row in api.page(_ended(period, *BAD), kind="flow_runs")}
    for ids in chunks(names, PAGE):
        for row in api.page({"id": {"any_": ids}, **OWN}, kind="flow_runs"):
            del names[row["id"]]
    return names


def _bad_ends(api: Api, period: Period, run_id: str, name: str) -> list[BadEnd]:
    rows = api.get("/flow_run_states/", {"flow_run_id": run_id})
    states = [
        StateAt(at, row["type"], row["name"] or row["type"].title(), row["message"] or "")
        for row in rows
        if (at := moment(row["timestamp"]))
    ]
    return bad_ends_of(run_id, name, states, period.since, period.until)
