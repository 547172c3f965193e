"""The task runs of a period: each is read, or, if they are many, counted from their events.

In the server's one process, reading a run takes 400 microseconds, counting its events takes 70, and any
request for a count takes 50,000. So with more than COUNTED_FROM runs, those that ended Completed at their
first attempt are counted by task from their names (see `stems`); those that were retried, failed or had a
fallback are counted by their events; the few others are read. A few runs of each name are read to confirm
the names. Every count must agree with another one; otherwise runs are counted by their events, or all runs
are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from prefect_resilience.operations.reports.api import PAGE, Api, Filter, Period
from prefect_resilience.operations.reports.figures import (
    COMPLETED,
    DEGRADED,
    FAILED,
    FALLBACK,
    FINAL,
    TIMED_OUT,
    CountedTaskRun,
    Tally,
    task_of,
)
from prefect_resilience.operations.reports.stems import exclusive, pattern_of, stem_of

SLICE = 4_000
"""Runs in a part of the period: few enough that pages by offset stay cheap."""

LOOK_BACK = timedelta(days=90)
"""The longest time between the scheduling of a run and the period in which it ended."""

NO_FLOW: Filter = {"subflow_runs": {"exists_": False}}
"""Excludes subflows, which the API also lists as task runs."""

EVENT = "prefect.task-run."


def state_names(api: Api, period: Period) -> dict[str, int]:
    """The number of task runs that ended in the period, by the name of their final state."""
    start, end = period.since - LOOK_BACK, period.until
    body = {
        "history_start": start.isoformat(),
        "history_end": end.isoformat(),
        "history_interval_seconds": (end - start).total_seconds() + 1,
        "task_runs": {**ended_in(period), **NO_FLOW},
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
    wanted = [EVENT + name for name in {*names, PLAIN} - {"Crashed"}]
    filters = {"occurred": period.occurred(), "event": {"name": wanted}}
    return names.get("Crashed", 0) + sum(row["count"] for row in api.count_by("event", filters))


def every_run(api: Api, period: Period, names: list[str] | None = None) -> Iterable[dict[str, Any]]:
    """Each task run that ended in the period. `names`: only those in states of these names."""
    # No filter by state without names: with one, the server sorts all runs again for each page.
    state: Filter = {"state": {"name": {"any_": names}}} if names else {}
    total = api.count("task_runs", {**ended_in(period), **state})
    for part in period.parts(max(1, -(-total // SLICE))):
        yield from _runs_of_part(api, {**ended_in(part), **state})


def _runs_of_part(api: Api, filters: Filter) -> Iterable[dict[str, Any]]:
    total = api.count("task_runs", filters)
    for sort in ("END_TIME_DESC", "ID_DESC"):
        # Runs that end at the same moment have no fixed order; then sort by id, which takes longer.
        found: dict[str, dict[str, Any]] = {}
        pages = api.each(lambda offset, by=sort: api.page(filters, offset, by), range(0, total, PAGE))
        for page in pages:
            found.update((row["id"], row) for row in page)
        if len(found) >= total:
            break
    yield from (row for row in found.values() if row["state_type"] in FINAL and not _is_subflow(row))


def read_tally(api: Api, period: Period) -> Tally:
    """The tally of every task run that ended in the period; each run is read."""
    tally = Tally()
    for row in every_run(api, period):
        tally.add(run_of(row))
    return tally


def runs_by_id(api: Api, ids: Iterable[str]) -> Iterable[dict[str, Any]]:
    """The task runs with these ids that the server still has."""
    for page in api.each(lambda chunk: api.page({"id": {"any_": chunk}}), chunks(ids, PAGE)):
        yield from page


def chunks(ids: Iterable[str], size: int) -> list[list[str]]:
    listed = list(ids)
    return [listed[at : at + size] for at in range(0, len(listed), size)]


def run_of(row: dict[str, Any]) -> CountedTaskRun:
    """A task run from a row of the API."""
    start, end = moment(row["start_time"]), moment(row["end_time"])
    return CountedTaskRun(
        task=task_of(row["name"], row["task_key"], row["dynamic_key"]),
        type=row["state_type"],
        name=row["state_name"] or "",
        attempts=row["run_count"],
        seconds=(end - start).total_seconds() if start and end else None,
    )


def moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def ended_in(period: Period) -> Filter:
    """The filter for task runs that ended in the period."""
    return {"end_time": period.ended()}


def _is_subflow(row: dict[str, Any]) -> bool:
    state: dict[str, Any] = row["state"] or {}
    details: dict[str, Any] = state.get("state_details") or {}
    return bool(details.get("child_flow_run_id"))


COUNTED_FROM = 6_000
"""With at most this many runs, each run is read."""

PLAIN = "Completed"
RUNNING = "Running"
RETRYING = "Retrying"
"""The state in which every attempt after the first begins."""

TYPES = {"Failed": FAILED, TIMED_OUT: FAILED, FALLBACK: COMPLETED, DEGRADED: COMPLETED}
"""Other final states that can be counted by events, with their types."""

BEFORE = timedelta(days=2)
"""How far before the period to search for retries of runs that ended in it."""

IDS = 1_000
SAMPLES = 3
PARTS = 8
"""Parts of the period from which sample runs are read if the latest runs do not name all tasks."""

MOST_TASKS = 60
"""With more tasks, counting events by run is as fast."""


@dataclass(frozen=True, slots=True)
class RunByEvents:
    """A run as its events show it: its name, final state and duration in seconds."""

    name: str
    type: str = COMPLETED
    state: str = PLAIN
    seconds: float | None = None


class Disagreement(Exception):
    """Two counts of the same runs differ, or a run differs from its events."""


def tally_of(api: Api, period: Period, names: Mapping[str, int], events: int) -> tuple[Tally, bool]:
    """The tally of every task run that ended in the period, and whether each run was read.

    `names`: the `state_names` of the period, `events`: its `final_events`.
    """
    if COUNTED_FROM < sum(names.values()) <= events:
        try:
            return _counted(api, period, names), False
        except Disagreement:
            pass
    return read_tally(api, period), True


def _counted(api: Api, period: Period, names: Mapping[str, int]) -> Tally:
    # A run that ended in the period may have been retried before the period.
    retries = _events_of(api, Period(period.since - BEFORE, period.until), RETRYING)
    ended = {state: runs for state in names if state in TYPES and (runs := _ended(api, period, state, names))}
    seen = {run_id: one for runs in ended.values() for run_id, one in runs.items()}
    others = [state for state in names if state != PLAIN and state not in ended]
    rows = list(every_run(api, period, others)) if others else []
    hints = {one.name for one in (*retries.values(), *seen.values())}
    by_name = api.beside(lambda: _by_name(api, period, names.get(PLAIN, 0), hints))
    spans = _spans(api, period, retries.keys() - seen.keys() - {row["id"] for row in rows})
    seen |= {run_id: RunByEvents(retries[run_id].name, seconds=seconds) for run_id, seconds in spans.items()}
    tasks = _tasks(api, seen, retries)
    plain = by_name.result()
    if plain is None or not plain.keys() >= set(tasks.values()):
        plain = _by_run(api, period, names.get(PLAIN, 0), retries, tasks)
    plain.subtract(tasks[run_id] for run_id in spans)
    if any(number < 0 for number in plain.values()):
        raise Disagreement
    tally = Tally()
    for row in rows:
        tally.add(run_of(row))
    for run_id, one in seen.items():
        attempts = 1 + retries[run_id].count if run_id in retries else 1
        tally.add(CountedTaskRun(tasks[run_id], one.type, one.state, attempts, one.seconds))
    for task, number in plain.items():
        tally.add_plain(task, number)
    return tally


# -- runs by their events


@dataclass(frozen=True, slots=True)
class RunEvents:
    """The events of a run in some states: the run's name, their number, and the first and last time."""

    name: str
    count: int
    first: datetime
    last: datetime


def _events_of(api: Api, period: Period, *states: str, ids: list[str] | None = None) -> dict[str, RunEvents]:
    """The events of task runs in these states, by run id."""
    time = datetime.fromisoformat
    return {
        row["value"].removeprefix(EVENT): RunEvents(
            row["label"], row["count"], time(row["start_time"]), time(row["end_time"])
        )
        for row in api.count_by("resource", _about(period, states, ids))
    }


def _about(period: Period, states: Iterable[str], ids: list[str] | None) -> Filter:
    filters: Filter = {"occurred": period.occurred(), "event": {"name": [EVENT + one for one in states]}}
    return filters if ids is None else {**filters, "resource": {"id": [EVENT + one for one in ids]}}


def _ever(until: datetime) -> Period:
    return Period(datetime.now(UTC) - LOOK_BACK, until)


def _ended(api: Api, period: Period, state: str, names: Mapping[str, int]) -> dict[str, RunByEvents] | None:
    """The runs that ended in this state; None unless each of them started exactly once."""
    rows = _events_of(api, period, state)
    if len(rows) != names[state]:
        return None
    for ids in chunks(rows, IDS):
        running = _about(_ever(period.until), [RUNNING], ids)
        if not api.count_events(running) == len(ids) == api.count_resources(running):
            return None
    return {run_id: RunByEvents(row.name, TYPES[state], state) for run_id, row in rows.items()}


def _spans(api: Api, period: Period, ids: Collection[str]) -> dict[str, float | None]:
    """Seconds from first start to end, for those of these runs that ended Completed in the period."""
    found: dict[str, float | None] = {}
    for spans in api.each(lambda chunk: _spans_of(api, period, chunk), chunks(sorted(ids), IDS)):
        found |= spans
    return found


def _spans_of(api: Api, period: Period, ids: list[str]) -> dict[str, float | None]:
    ever = _ever(period.until)
    both = _events_of(api, ever, RUNNING, PLAIN, ids=ids)
    ended = {run_id: one for run_id, one in both.items() if one.count > 1 and one.last >= period.since}
    if api.count_events(_about(period, [PLAIN], ids)) == len(ended):
        return {run_id: (one.last - one.first).total_seconds() for run_id, one in ended.items()}
    # Some are still running or started twice: read starts and ends separately.
    starts = _events_of(api, ever, RUNNING, ids=ids)
    ends = _events_of(api, period, PLAIN, ids=ids)
    return {
        run_id: (one.last - starts[run_id].first).total_seconds() if run_id in starts else None
        for run_id, one in ends.items()
    }


# -- tasks by their runs' names


def _tasks(api: Api, seen: Mapping[str, RunByEvents], retries: Mapping[str, RunEvents]) -> dict[str, str]:
    """The task of each run by id: from its name if samples confirm that name, else from the run."""
    groups: dict[str | None, list[str]] = {}
    for run_id, one in seen.items():
        groups.setdefault(stem_of(one.name), []).append(run_id)
    unclear = groups.pop(None, [])
    known: dict[str, str] = {}
    samples = {run_id: stem for stem, ids in groups.items() if stem for run_id in ids[:SAMPLES]}
    false = {samples[row["id"]] for row in runs_by_id(api, samples) if not _borne_out(row, samples, retries)}
    for stem, ids in groups.items():
        if stem is None or stem in false:
            unclear += ids
        else:
            known.update(dict.fromkeys(ids, stem))
    for row in runs_by_id(api, unclear):
        _check(row, retries)
        known[row["id"]] = run_of(row).task
    if known.keys() < seen.keys():
        raise Disagreement
    return known


def _borne_out(row: dict[str, Any], samples: Mapping[str, str], retries: Mapping[str, RunEvents]) -> bool:
    _check(row, retries)
    return run_of(row).task == samples[row["id"]]


def _check(row: dict[str, Any], retries: Mapping[str, RunEvents]) -> None:
    """Raise Disagreement if a run's attempts or type differ from its events."""
    run, again = run_of(row), retries.get(row["id"])
    if run.attempts != 1 + (again.count if again else 0) or TYPES.get(run.name, run.type) != run.type:
        raise Disagreement


def _by_name(api: Api, period: Period, total: int, names: Iterable[str]) -> Counter[str] | None:
    """The number of Completed runs of each task, counted by run names; None if names are ambiguous.

    `names`: the names of some runs, as hints.
    """
    filters: Filter = {**ended_in(period), **NO_FLOW, "state": {"name": {"any_": [PLAIN]}}}
    stems = {stem for name in names if (stem := stem_of(name)) is not None}
    counts: dict[str, int] = {}
    for parts in ([period], period.parts(PARTS)):
        for rows in api.each(lambda part: api.page({**filters, **ended_in(part)}), parts):
            stems |= {run_of(row).task for row in rows}
            if any(run_of(row).task != stem_of(row["name"]) for row in rows):
                return None
        if len(stems) > MOST_TASKS:
            return None
        new = sorted(stems - counts.keys())
        numbers = api.each(lambda stem: api.count("task_runs", {**filters, **_called(stem)}), new)
        counts.update(zip(new, numbers, strict=True))
        alone = exclusive(counts)
        if alone is not None and sum(alone.values()) == total:
            return Counter(alone)
    return None


def _called(stem: str) -> Filter:
    return {"name": {"like_": pattern_of(stem)}}


def _by_run(
    api: Api, period: Period, total: int, retries: Mapping[str, RunEvents], tasks: dict[str, str]
) -> Counter[str]:
    """The number of Completed runs of each task, counted by events."""
    completed: dict[str, RunByEvents] = {}
    parts = period.parts(max(1, -(-total // SLICE)))
    for rows in api.each(lambda part: _events_of(api, part, PLAIN), parts):
        completed |= {run_id: RunByEvents(row.name) for run_id, row in rows.items()}
    if len(completed) != total:
        raise Disagreement
    new = {run_id: one for run_id, one in completed.items() if run_id not in tasks}
    found = {**tasks, **_tasks(api, new, retries)}
    return Counter(found[run_id] for run_id in completed)
