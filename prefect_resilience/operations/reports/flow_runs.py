"""The flow runs of a period: how they ended at last, and how badly some did on their way there."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from prefect_resilience.operations.reports.api import Api, Filter, Period
from prefect_resilience.operations.reports.bad_ends import BAD, StateAt, bad_ends_of, concerns, with_bad_ends
from prefect_resilience.operations.reports.figures import FINAL
from prefect_resilience.operations.reports.model import BadEnd, FlowFigures
from prefect_resilience.operations.reports.task_runs import moment

EVENT = "prefect.flow-run."
NAMES = ("Crashed", "Failed", "TimedOut")
"""Prefect's names of states that are bad ends; one of another name is found while it is the run's last."""

BEFORE = timedelta(days=2)
"""How long before the period a run may have ended badly that completed in it."""

MOST = 300
"""So many runs that ended badly are looked at: the server is asked for the states of each."""


def flow_figures(
    api: Api, period: Period, unknown: list[str]
) -> tuple[FlowFigures, tuple[BadEnd, ...] | None]:
    """The figures, and the bad ends, the latest first; None where there are too many to look at."""
    figures = _by_last_state(api, period)
    names = _ended_badly(api, period)
    if len(names) > MOST:
        unknown.append(
            f"What came of flow runs that ended badly: there are {len(names):,}, too many to look at each."
        )
        return figures, None
    runs = list(api.each(lambda named: _bad_ends(api, period, *named), names.items()))
    shown = [[end for end in ends if concerns(end, period.since)] for ends in runs]
    ends = sorted((end for some in shown for end in some), key=lambda end: end.at, reverse=True)
    return with_bad_ends(figures, shown, period.since), tuple(ends)


def _by_last_state(api: Api, period: Period) -> FlowFigures:
    def count(kind: str) -> int:
        return api.count("flow_runs", _ended(period, kind))

    counts = dict(zip(FINAL, api.each(count, FINAL), strict=True))
    named: dict[str, Any] = {kind.lower(): number for kind, number in counts.items()}
    return FlowFigures(runs=sum(counts.values()), **named)


def _ended(period: Period, *kinds: str) -> Filter:
    return {"end_time": period.ended(), "state": {"type": {"any_": list(kinds)}}}


def _ended_badly(api: Api, period: Period) -> dict[str, str]:
    """The names of flow runs that ended badly in the period or not long before it, by their ids."""
    wider = Period(period.since - BEFORE, period.until)
    about = {"occurred": wider.occurred(), "event": {"name": [EVENT + name for name in NAMES]}}
    found = {row["value"].removeprefix(EVENT): row["label"] for row in api.count_by("resource", about)}
    # Of those that are still there the API knows without events as well, which it keeps for some days.
    for row in api.flow_runs(_ended(period, *BAD), MOST + 1):
        found.setdefault(row["id"], row["name"])
    return found


def _bad_ends(api: Api, period: Period, run_id: str, name: str) -> list[BadEnd]:
    states = [_state(row) for row in api.get("/flow_run_states/", {"flow_run_id": run_id})]
    return bad_ends_of(run_id, name, states, period.since, period.until)


def _state(row: dict[str, Any]) -> StateAt:
    at = moment(row["timestamp"])
    assert at is not None
    return StateAt(row["type"], row["name"] or row["type"].title(), at, row["message"] or "")
