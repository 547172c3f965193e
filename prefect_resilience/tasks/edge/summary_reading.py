"""What the Prefect API knows about the passes of a flow run and the runs inside it.

Every read has a deadline, even if the API is slow. Whatever is missing by then is reported as missing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterParentFlowRunId
from prefect.client.schemas.objects import FlowRun, TaskRun
from prefect.types._datetime import parse_datetime

from prefect_resilience.base.drive import answers
from prefect_resilience.durable.batches.run_passes import RunOrigin, RunPass, borders
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.tasks.edge.seams import next_page
from prefect_resilience.tasks.summaries.story import CIRCUIT_MOVES, PassRead
from prefect_resilience.telemetry.edge.events import happening_of, state_seen
from prefect_resilience.telemetry.model import (
    FINAL,
    REMARKABLE_HAPPENINGS,
    REPLACED,
    REPLAYED,
    Happening,
    StateSeen,
    TaskRunSeen,
)

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

PAGE = 200
EVENTS_PAGE = 50
MOST_EVENTS = 300
MOST_ROWS = 60
"""The most task runs of one kind that are read for one pass, and the most histories."""

MOST_INNER = 200
DEPTH = 3
MOST_CIRCUITS = 20
PREFIX = "prefect-resilience."
TOLD = sorted(REMARKABLE_HAPPENINGS | {"dead-letter.settled"})
DAY = 86_400.0

Filter = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Window:
    """The time span of one pass."""

    since: datetime
    until: datetime

    @property
    def occurred(self) -> Filter:
        """The span as a filter of events."""
        return {"since": self.since.isoformat(), "until": self.until.isoformat()}


@dataclass(slots=True)
class PassesRead:
    """The passes by their numbers; `whole` unless something was left out or did not answer."""

    passes: dict[int, PassRead] = field(default_factory=dict[int, PassRead])
    whole: bool = True


def windows_of(passes: Sequence[RunPass]) -> dict[int, Window]:
    """The windows of the passes, in order and without gaps."""
    ends = [*borders(passes), time.time() + DAY]
    starts = [passes[0].began - DAY, *ends[:-1]]
    return {
        one.number: Window(datetime.fromtimestamp(start, UTC), datetime.fromtimestamp(end, UTC))
        for one, start, end in zip(passes, starts, ends, strict=True)
    }


def origin_of(run: FlowRun) -> RunOrigin:
    """How a flow run was created."""
    creator = run.created_by
    return RunOrigin(
        creator_kind=creator.type or "" if creator is not None else "",
        creator=redact(creator.display_value or "") if creator is not None else "",
        scheduled=bool(run.auto_scheduled),
        deployed=run.deployment_id is not None,
        inner=run.parent_task_run_id is not None,
    )


def inner_runs(client: SyncPrefectClient, flow_run_id: UUID) -> list[UUID]:
    """The flow runs inside one, at most DEPTH levels down and at most MOST_INNER."""
    found: list[UUID] = []
    level = [flow_run_id]
    for _ in range(DEPTH):
        parents = FlowRunFilter(parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=level))
        level = (
            [run.id for run in client.read_flow_runs(flow_run_filter=parents, limit=PAGE)] if level else []
        )
        found += level
        if len(found) >= MOST_INNER:
            return found[:MOST_INNER]
    return found


def heard_of_the_end(client: SyncPrefectClient, flow_run_id: UUID, state_id: UUID | None) -> bool:
    """Whether the API knows about the run's end and the end of every task run. It receives the run's end
    after all earlier events."""
    return (state_id is None or _has_event(client, state_id)) and not _unfinished(client, flow_run_id)


def _has_event(client: SyncPrefectClient, event_id: UUID) -> bool:
    body = {"filter": {"id": {"id": [str(event_id)]}}, "limit": 1}
    return bool(_json(client.request("POST", "/events/filter", json=body))["events"])


def _unfinished(client: SyncPrefectClient, flow_run_id: UUID) -> bool:
    body = {
        "flow_runs": {"id": {"any_": [str(flow_run_id)]}},
        "task_runs": {"state": {"type": {"any_": ["PENDING", "RUNNING", "SCHEDULED"]}}},
    }
    return _json(client.request("POST", "/task_runs/count", json=body)) > 0


# -- passes


def read_passes(
    client: SyncPrefectClient,
    ids: Iterable[UUID],
    windows: dict[int, Window],
    detailed: Iterable[int],
    until: float,
) -> PassesRead:
    """What the API knows about these passes by `until`, on the `monotonic()` clock.

    `ids` are the flow run and the runs inside it. For `detailed` passes the histories of task runs are read
    too.
    """
    runs = [str(one) for one in ids]
    jobs: dict[tuple[int, str], Callable[[], Any]] = {}
    for number, window in windows.items():
        jobs[number, "counts"] = partial(_counts, client, runs, window)
        jobs[number, "events"] = partial(_events, client, runs, window)
        jobs[number, "retries"] = partial(_retries, client, runs, window)
        jobs[number, "rows"] = partial(_rows, client, runs, window)
    found = answers(jobs, until)
    done = PassesRead(whole=len(found) == len(jobs))
    for number in windows:
        read = done.passes[number] = PassRead()
        read.states = found.get((number, "counts"), Counter())
        read.retried, read.retries, again = found.get((number, "retries"), (0, 0, []))
        read.happenings, read.counts = found.get((number, "events"), ([], Counter()))
        read.rows = [_row(run) for run in found.get((number, "rows"), ())]
        _add_rows(client, read, again, until)
    _add_histories(client, [done.passes[number] for number in detailed if number in done.passes], until)
    return done


def _counts(client: SyncPrefectClient, runs: list[str], window: Window) -> Counter[tuple[str, str]]:
    """The number of task runs in each state, without those that represent a subflow run."""
    body: Filter = {
        "history_start": window.since.isoformat(),
        "history_end": window.until.isoformat(),
        # A single bucket: it must be longer than the window, or there would be two.
        "history_interval_seconds": max((window.until - window.since).total_seconds() + 0.001, 1.0),
        "flow_runs": {"id": {"any_": runs}},
        "task_runs": {"subflow_runs": {"exists_": False}},
    }
    found: Counter[tuple[str, str]] = Counter()
    for bucket in _json(client.request("POST", "/task_runs/history", json=body)):
        for state in bucket["states"]:
            if state["state_type"] is not None:
                found[state["state_type"], state["state_name"]] += state["count_runs"]
    return found


def _retries(client: SyncPrefectClient, runs: list[str], window: Window) -> tuple[int, int, list[str]]:
    """The number of retried task runs, the number of retries, and the ids of the most retried task runs."""
    body = {
        "filter": {
            "event": {"name": ["prefect.task-run.Retrying"]},
            "related": {"id": [f"prefect.flow-run.{one}" for one in runs]},
            "occurred": window.occurred,
        }
    }
    found = _counted(client, "resource", body)
    ids = [str(one["value"]).removeprefix("prefect.task-run.") for one in found]
    return len(found), sum(one["count"] for one in found), ids[:MOST_ROWS]


def _events(
    client: SyncPrefectClient, runs: list[str], window: Window
) -> tuple[list[Happening], Counter[str]]:
    """The events that a summary shows, and the number of events by name."""
    wanted = {
        "event": {"name": [PREFIX + name for name in TOLD]},
        "related": {"id": [f"prefect.flow-run.{one}" for one in runs]},
        "occurred": window.occurred,
    }
    found, total = _all_events(client, {**wanted, "order": "ASC"})
    if total <= len(found):
        return found, Counter(one.name for one in found)
    counted = _counted(client, "event", {"filter": wanted})
    return found, Counter({str(one["value"]).removeprefix(PREFIX): one["count"] for one in counted})


def _counted(client: SyncPrefectClient, by: str, body: Filter) -> list[Filter]:
    """The counts of events. Prefect's list of its own routes lacks this route."""
    return _json(cast("Any", client).request("POST", f"/events/count-by/{by}", json=body))


def _all_events(client: SyncPrefectClient, wanted: Filter) -> tuple[list[Happening], int]:
    """Events, at most about MOST_EVENTS, and their total number."""
    body = {"filter": wanted, "limit": EVENTS_PAGE}
    page = _json(client.request("POST", "/events/filter", json=body))
    found: list[Happening] = []
    while True:
        found += [_happening(event) for event in page["events"]]
        if not page["next_page"] or len(found) >= MOST_EVENTS:
            return found, page["total"]
        page = _json(next_page(client, str(page["next_page"])))


def circuit_events(
    client: SyncPrefectClient, names: Sequence[str], since: float, until: float
) -> list[Happening]:
    """The changes of these circuits in a time span, by any process or person."""
    window = Window(datetime.fromtimestamp(since, UTC), datetime.fromtimestamp(until, UTC))
    wanted = {
        "event": {"name": [PREFIX + name for name in sorted(CIRCUIT_MOVES)]},
        "resource": {"id": [f"{PREFIX}circuit.{name}" for name in names[:MOST_CIRCUITS]]},
        "occurred": window.occurred,
        "order": "ASC",
    }
    return _all_events(client, wanted)[0]


# -- rows


def _rows(client: SyncPrefectClient, runs: list[str], window: Window) -> list[TaskRun]:
    """The task runs of a pass that a summary shows: those that went wrong, and some of the others."""
    states: list[Filter] = [
        {"type": {"any_": ["FAILED", "CRASHED", "CANCELLED"]}},
        {"name": {"any_": [*sorted(REPLACED), REPLAYED]}},
        {"type": {"any_": ["COMPLETED"]}},
    ]
    found: dict[UUID, TaskRun] = {}
    for state in states:
        body: Filter = {
            "flow_runs": {"id": {"any_": runs}},
            "task_runs": {
                "state": state,
                "start_time": {"after_": window.since.isoformat(), "before_": window.until.isoformat()},
                "subflow_runs": {"exists_": False},
            },
            "sort": "EXPECTED_START_TIME_ASC",
            "limit": MOST_ROWS,
        }
        found |= {run.id: run for run in _task_runs(client, body)}
    return [*found.values()]


def _task_runs(client: SyncPrefectClient, body: Filter) -> list[TaskRun]:
    page = _json(client.request("POST", "/task_runs/filter", json=body))
    return [TaskRun.model_validate(one) for one in page]


def _add_rows(client: SyncPrefectClient, read: PassRead, ids: list[str], until: float) -> None:
    """Add the retried task runs that are not yet among the rows."""
    here = {row.id for row in read.rows}
    wanted = [one for one in ids if one not in here]
    if wanted:
        body: Filter = {"task_runs": {"id": {"any_": wanted}}, "limit": MOST_ROWS}
        found = answers({"rows": partial(_task_runs, client, body)}, until)
        read.rows += [_row(run) for run in found.get("rows", ())]


def _add_histories(client: SyncPrefectClient, reads: Iterable[PassRead], until: float) -> None:
    """Replace the outlines of notable task runs with their full histories."""
    rows = [row for read in reads for row in read.rows if row.attempts > 1 or row.remarkable]
    rows.sort(key=lambda row: row.attempts, reverse=True)
    jobs = {row.id: partial(_history, client, UUID(row.id)) for row in rows[:MOST_ROWS]}
    found = answers(jobs, until)
    for row in rows:
        row.states = found.get(row.id) or row.states


def _history(client: SyncPrefectClient, task_run_id: UUID) -> list[StateSeen]:
    return sorted(map(state_seen, client.read_task_run_states(task_run_id)), key=lambda state: state.at)


def _row(run: TaskRun) -> TaskRunSeen:
    return TaskRunSeen(str(run.id), run.name, str(run.flow_run_id), [*_outline(run)], begun=run.run_count)


def _outline(run: TaskRun) -> Iterable[StateSeen]:
    """The states of a task run that its own record contains."""
    if run.start_time is not None:
        yield StateSeen("RUNNING", "Running", run.start_time.timestamp())
    if run.state is not None and run.state.type.value in FINAL:
        yield state_seen(run.state)


def _happening(event: Filter) -> Happening:
    resource = event["resource"]
    return happening_of(
        str(event["id"]),
        parse_datetime(event["occurred"]).timestamp(),
        str(event["event"]).removeprefix(PREFIX),
        redact(str(resource.get("prefect.resource.name") or resource["prefect.resource.id"])),
        cast("dict[str, Any]", event.get("payload") or {}),
    )


def _json(response: Any) -> Any:
    response.raise_for_status()
    return response.json()
