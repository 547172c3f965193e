"""The task runs of a period, all of them exact: read one by one where they are few, else counted.

The server hands out 200 runs at a time, for some 40 milliseconds of its one process: a day's worth of
100,000 takes it 20 seconds and more. Events it counts by itself, by run, some five times as fast. So of many
runs only those are read that ended otherwise than Completed; of the others the events tell the name (the
task's own with three letters, as Prefect gives it), the retries, the first start and the end. That is done
only if the counts of runs and of events agree, and a few runs of each name that are read as well bear it
out; else all are read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from typing import Any

from prefect_resilience.reports.api import PAGE, Api, Filter, Period
from prefect_resilience.reports.figures import COMPLETED, FINAL, Run, Tally, task_of

READ_ALL = 6_000
"""Up to so many runs, each is read."""

SLICE = 4_000
"""Runs in a part of the period: few enough that pages by offset stay cheap."""

PLAIN = "Completed"
RETRYING = "Retrying"
"""The state in which each attempt after the first begins, after its delay."""

BEFORE = timedelta(days=2)
"""How long before the period a run that ended in it may have been retried."""

IDS = 1_000
LOOK_BACK = timedelta(days=90)
"""How long before the period a run that ended in it may have been expected to start."""

_NO_FLOW: Filter = {"subflow_runs": {"exists_": False}}
"""A flow that is called inside another is shown as a task run as well, and is none."""

STEM = re.compile(r"^(?P<task>.+)-[0-9a-f]{3}$", re.DOTALL)
SAMPLES = 3
EVENT = "prefect.task-run."


def tally_of(api: Api, period: Period, names: dict[str, int], events: int) -> tuple[Tally, bool]:
    """The figures of every task run that ended in the period, and whether each of them was read.

    `names` are its `state_names`, `events` its `final_events`.
    """
    total = api.count("task_runs", {**_ended(period), **_NO_FLOW})
    if total > READ_ALL and total == sum(names.values()) <= events:
        tally = _counted(api, period, names)
        if tally is not None:
            return tally, False
    tally = Tally()
    for row in every_run(api, period):
        tally.add(run_of(row))
    return tally, True


def state_names(api: Api, period: Period) -> dict[str, int]:
    """How many task runs ended in the period, by the name of their final state."""
    start, end = period.since - LOOK_BACK, period.until
    body = {
        "history_start": start.isoformat(),
        "history_end": end.isoformat(),
        "history_interval_seconds": (end - start).total_seconds() + 1,
        "task_runs": {**_ended(period), **_NO_FLOW},
    }
    counts: Counter[str] = Counter()
    for interval in api.post("/task_runs/history", body):
        for state in interval["states"]:
            if state["state_type"] in FINAL:
                counts[state["state_name"]] += state["count_runs"]
    return dict(counts)


def final_events(api: Api, period: Period, names: Iterable[str]) -> int:
    """How many events the API has of task runs that ended in the period under these names."""
    wanted = [EVENT + name for name in names]
    if not wanted:
        return 0
    filters = {"occurred": period.occurred(), "event": {"name": wanted}}
    return sum(row["count"] for row in api.count_by("event", filters))


def every_run(api: Api, period: Period, names: list[str] | None = None) -> Iterable[dict[str, Any]]:
    """Each task run that ended in the period, once; only those in a state of such a name, where given."""
    # Without names no state is asked for: the server would look runs up by it, and sort them for each page.
    state: Filter = {"state": {"name": {"any_": names}}} if names else {}
    total = api.count("task_runs", {**_ended(period), **state})
    for part in period.parts(max(1, -(-total // SLICE))):
        yield from _runs_of_part(api, {**_ended(part), **state})


def _runs_of_part(api: Api, filters: Filter) -> Iterable[dict[str, Any]]:
    total = api.count("task_runs", filters)
    for sort in ("END_TIME_DESC", "ID_DESC"):
        # Runs that end at the same moment have no order of their own: then by id, which takes longer.
        found: dict[str, dict[str, Any]] = {}
        pages = api.each(lambda offset, by=sort: api.page(filters, offset, by), range(0, total, PAGE))
        for page in pages:
            found.update((row["id"], row) for row in page)
        if len(found) >= total:
            break
    yield from (row for row in found.values() if row["state_type"] in FINAL and not _is_subflow(row))


def _counted(api: Api, period: Period, names: dict[str, int]) -> Tally | None:
    """The figures from the server's own counts, or None when they do not agree."""
    completed = _completed(api, period, names.get(PLAIN, 0))
    if completed is None:
        return None
    retries = _retries(api, period)
    starts = _starts(api, completed.keys() & retries.keys())
    tasks = _tasks(api, completed, retries)
    if tasks is None:
        return None
    tally = Tally()
    others = [name for name in names if name != PLAIN]
    for row in every_run(api, period, others) if others else ():
        tally.add(run_of(row))
    plain: Counter[str] = Counter()
    for run_id, (_, end) in completed.items():
        if run_id not in retries:
            plain[tasks[run_id]] += 1
            continue
        start = starts.get(run_id)
        seconds = None if start is None else (end - start).total_seconds()
        tally.add(Run(tasks[run_id], COMPLETED, PLAIN, 1 + retries[run_id], seconds))
    for task, number in plain.items():
        tally.add_plain(task, number)
    return tally


def _by_run(api: Api, period: Period, state: str, ids: list[str] | None = None) -> list[dict[str, Any]]:
    """How many events of a state there are of each task run, and the time of the first and the last."""
    filters: Filter = {"occurred": period.occurred(), "event": {"name": [EVENT + state]}}
    if ids is not None:
        filters["resource"] = {"id": [EVENT + run_id for run_id in ids]}
    rows = api.count_by("resource", filters)
    return [{**row, "value": row["value"].removeprefix(EVENT)} for row in rows]


def _completed(api: Api, period: Period, expected: int) -> dict[str, tuple[str, datetime]] | None:
    """Name and end of the runs that ended Completed, by their ids; None unless there are so many."""
    found: dict[str, tuple[str, datetime]] = {}
    parts = period.parts(max(1, -(-expected // SLICE)))
    for rows in api.each(lambda part: _by_run(api, part, PLAIN), parts):
        found.update((row["value"], (row["label"], _time(row["end_time"]))) for row in rows)
    return found if len(found) == expected else None


def _retries(api: Api, period: Period) -> dict[str, int]:
    """How often each run was retried; it may have been before the period."""
    wider = Period(period.since - BEFORE, period.until)
    return {row["value"]: row["count"] for row in _by_run(api, wider, RETRYING)}


def _starts(api: Api, ids: Iterable[str]) -> dict[str, datetime]:
    """When the first attempt of these runs began."""
    ever = Period(datetime.now(timezone.utc) - LOOK_BACK, datetime.now(timezone.utc))
    found: dict[str, datetime] = {}
    for rows in api.each(lambda chunk: _by_run(api, ever, "Running", chunk), _chunks(ids, IDS)):
        found.update((row["value"], _time(row["start_time"])) for row in rows)
    return found


def _tasks(api: Api, runs: dict[str, tuple[str, datetime]], retries: dict[str, int]) -> dict[str, str] | None:
    """The task of each run, by its id: as its name says, where runs of such names bear that out, else read.

    None when a run that was looked at had other attempts than its events say.
    """
    groups: dict[str, list[str]] = {}
    for run_id, (name, _) in runs.items():
        found = STEM.match(name)
        groups.setdefault(found["task"] if found else "", []).append(run_id)
    unclear = groups.pop("", [])
    samples = {run_id: task for task, ids in groups.items() for run_id in ids[:SAMPLES]}
    for row in runs_by_id(api, samples):
        run, task = run_of(row), samples[row["id"]]
        if run.attempts != 1 + retries.get(row["id"], 0):
            return None
        if run.task != task:
            unclear += groups.pop(task, [])
    known = {run_id: task for task, ids in groups.items() for run_id in ids}
    known.update((row["id"], run_of(row).task) for row in runs_by_id(api, unclear))
    return known if known.keys() >= runs.keys() else None


def runs_by_id(api: Api, ids: Iterable[str]) -> Iterable[dict[str, Any]]:
    """These task runs, as far as the server still has them."""
    for page in api.each(lambda chunk: api.page({"id": {"any_": chunk}}), _chunks(ids, PAGE)):
        yield from page


def _chunks(ids: Iterable[str], size: int) -> list[list[str]]:
    listed = list(ids)
    return [listed[at : at + size] for at in range(0, len(listed), size)]


def run_of(row: dict[str, Any]) -> Run:
    """A task run as the API has it, in short."""
    start, end = moment(row["start_time"]), moment(row["end_time"])
    return Run(
        task=task_of(row["name"], row["task_key"], row["dynamic_key"]),
        type=row["state_type"],
        name=row["state_name"] or "",
        attempts=row["run_count"],
        seconds=(end - start).total_seconds() if start and end else None,
    )


def moment(text: str | None) -> datetime | None:
    """A time of the API, which ends in Z; Python 3.10 does not know that."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")) if text else None


def _time(text: str) -> datetime:
    found = moment(text)
    assert found is not None
    return found


def _ended(period: Period) -> Filter:
    return {"end_time": period.ended()}


def _is_subflow(row: dict[str, Any]) -> bool:
    state: dict[str, Any] = row["state"] or {}
    details: dict[str, Any] = state.get("state_details") or {}
    return bool(details.get("child_flow_run_id"))
