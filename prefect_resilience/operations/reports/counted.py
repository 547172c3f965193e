"""The task runs of a period as the server counts them, all of them exact, where reading each takes too long.

For a run that it hands out the server takes 400 microseconds of its one process, for one whose events it
counts 70, and for a number 50,000 whatever it counts. So of runs that ended Completed at their first attempt
the number is asked for, by task, as their names say it (see `stems`); of those that were retried, failed or
were answered otherwise, the events by run; the few others are read. Every count must agree with another one,
and a few runs of each name that are read bear out what the names say. Else it is counted by run, or all are
read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from prefect_resilience.operations.reports.api import Api, Filter, Period
from prefect_resilience.operations.reports.figures import (
    COMPLETED,
    DEGRADED,
    FAILED,
    FALLBACK,
    TIMED_OUT,
    Run,
    Tally,
)
from prefect_resilience.operations.reports.task_runs import (
    EVENT,
    LOOK_BACK,
    NO_FLOW,
    chunks,
    ended_in,
    every_run,
    moment,
    read_tally,
    run_of,
    runs_by_id,
)

# How many runs each task had, from counts by a part of their names. Pure.
#
# Prefect names a run after its task, with three letters: `fetch-3f2`. Its API counts names that contain a
# pattern, with `_` for any letter, whatever their case: `fetch-___` counts those of `prefetch` as well.

STEM = re.compile(r"^(?P<task>.+)-[0-9a-f]{3}$", re.DOTALL)
UNSAFE = re.compile(r"[%\\]")
"""What a pattern cannot say, or databases say differently."""


def stem_of(name: str) -> str | None:
    """What a run's name says of its task; None where it is no name that Prefect gives."""
    found = STEM.match(name)
    return found["task"] if found else None


def pattern_of(stem: str) -> str:
    """What the names of a task's runs are counted by."""
    return f"{stem}-___"


def exclusive(counts: Mapping[str, int]) -> dict[str, int] | None:
    """The runs of each stem alone, where `counts` are those of all names that contain its pattern.

    None where that cannot be told, as of two that differ in nothing but the case of their letters.

    Example:
        >>> exclusive({"fetch": 30, "prefetch": 10})
        {'prefetch': 10, 'fetch': 20}
    """
    if any(UNSAFE.search(stem) for stem in counts):
        return None
    inside = {stem: _others_counted(stem, counts) for stem in counts}
    alone: dict[str, int] = {}
    # What contains nothing else comes first: of every other one, all that it contains is known by then.
    for stem in sorted(counts, key=lambda one: len(inside[one])):
        if not inside[stem] <= alone.keys():
            return None
        alone[stem] = counts[stem] - sum(alone[other] for other in inside[stem])
    return alone


def _others_counted(stem: str, stems: Iterable[str]) -> set[str]:
    """The other stems of which the runs are counted with these."""
    letters = ("." if letter == "_" else re.escape(letter) for letter in pattern_of(stem))
    pattern = re.compile("".join(letters), re.IGNORECASE | re.DOTALL)
    return {other for other in stems if other != stem and pattern.search(f"{other}-000")}


COUNTED_FROM = 6_000
"""With fewer runs, each is read."""

SLICE = 4_000
"""Runs in a part of the period, of which the events are counted by run."""

PLAIN = "Completed"
RUNNING = "Running"
RETRYING = "Retrying"
"""The state in which each attempt after the first begins, after its delay."""

TOLD = {"Failed": FAILED, TIMED_OUT: FAILED, FALLBACK: COMPLETED, DEGRADED: COMPLETED}
"""Other names of final states of which the events tell enough, with the types that these have."""

BEFORE = timedelta(days=2)
"""How long before the period a run that ended in it may have been retried."""

IDS = 1_000
SAMPLES = 3
PARTS = 8
"""From so many parts of the period runs are read where those that ended last do not name all tasks."""

MOST_TASKS = 60
"""Of more tasks it takes no longer to count the events by run."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the events tell of a run: its name, and how and after how many seconds it ended."""

    name: str
    type: str = COMPLETED
    state: str = PLAIN
    seconds: float | None = None


class Disagreement(Exception):
    """Two counts of the same differ, or a run that was read is another than its events say."""


def tally_of(api: Api, period: Period, names: Mapping[str, int], events: int) -> tuple[Tally, bool]:
    """The figures of every task run that ended in the period, and whether each of them was read.

    `names` are its `state_names`, `events` its `final_events`.
    """
    if COUNTED_FROM < sum(names.values()) <= events:
        try:
            return _counted(api, period, names), False
        except Disagreement:
            pass
    return read_tally(api, period), True


def _counted(api: Api, period: Period, names: Mapping[str, int]) -> Tally:
    retries = _retries(api, period)
    told = {state: rows for state in names if state in TOLD and (rows := _told(api, period, state, names))}
    seen = {run_id: one for rows in told.values() for run_id, one in rows.items()}
    others = [state for state in names if state != PLAIN and state not in told]
    rows = list(every_run(api, period, others)) if others else []
    hints = {one.name for one in (*retries.values(), *seen.values())}
    by_name = api.beside(lambda: _by_name(api, period, names.get(PLAIN, 0), hints))
    spans = _spans(api, period, retries.keys() - seen.keys() - {row["id"] for row in rows})
    seen |= {run_id: Seen(retries[run_id].name, seconds=seconds) for run_id, seconds in spans.items()}
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
        tally.add(Run(tasks[run_id], one.type, one.state, attempts, one.seconds))
    for task, number in plain.items():
        tally.add_plain(task, number)
    return tally


# -- runs by their events


@dataclass(frozen=True, slots=True)
class Events:
    """The events of some states of a run: its name, how many there are, and the first and the last."""

    name: str
    count: int
    first: datetime
    last: datetime


def _events_of(api: Api, period: Period, *states: str, ids: list[str] | None = None) -> dict[str, Events]:
    """The events of task runs in these states, by the runs' ids."""
    rows = api.count_by("resource", _about(period, states, ids))
    return {
        row["value"].removeprefix(EVENT): Events(
            row["label"], row["count"], _time(row["start_time"]), _time(row["end_time"])
        )
        for row in rows
    }


def _about(period: Period, states: Iterable[str], ids: list[str] | None) -> Filter:
    filters: Filter = {"occurred": period.occurred(), "event": {"name": [EVENT + one for one in states]}}
    return filters if ids is None else {**filters, "resource": {"id": [EVENT + one for one in ids]}}


def _time(text: str) -> datetime:
    found = moment(text)
    assert found is not None
    return found


def _retries(api: Api, period: Period) -> dict[str, Events]:
    """The retries of each run that had any; they may have been before the period."""
    return _events_of(api, Period(period.since - BEFORE, period.until), RETRYING)


def _ever(until: datetime) -> Period:
    return Period(datetime.now(timezone.utc) - LOOK_BACK, until)


def _told(api: Api, period: Period, state: str, names: Mapping[str, int]) -> dict[str, Seen] | None:
    """The runs that ended in this state; None where not each of them has begun, and begun once."""
    rows = _events_of(api, period, state)
    if len(rows) != names[state]:
        return None
    for ids in chunks(rows, IDS):
        running = _about(_ever(period.until), [RUNNING], ids)
        if not api.count_events(running) == len(ids) == api.count_resources(running):
            return None
    return {run_id: Seen(row.name, TOLD[state], state) for run_id, row in rows.items()}


def _spans(api: Api, period: Period, ids: Collection[str]) -> dict[str, float | None]:
    """Seconds from the first start to the end of those of these runs that ended Completed in the period."""
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
    # Some went on running, or began twice: then their starts and ends are looked up apart.
    starts = _events_of(api, ever, RUNNING, ids=ids)
    ends = _events_of(api, period, PLAIN, ids=ids)
    return {
        run_id: (one.last - starts[run_id].first).total_seconds() if run_id in starts else None
        for run_id, one in ends.items()
    }


# -- tasks by their runs' names


def _tasks(api: Api, seen: Mapping[str, Seen], retries: Mapping[str, Events]) -> dict[str, str]:
    """The task of each run, by its id: as its name says, where others of that name bear it out; else read."""
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


def _borne_out(row: dict[str, Any], samples: Mapping[str, str], retries: Mapping[str, Events]) -> bool:
    _check(row, retries)
    return run_of(row).task == samples[row["id"]]


def _check(row: dict[str, Any], retries: Mapping[str, Events]) -> None:
    """Raise Disagreement for a run that had other attempts than its events say, or a type of its own."""
    run, again = run_of(row), retries.get(row["id"])
    if run.attempts != 1 + (again.count if again else 0) or TOLD.get(run.name, run.type) != run.type:
        raise Disagreement


def _by_name(api: Api, period: Period, total: int, names: Iterable[str]) -> Counter[str] | None:
    """How many runs of each task ended Completed, counted by their names; None where these do not tell.

    `names` are those of some runs. What they are called after need not be their task: see there.
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
    api: Api, period: Period, total: int, retries: Mapping[str, Events], tasks: dict[str, str]
) -> Counter[str]:
    """The same, from the events of each run."""
    completed: dict[str, Seen] = {}
    parts = period.parts(max(1, -(-total // SLICE)))
    for rows in api.each(lambda part: _events_of(api, part, PLAIN), parts):
        completed |= {run_id: Seen(row.name) for run_id, row in rows.items()}
    if len(completed) != total:
        raise Disagreement
    new = {run_id: one for run_id, one in completed.items() if run_id not in tasks}
    found = {**tasks, **_tasks(api, new, retries)}
    return Counter(found[run_id] for run_id in completed)
