"""The record of a period: what each task did, read from the Prefect API, and the options with which it ran.

The final event of a run that was retried or failed (`run.recovered`, `run.failed`, `fallback.used`) has all
its attempts. Runs that succeeded at once have no event; they are rows of task runs. Of these a random sample
is read if they are many, and each run of it has a weight.

Times are seconds since the epoch, durations are seconds. What was not recorded is None, not zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Literal, NamedTuple, cast

from prefect_resilience.base.durations import seconds_of
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.guards.circuits.model import CircuitPolicy
from prefect_resilience.guards.retries.policy import Retry
from prefect_resilience.operations.reports import When, period_of
from prefect_resilience.operations.reports.api import PAGE, Api, Filter, Period, opened, ours
from prefect_resilience.operations.reports.figures import FINAL, function_of, task_of
from prefect_resilience.operations.reports.runs import end_filter
from prefect_resilience.telemetry.edge.events import PREFIX

Options = Mapping[str, Any]
KNOWN = frozenset({"retry", "timeout", "circuit", "fallback", "limits", "hedge"})
"""The options of a policy. Limits and hedges are not replayed."""


@dataclass(frozen=True, slots=True)
class RecordedAttempt:
    """One attempt; `rejected`: a guard did not let it through.

    retry_after: what the service asked for. circuit: the name of the circuit around it, filled in.
    """

    start: float
    seconds: float
    succeeded: bool
    category: str | None = None
    retry_after: float | None = None
    rejected: bool = False
    circuit: str | None = None


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """One task run. `weight`: how many runs it stands for, 1 unless runs were sampled."""

    run_id: str
    start: float
    end: float
    ended: Literal["succeeded", "fallback", "failed", "crashed", "cancelled", "other"]
    attempts: tuple[RecordedAttempt, ...]
    weight: float = 1.0


@dataclass(frozen=True)
class RecordedTask:
    """The runs of one task in the order of their starts, and the options with which they ran.

    options: in the form of a `ResiliencePolicy` block ({"retry": {"attempts": 3, "backoff": {...}},
    "timeout": 30.0, "circuit": {...}}), with defaults filled in; None: unknown. block: the name of the
    ResiliencePolicy block that the task reads, if any.
    """

    name: str
    runs: tuple[RecordedRun, ...]
    options: dict[str, object] | None = None
    block: str | None = None

    @property
    def service(self) -> str:
        """The name of the service behind the task: its circuit's, or the task's own without a circuit.

        A template names one circuit for each of its values; the most frequent one stands for the task.
        """
        attempts = (attempt for run in self.runs for attempt in run.attempts)
        named = Counter(attempt.circuit for attempt in attempts if attempt.circuit is not None)
        written = value_at(self.options or {}, "circuit.name")
        return max(named, key=named.__getitem__) if named else written or self.name


@dataclass(frozen=True)
class RecordedPeriod:
    """What is known of a period. `unknown`: figures that are missing or partial, and why."""

    since: float
    until: float
    tasks: tuple[RecordedTask, ...]
    unknown: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def runs(self) -> int:
        """The number of runs that were read."""
        return sum(len(task.runs) for task in self.tasks)


@dataclass(frozen=True)
class TaskPolicy:
    """The guards around one task's function that a replay knows. falls_back: the task has a fallback."""

    retry: Retry
    timeout: float | None = None
    circuit: CircuitPolicy | None = None
    falls_back: bool = False


def policy_of(options: Options) -> TaskPolicy:
    """The policy that a document of options describes. Raises ConfigurationError for what it cannot read."""
    for name in options.keys() - KNOWN:
        raise ConfigurationError(
            f"there is no option {name!r}: write options as in "
            '{"retry": {"attempts": 3}, "timeout": 30, "circuit": {"open_for": 60}}'
        )
    timeout: Any = options.get("timeout")
    if isinstance(timeout, Mapping):
        timeout = value_at(options, "timeout.total")
    seconds = seconds_of(timeout)
    if timeout is not None and (seconds is None or seconds <= 0):
        raise ConfigurationError(f"timeout={timeout!r} is not a time: write seconds, as in 30")
    retry, numbers = (dict(cast("Options", options.get(name) or {})) for name in ("retry", "circuit"))
    numbers.pop("name", None)
    circuit = CircuitPolicy(**numbers) if options.get("circuit") else None
    return TaskPolicy(Retry(**retry), seconds, circuit, bool(options.get("fallback")))


def value_at(options: Options, path: str) -> Any:
    """The value at a path such as "retry.attempts"; None if there is none."""
    value: Any = options
    for part in path.split("."):
        value = cast("Options", value).get(part) if isinstance(value, Mapping) else None
    return value


def with_value(options: Options, path: str, value: Any) -> dict[str, Any]:
    """A copy of the options with another value at a path; None leaves the option out."""
    first, _, rest = path.partition(".")
    inner = with_value(cast("Options", options.get(first) or {}), rest, value) if rest else value
    changed = {**options, first: inner}
    if inner is None:
        del changed[first]
    return changed


# -- as read from the API

MOST_PLAIN = 10_000
"""Rows of task runs that are read; of more, pages at random places."""

EVENTS_AT_ONCE = 600
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


def read_evidence(since: When) -> RecordedPeriod:
    """The record from a time until now.

    Raises ConfigurationError for an empty period and ReportError if the Prefect API is unavailable. What is
    missing, or only a sample, is in `unknown`.
    """
    period = period_of(since, None, datetime.now(UTC))
    unknown: dict[str, str] = {}
    with opened() as api:
        options = options_of(api, period)
        troubled = _read_troubled_runs(api, period)
        runs = _plain(api, period, _tasks_of_rows(options, troubled), unknown, troubled)
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


def options_of(api: Api, period: Period) -> list[TaskOptions]:
    """The latest options of each task that ran in the period, from the events with which it told them.

    A process tells them again after a day, so events from a day before the period count.
    """
    filters = Period(period.since - timedelta(days=1), period.until).events(ours("task.configured"))
    by_task: dict[str, list[dict[str, Any]]] = {}
    for row in api.count_by("resource", filters):
        by_task.setdefault(row["label"], []).append(row)
    read = api.each(lambda rows: _latest(api, filters, rows), by_task.values())
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


def _read_troubled_runs(api: Api, period: Period) -> NamedRuns:
    period = Period(period.since - timedelta(seconds=10), period.until)
    parts = period.parts(max(1, -(-api.count_events(period.events(ours(*ENDS))) // EVENTS_AT_ONCE)))
    named = [
        run_of_event(event)
        for events in api.each(lambda part: api.events(part.events(ours(*ENDS))), parts)
        for event in events
    ]
    return {pair[1].run_id: pair for pair in named if pair is not None}


def run_of_event(event: Mapping[str, Any]) -> tuple[str, RecordedRun] | None:
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
    return task, RecordedRun(run_id, start, max(start, end), ended, tuple(attempts))


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
    api: Api, period: Period, tasks: TaskNames, unknown: dict[str, str], troubled: NamedRuns
) -> NamedRuns:
    runs: NamedRuns = {}
    total = api.count("task_runs", end_filter(period)) if tasks else 0
    rows = _rows(api, period, total)
    weight = max(1.0, total / max(1, len(rows)))
    failed: set[str] = set()
    settled = min(period.until, datetime.now(UTC) - SETTLED).timestamp()
    for row in rows:
        named = task_of(row["name"], row["task_key"], row["dynamic_key"])
        task = tasks.get(named) or tasks.get(function_of(row["task_key"]))
        if task is None or row["end_time"] is None or row["state_type"] not in FINAL:
            continue
        run = _run_of_row(row, weight)
        if row["state_name"] in REPORTED and not run.attempts:
            failed |= {row["id"]} if run.end < settled else set()
        elif row["id"] not in troubled:
            runs[row["id"]] = task, run
    if total > MOST_PLAIN:
        unknown["successes"] = (
            f"Of the runs that succeeded at once a random sample of {len(runs)} was read, with weights."
        )
    if failed - troubled.keys():
        share = len(failed - troubled.keys()) / len(failed)
        runs_of = f"about {share:.0%} of the runs with retries or failures"
        unknown["attempts"] = f"The attempts of {runs_of} are not known: the API keeps events for some days."
    return runs


def _rows(api: Api, period: Period, total: int) -> list[dict[str, Any]]:
    """The rows of task runs, or of pages at random places."""
    offsets: Sequence[int] = range(0, total, PAGE)
    if total > MOST_PLAIN:
        offsets = Random(period.since.timestamp()).sample(offsets, MOST_PLAIN // PAGE)
    pages = api.each(lambda offset: api.page(end_filter(period), offset), offsets)
    return [row for page in pages for row in page]


def _run_of_row(row: Mapping[str, Any], weight: float) -> RecordedRun:
    """A run from its row; without attempts, unless it succeeded at once."""
    end = datetime.fromisoformat(row["end_time"]).timestamp()
    start = min(end, datetime.fromisoformat(row["start_time"]).timestamp()) if row["start_time"] else end
    at_once = row["state_name"] == "Completed" and row["run_count"] <= 1
    other = row["state_type"].lower() if row["state_type"] in ("CRASHED", "CANCELLED") else "other"
    ended = "succeeded" if at_once else other
    attempts = (RecordedAttempt(start=start, seconds=end - start, succeeded=True),) if at_once else ()
    return RecordedRun(row["id"], start, end, cast("Any", ended), attempts, weight)
