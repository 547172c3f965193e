"""The task runs of a period: each is read, or, if they are many, those that ended are known from events.

In the server's one process, reading a run takes 400 microseconds, and counting its events takes 50. Events
have the names of runs but not their tasks: some runs of each name are read, and all of an ambiguous name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

from prefect_resilience.operations.reports.api import PAGE, Api, Filter, Period
from prefect_resilience.operations.reports.figures import COMPLETED, CRASHED, FAILED, FINAL, Tally, task_of

READ = 6_000
"""With at most this many runs, each run is read."""

PARTS = 4
"""Parts of the period, of which some are read at the same time."""

EVENTS, IDS = 5_000, 1_000
"""About how many runs are counted in one request, and how many ids one may have."""
SAMPLES = 3

LOOK_BACK = timedelta(days=90)
"""The longest time between the scheduling of a run and the period in which it ended."""

BEFORE = timedelta(days=2)
"""How far before the period to search for attempts of runs that ended in it."""

NO_FLOW: Filter = {"subflow_runs": {"exists_": False}}
"""Excludes subflows, which the API also lists as task runs."""

EVENT = "prefect.task-run."
RETRYING = "Retrying"
"""The state in which each attempt after the first begins."""

RANDOM_PART = re.compile(r"-[0-9a-f]{3}$")

Row = dict[str, Any]
States = Counter[tuple[str, str]]
"""The number of task runs by the type and the name of their final state."""


def end_filter(period: Period) -> Filter:
    """The filter for task runs that ended in the period."""
    return {"end_time": period.ends()}


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
    return Counter({state: number for state, number in states.items() if state[0] in FINAL})


def final_events(api: Api, period: Period, states: States) -> int:
    """The number of events of task runs that ended in the period in these states.

    The task runs of a dead process are closed as Crashed, which has no event: those are not missing.
    """
    events = api.count_events(_about(period, *({name for _, name in states} | {"Completed"}) - {"Crashed"}))
    return states[CRASHED, "Crashed"] + events


def tally_of(api: Api, period: Period, states: States, events: int) -> Tally:
    """The tally of every task run that ended in the period; `events` is the number of `final_events`."""
    tally = Tally()
    counted = _count_runs(api, period, states) if READ < states.total() <= events else {}
    names = [name for kind, name in states if (kind, name) not in counted] if counted else None
    for row in _rows(api, period, names):
        state = row["state_type"], row["state_name"] or ""
        if state not in counted:
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


def _about(period: Period, *states: str) -> Filter:
    return {"occurred": period.occurred(), "event": {"name": [EVENT + state for state in states]}}


def _of_events(api: Api, state: str, period: Period) -> dict[str, Row]:
    """Events of task runs in this state by run: its name, and their number."""
    rows = api.count_by("resource", _about(period, state))
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
