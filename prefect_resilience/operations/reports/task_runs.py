"""The task runs of a period: each is read, or, if they are many, those that completed are known from events.

In the server's one process, reading a run takes 400 microseconds, and counting its events takes 50. Events
have the names of runs but not their tasks: some runs of each name are read, and all of an ambiguous name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any

from prefect_resilience.operations.reports.api import PAGE, Api, Filter, Period
from prefect_resilience.operations.reports.figures import COMPLETED, FINAL, Tally, task_of

READ = 6_000
"""With at most this many runs, each run is read."""

PARTS = 4
"""Parts of the period, of which some are read at the same time."""

IDS = 1_000
SAMPLES = 3

LOOK_BACK = timedelta(days=90)
"""The longest time between the scheduling of a run and the period in which it ended."""

BEFORE = timedelta(days=2)
"""How far before the period to search for attempts of runs that ended in it."""

NO_FLOW: Filter = {"subflow_runs": {"exists_": False}}
"""Excludes subflows, which the API also lists as task runs."""

EVENT = "prefect.task-run."
PLAIN, RETRYING = "Completed", "Retrying"
"""The usual last state, and the one in which each attempt after the first begins."""

RANDOM_PART = re.compile(r"-[0-9a-f]{3}$")

Row = dict[str, Any]


def end_filter(period: Period) -> Filter:
    """The filter for task runs that ended in the period."""
    return {"end_time": period.ends()}


def state_names(api: Api, period: Period) -> dict[str, int]:
    """The number of task runs that ended in the period, by the name of their final state."""
    start, end = period.since - LOOK_BACK, period.until
    body = {
        "history_start": start.isoformat(),
        "history_end": end.isoformat(),
        "history_interval_seconds": (end - start).total_seconds() + 1,
        "task_runs": {**end_filter(period), **NO_FLOW},
    }
    counts: Counter[str] = Counter()
    for interval in api.post("/task_runs/history", body):
        for state in interval["states"]:
            if state["state_type"] in FINAL:
                counts[state["state_name"]] += state["count_runs"]
    return dict(counts)


def final_events(api: Api, period: Period, names: Mapping[str, int]) -> int:
    """The number of events of task runs that ended in the period in states of these names.

    A recovery closes the task runs of a dead process as Crashed, which has no event: those are not missing.
    """
    events = api.count_events(_about(period, *({*names, PLAIN} - {"Crashed"})))
    return names.get("Crashed", 0) + events


def tally_of(api: Api, period: Period, names: Mapping[str, int], events: int) -> Tally:
    """The tally of every task run that ended in the period.

    `names`: the `state_names` of the period, `events`: its `final_events`.
    """
    tally = Tally()
    counted = READ < sum(names.values()) <= events
    completed: dict[str, Row] = {}
    for rows in api.each(lambda part: _of_events(api, part, PLAIN), period.parts(PARTS)) if counted else ():
        completed |= rows
    every = not counted or len(completed) != names.get(PLAIN, 0)
    for row in _rows(api, period, None if every else [name for name in names if name != PLAIN]):
        tally.add(_task(row), row["state_type"], row["state_name"] or "", row["run_count"], row["id"])
    if not every:
        _add_completed(api, period, tally, {run_id: row["label"] for run_id, row in completed.items()})
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


# -- completed runs from events


def _about(period: Period, *states: str) -> Filter:
    return {"occurred": period.occurred(), "event": {"name": [EVENT + state for state in states]}}


def _of_events(api: Api, period: Period, state: str) -> dict[str, Row]:
    """Events of task runs in this state by run: its name, and their number."""
    rows = api.count_by("resource", _about(period, state))
    return {row["value"].removeprefix(EVENT): row for row in rows}


def _add_completed(api: Api, period: Period, tally: Tally, names: Mapping[str, str]) -> None:
    """Add runs that completed in the period. `names`: their names by id."""
    # A run that ended in the period may have begun before it.
    retries = _of_events(api, Period(period.since - BEFORE, period.until), RETRYING)
    for run_id, task in _tasks(api, names).items():
        attempts = 1 + (retries[run_id]["count"] if run_id in retries else 0)
        tally.add(task, COMPLETED, PLAIN, attempts, run_id)


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
