"""The task runs and flow runs of a period.

Each task run is read, or, if they are many, those that ended are known from events.

In the server's one process, reading a run takes 400 microseconds, and counting its events takes 50. Events
have the names of runs but not their tasks: some runs of each name are read, and all of an ambiguous name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from statistics import median
from typing import Any, NamedTuple

from prefect_resilience.durable.batches.parked import PARKED
from prefect_resilience.operations.reports.api import PAGE, Api, Filter, Period
from prefect_resilience.operations.reports.figures import (
    COMPLETED,
    CRASHED,
    FAILED,
    FINAL,
    FlowFigures,
    Tally,
    task_of,
)

READ = 6_000
"""With at most this many runs, each run is read."""

PARTS = 4
"""Parts of the period. Some are read at the same time."""

EVENTS, IDS = 5_000, 1_000
"""About how many runs are counted in one request, and how many ids one may have."""
SAMPLES = 3

LOOK_BACK = timedelta(days=90)
"""The longest time between the scheduling of a run and the period in which it ended."""

BEFORE = timedelta(days=2)
"""How far before the period to search for attempts, and for bad ends, of runs that ended in it."""

NO_FLOW: Filter = {"subflow_runs": {"exists_": False}}
"""Excludes subflows, which the API also lists as task runs."""

EVENT = "prefect.task-run."
RETRYING = "Retrying"
"""The state in which each attempt after the first begins."""

RANDOM_PART = re.compile(r"-[0-9a-f]{3}$")

Row = dict[str, Any]
States = Counter[tuple[str, str]]
"""The number of task runs by the type and the name of their final state."""


def end_filter(period: Period, *kinds: str) -> Filter:
    """The filter for runs that ended in the period, in a state of these types if there are any."""
    return {"end_time": period.ends(), **({"state": {"type": {"any_": list(kinds)}}} if kinds else {})}


def states_of(api: Api, period: Period) -> States:
    """The final states of the task runs that ended in the period."""
    start, end = period.since - LOOK_BACK, period.until
    body = {
        "history_start": start.isoformat(),
        "history_end": end.isoformat(),
        "history_interval_seconds": (end - start).total_seconds() + 1,
        "task_runs": {**end_filter(period), **NO_FLOW},
    }
    states: States = Counter()
    for interval in api.post("/task_runs/history", body):
        for state in interval["states"]:
            states[state["state_type"], state["state_name"]] += state["count_runs"]
    return Counter(
        {state: number for state, number in states.items() if state[0] in FINAL and state[1] != PARKED}
    )


def final_events(api: Api, period: Period, states: States) -> int:
    """The number of events of task runs that ended in the period in these states.

    The task runs of a dead process are closed as Crashed, which has no event: those are not missing.
    """
    names = {name for _, name in states} | {"Completed"}
    events = api.count_events(period.events(EVENT + name for name in names - {"Crashed"}))
    return states[CRASHED, "Crashed"] + events


def tally_of(api: Api, period: Period, states: States, events: int) -> Tally:
    """The tally of every task run that ended in the period; `events` is the number of `final_events`."""
    tally = Tally()
    counted = _count_runs(api, period, states) if READ < states.total() <= events else {}
    names = [name for kind, name in states if (kind, name) not in counted] if counted else None
    for row in _rows(api, period, names):
        state = row["state_type"], row["state_name"] or ""
        if state not in counted and state[1] != PARKED:
            tally.add(_task(row), *state, row["run_count"], row["id"])
    if counted:
        _add_counted(api, period, tally, counted)
    return tally


# -- each run


def _rows(api: Api, period: Period, names: list[str] | None) -> Iterator[Row]:
    """Each task run that ended in the period. `names`: only those in states of these names."""
    filters: Filter = {"state": {"name": {"any_": names}}} if names else {}
    parts = period.parts(PARTS) if names != [] else []
    for rows in api.each(lambda part: _rows_of(api, {**end_filter(part), **filters}), parts):
        for row in rows.values():
            state: dict[str, Any] = row["state"] or {"state_details": {}}
            if row["state_type"] in FINAL and not state["state_details"].get("child_flow_run_id"):
                yield row


def _rows_of(api: Api, filters: Filter) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    offset = 0
    while True:
        page = api.page(filters, offset)
        rows |= {row["id"]: row for row in page}
        if len(page) < PAGE:
            return rows
        last = page[-1]["end_time"]
        # The next page begins at the end of this one; if all its runs ended at one moment, after them.
        offset = offset + PAGE if last == filters["end_time"]["before_"] else 0
        filters = {**filters, "end_time": {**filters["end_time"], "before_": last}}


def _task(row: Row) -> str:
    return task_of(row["name"], row["task_key"], row["dynamic_key"])


# -- runs from events


def _of_events(api: Api, state: str, period: Period) -> dict[str, Row]:
    """Events of task runs in this state by run: its name, and their number."""
    rows = api.count_by("resource", period.events([EVENT + state]))
    return {row["value"].removeprefix(EVENT): row for row in rows}


def _count_runs(api: Api, period: Period, states: States) -> dict[tuple[str, str], dict[str, str]]:
    """The names of runs by id, for each state that all its runs have as an event, and no other run."""
    counted: dict[tuple[str, str], dict[str, str]] = {}
    for (kind, name), number in states.items():
        parts = period.parts(1 + number // EVENTS) if kind in (COMPLETED, FAILED) else []
        pages = api.each(partial(_of_events, api, name), parts)
        runs = {run_id: str(row["label"]) for rows in pages for run_id, row in rows.items()}
        if len(runs) == number:
            counted[kind, name] = runs
    return counted


def _add_counted(
    api: Api, period: Period, tally: Tally, counted: Mapping[tuple[str, str], Mapping[str, str]]
) -> None:
    # A run that ended in the period may have begun before it.
    retries = _of_events(api, RETRYING, Period(period.since - BEFORE, period.until))
    tasks = _tasks(api, {run_id: name for runs in counted.values() for run_id, name in runs.items()})
    for state, runs in counted.items():
        for run_id in runs:
            attempts = 1 + (retries[run_id]["count"] if run_id in retries else 0)
            tally.add(tasks[run_id], *state, attempts, run_id)


def _tasks(api: Api, names: Mapping[str, str]) -> dict[str, str]:
    """The task of each run: its name without the random part if samples confirm that, else from the run."""
    tasks = {run_id: RANDOM_PART.sub("", name) for run_id, name in names.items()}
    groups: dict[str, list[str]] = {}
    for run_id, task in tasks.items():
        groups.setdefault(task, []).append(run_id)
    samples = {
        row["id"]: _task(row)
        for row in _by_id(api, (run_id for ids in groups.values() for run_id in ids[:SAMPLES]))
    }
    ambiguous = {tasks[run_id] for run_id, task in samples.items() if task != tasks[run_id]}
    rest = (run_id for task in ambiguous for run_id in groups[task][SAMPLES:])
    return {**tasks, **samples, **{row["id"]: _task(row) for row in _by_id(api, rest)}}


def _by_id(api: Api, ids: Iterable[str]) -> Iterator[Row]:
    for page in api.each(lambda chunk: api.page({"id": {"any_": chunk}}), chunks(ids, PAGE)):
        yield from page


def chunks(ids: Iterable[str], size: int) -> list[list[str]]:
    items = list(ids)
    return [items[at : at + size] for at in range(0, len(items), size)]


# -- flow runs: their last states, and their earlier failures and crashes

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

FLOW_EVENT = "prefect.flow-run."
BAD_NAMES = ("Crashed", "Failed", "TimedOut")
"""Prefect's names for bad ends. A bad end with another name is found only if it is the run's last state."""

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
        ended = end_filter(period, kind)
        return api.count("flow_runs", ended) - api.count("flow_runs", {**ended, **OWN})

    counts = {kind.lower(): number for kind, number in zip(FINAL, api.each(count, FINAL), strict=True)}
    return FlowFigures.model_validate({"runs": sum(counts.values()), **counts})


def _find_bad_ends(api: Api, period: Period) -> set[str]:
    """The ids of flow runs that ended badly in the period or shortly before it."""
    wider = Period(period.since - BEFORE, period.until)
    about = wider.events(FLOW_EVENT + name for name in BAD_NAMES)
    ids = {row["value"].removeprefix(FLOW_EVENT) for row in api.count_by("resource", about)}
    # Prefect keeps events only for some days, but it knows runs that are still failed or crashed.
    ids |= {row["id"] for row in api.page(end_filter(period, *BAD), kind="flow_runs")}
    for some in chunks(ids, PAGE):
        ids -= {row["id"] for row in api.page({"id": {"any_": some}, **OWN}, kind="flow_runs")}
    return ids


def _bad_ends(api: Api, period: Period, run_id: str) -> list[BadEnd]:
    rows = api.get("/flow_run_states/", {"flow_run_id": run_id})
    states = [StateAt(datetime.fromisoformat(row["timestamp"]), row["type"]) for row in rows]
    return bad_ends_of(states, period.until)
