"""Reads the record of a period from the Prefect API, in bounded time and memory.

The final event of a run that was retried or failed (`run.recovered`, `run.failed`, `fallback.used`) has all
its attempts. Runs that succeeded at once have no event; they are rows of task runs. Of either a random sample
is read if they are many, and each run of it has a weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, NamedTuple, cast

from prefect_resilience.operations.reports import When, period_of
from prefect_resilience.operations.reports.api import PAGE, Api, Filter, Period, opened, ours
from prefect_resilience.operations.reports.figures import FINAL, function_of, task_of
from prefect_resilience.operations.reports.runs import end_filter
from prefect_resilience.operations.tuning.record import (
    RecordedAttempt,
    RecordedPeriod,
    RecordedRun,
    RecordedTask,
)
from prefect_resilience.telemetry.edge.events import PREFIX

MOST_TROUBLED = 20_000
"""Runs with failures that are read; of more, those in a random part of each stretch of the period."""

MOST_PLAIN = 10_000
"""Rows of task runs that are read; of more, pages at random places."""

SLICE, EVENTS_AT_ONCE = 4_000, 600
MOST_TASKS = 300
SETTLED = timedelta(minutes=2)
"""A run that ended later may have an event that has not reached the server."""

ENDS = {"run.recovered": "succeeded", "run.failed": "failed", "fallback.used": "fallback"}
"""The final events of runs with failures, and how such a run ended."""

REPORTED = frozenset({"Completed", "Failed", "TimedOut", "Fallback", "Degraded"})
"""States of runs that an event reports, unless they succeeded at once."""


class TaskOptions(NamedTuple):
    """The options with which a task ran last."""

    task: str
    task_key: str
    options: dict[str, object]
    block: str | None


# By id, each run with the name of its task.
NamedRuns = dict[str, tuple[str, RecordedRun]]

# The resilient task of each name of a task or function; None if a function has several.
TaskNames = Mapping[str, str | None]


def read_evidence(since: When = None, until: When = None) -> RecordedPeriod:
    """The record of a period, by default of the last 7 days.

    Raises ConfigurationError for an empty period and ReportError if the Prefect API is unavailable. What is
    missing, or only a sample, is in `unknown`.
    """
    period = period_of(timedelta(days=7) if since is None else since, until, datetime.now(UTC))
    unknown: dict[str, str] = {}
    with opened() as api:
        options = options_of(api, period, unknown)
        random = Random(period.since.timestamp())
        troubled = _read_troubled_runs(api, period, random, unknown)
        runs = _plain(api, period, _tasks_of_rows(options, troubled), random, unknown, troubled)
    first, last = period.since.timestamp(), period.until.timestamp()
    by_task: dict[str, list[RecordedRun]] = {setup.task: [] for setup in options}
    for task, run in (*runs.values(), *troubled.values()):
        if first <= run.end < last:
            by_task.setdefault(task, []).append(run)
    latest = {setup.task: (setup.options, setup.block) for setup in options}
    tasks = [
        RecordedTask(name, tuple(sorted(some, key=lambda run: run.start)), *latest.get(name, (None, None)))
        for name, some in sorted(by_task.items())
    ]
    return RecordedPeriod(first, last, tuple(tasks), unknown)


# -- options


def options_of(api: Api, period: Period, unknown: dict[str, str]) -> list[TaskOptions]:
    """The latest options of each task that ran in the period, from the events with which it told them.

    A process tells them again after a day, so events from a day before the period count.
    """
    occurred = Period(period.since - timedelta(days=1), period.until).occurred()
    filters: Filter = {"occurred": occurred, "event": {"name": ours("task.configured")}}
    by_task: dict[str, list[dict[str, Any]]] = {}
    for row in api.count_by("resource", filters):
        by_task.setdefault(row["label"], []).append(row)
    tasks = sorted(by_task, key=lambda task: max(row["end_time"] for row in by_task[task]), reverse=True)
    if len(tasks) > MOST_TASKS:
        unknown["options"] = f"The options of {MOST_TASKS} of {len(tasks)} tasks were read."
    read = api.each(lambda task: _latest(api, filters, by_task[task]), tasks[:MOST_TASKS])
    return [setup for setup in read if setup is not None]


def _latest(api: Api, filters: Filter, rows: list[dict[str, Any]]) -> TaskOptions | None:
    latest = max(rows, key=lambda row: row["end_time"])
    event = api.latest_event({**filters, "resource": {"id": [latest["value"]]}})
    payload: dict[str, Any] = event["payload"] if event else {}
    options = payload.get("options")
    if not isinstance(options, dict):
        return None
    # Neither is replayed, and a list of limits is not what a policy's document has.
    document = {name: value for name, value in cast("dict[str, Any]", options).items() if name != "limits"}
    return TaskOptions(payload["task"], payload["task_key"], document, payload.get("block"))


# -- runs with failures, from their final events


def _read_troubled_runs(api: Api, period: Period, random: Random, unknown: dict[str, str]) -> NamedRuns:
    period = Period(period.since - timedelta(seconds=10), period.until)
    total = api.count_events(_final(period))
    share = min(1.0, MOST_TROUBLED / total) if total else 1.0
    if share < 1:
        unknown["failures"] = (
            f"Of {total} runs with retries or failures a random sample was read, with weights."
        )
    parts = [_random_part(part, share, random) for part in period.parts(max(1, -(-total // EVENTS_AT_ONCE)))]
    pages = api.each(lambda part: api.events(_final(part), MOST_TROUBLED), parts)
    named = [run_of_event(event, 1 / share) for events, _ in pages for event in events]
    return {pair[1].run_id: pair for pair in named if pair is not None}


def _final(period: Period) -> Filter:
    return {"occurred": period.occurred(), "event": {"name": ours(*ENDS)}}


def _random_part(part: Period, share: float, random: Random) -> Period:
    length = part.until - part.since
    begin = part.since + length * (1 - share) * random.random()
    return part if share == 1 else Period(begin, begin + length * share)


def run_of_event(event: Mapping[str, Any], weight: float = 1.0) -> tuple[str, RecordedRun] | None:
    """The task and the run of a final event; None if the event lacks its attempts."""
    name = event["event"].removeprefix(f"{PREFIX}.")
    payload: Mapping[str, Any] = event.get("payload") or {}
    record: Mapping[str, Any] = payload.get("record") or {}
    rows = [cast("Mapping[str, Any]", row) for row in record.get("attempts") or () if isinstance(row, dict)]
    task, run_id = event["resource"].get("prefect.resource.name"), payload.get("task_run_id")
    if not rows or not task or not run_id:
        return None
    attempts = [_read_failed_attempt(row, record.get("circuit")) for row in rows]
    start, last = attempts[0].start, attempts[-1]
    end = last.start + last.seconds
    if name == "run.recovered":
        began = end + (rows[-1].get("delay") or 0.0)
        end = max(began, start + float(payload.get("after") or 0.0))
        attempts.append(RecordedAttempt(began, end - began, succeeded=True, circuit=record.get("circuit")))
    ended = cast("Any", ENDS[name])
    return task, RecordedRun(run_id, start, max(start, end), ended, tuple(attempts), weight)


def _read_failed_attempt(row: Mapping[str, Any], circuit: str | None) -> RecordedAttempt:
    seconds, rejected = max(0.0, row["seconds"]), row.get("by") is not None
    return RecordedAttempt(
        row["at"], seconds, False, row.get("category"), row.get("retry_after"), rejected, circuit
    )


# -- runs without failures, from rows of task runs


def _tasks_of_rows(options: list[TaskOptions], troubled: NamedRuns) -> TaskNames:
    tasks: dict[str, str | None] = {}
    for setup in options:
        function = function_of(setup.task_key)
        tasks[function] = None if function in tasks else setup.task
    names = (*(setup.task for setup in options), *(task for task, _ in troubled.values()))
    return {**tasks, **dict(zip(names, names, strict=True))}


def _plain(
    api: Api, period: Period, tasks: TaskNames, random: Random, unknown: dict[str, str], troubled: NamedRuns
) -> NamedRuns:
    runs: NamedRuns = {}
    total = api.count("task_runs", end_filter(period))
    share = min(1.0, MOST_PLAIN / max(1, total))
    failed: set[str] = set()
    settled = min(period.until, datetime.now(UTC) - SETTLED).timestamp()
    for part in period.parts(max(1, -(-total // SLICE))) if tasks else ():
        for row, weight in _rows(api, end_filter(part), share, random):
            named = task_of(row["name"], row["task_key"], row["dynamic_key"])
            task = tasks.get(named) or tasks.get(function_of(row["task_key"]))
            if task is None or row["end_time"] is None or row["state_type"] not in FINAL:
                continue
            run = _run_of_row(row, weight)
            if row["state_name"] in REPORTED and not run.attempts:
                failed |= {row["id"]} if run.end < settled else set()
            elif row["id"] not in troubled:
                runs[row["id"]] = task, run
    if share < 1:
        unknown["successes"] = (
            f"Of the runs that succeeded at once a random sample of {len(runs)} was read, with weights."
        )
    if failed - troubled.keys() and "failures" not in unknown:
        share = len(failed - troubled.keys()) / len(failed)
        runs_of = f"about {share:.0%} of the runs with retries or failures"
        unknown["attempts"] = f"The attempts of {runs_of} are not known: the API keeps events for some days."
    return runs


def _rows(api: Api, filters: Filter, share: float, random: Random) -> Iterator[tuple[dict[str, Any], float]]:
    """Rows of pages that are chosen at random, each with its weight."""
    total = api.count("task_runs", filters)
    offsets = range(0, total, PAGE)
    some = min(len(offsets), max(1, round(len(offsets) * share)))
    chosen = offsets if share == 1 else sorted(random.sample(offsets, some))
    pages = list(api.each(lambda offset: api.page(filters, offset), chosen))
    number = sum(map(len, pages))
    for page in pages:
        yield from ((row, max(1.0, total / number)) for row in page)


def _run_of_row(row: Mapping[str, Any], weight: float) -> RecordedRun:
    """A run from its row; without attempts, unless it succeeded at once."""
    end = datetime.fromisoformat(row["end_time"]).timestamp()
    start = min(end, datetime.fromisoformat(row["start_time"]).timestamp()) if row["start_time"] else end
    at_once = row["state_name"] == "Completed" and row["run_count"] <= 1
    other = row["state_type"].lower() if row["state_type"] in ("CRASHED", "CANCELLED") else "other"
    ended = "succeeded" if at_once else other
    attempts = (RecordedAttempt(start=start, seconds=end - start, succeeded=True),) if at_once else ()
    return RecordedRun(row["id"], start, end, cast("Any", ended), attempts, weight)
