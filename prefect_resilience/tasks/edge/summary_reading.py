"""What the Prefect API knows about a flow run and the runs inside it.

The task runs and the events are read once. More than MOST_RUNS or MOST_EVENTS are not: then the summary
says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect.client.schemas.filters import FlowRunFilter, TaskRunFilter
from prefect.client.schemas.objects import FlowRun, TaskRun
from prefect.client.schemas.sorting import TaskRunSort
from prefect.types._datetime import parse_datetime

from prefect_resilience.durable.batches.edge.marks import PAGE, pages, runs_below
from prefect_resilience.durable.batches.run_passes import RunOrigin
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.tasks.edge.seams import next_page
from prefect_resilience.telemetry.edge.events import PREFIX, happening_of, state_seen
from prefect_resilience.telemetry.model import FINAL, REMARKABLE_HAPPENINGS, Happening, StateSeen, TaskRunSeen

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

MOST_RUNS = 4_000
MOST_EVENTS = 2_000
EVENTS = (*sorted(REMARKABLE_HAPPENINGS), "attempt.refused")

Filter = dict[str, Any]


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


def read_inner_runs(client: SyncPrefectClient, flow_run_id: UUID) -> list[UUID]:
    """The flow runs inside one, at most PAGE."""
    return runs_below(client, flow_run_id, PAGE)[1 : PAGE + 1]


def has_heard_the_end(client: SyncPrefectClient, run_id: UUID, state_id: UUID, *, died: bool) -> bool:
    """Whether the API knows about the run's last state, and unless its process died, the end of every task
    run. It receives the run's last state after all earlier events."""
    unfinished = {"state": {"type": {"any_": ["PENDING", "RUNNING", "SCHEDULED"]}}}
    body: Filter = {"flow_runs": {"id": {"any_": [str(run_id)]}}, "task_runs": unfinished}
    if not died and _post(client, "/task_runs/count", body):
        return False
    wanted = {"filter": {"id": {"id": [str(state_id)]}}, "limit": 1}
    return bool(_post(client, "/events/filter", wanted)["events"])


def read_task_runs(client: SyncPrefectClient, ids: Iterable[UUID]) -> list[tuple[TaskRunSeen, int]]:
    """The task runs of these flow runs in the order of their begin, each with its flow run's run count;
    without those that represent a subflow run."""
    inside = FlowRunFilter.model_validate({"id": {"any_": [*ids]}})
    called = TaskRunFilter.model_validate({"subflow_runs": {"exists_": False}})
    in_order = {"sort": TaskRunSort.EXPECTED_START_TIME_ASC}
    read = partial(client.read_task_runs, flow_run_filter=inside, task_run_filter=called, **in_order)
    return [(_task_run_seen(run), run.flow_run_run_count) for run in pages(read, MOST_RUNS)]


def read_events(client: SyncPrefectClient, ids: Iterable[UUID], since: datetime) -> list[Happening]:
    """The first events about these flow runs that a summary shows, at most about MOST_EVENTS."""
    wanted: Filter = {
        "event": {"name": [f"{PREFIX}.{name}" for name in EVENTS]},
        "related": {"id": [f"prefect.flow-run.{run_id}" for run_id in ids]},
        "occurred": {"since": since.isoformat()},
        "order": "ASC",
    }
    page = _post(client, "/events/filter", {"filter": wanted, "limit": 50})
    events = [*page["events"]]
    while page["next_page"] and len(events) < MOST_EVENTS:
        page = next_page(client, str(page["next_page"])).json()
        events += page["events"]
    return [_happening(event) for event in events]


def _task_run_seen(run: TaskRun) -> TaskRunSeen:
    """A task run with the states that its own record contains."""
    states: list[StateSeen] = []
    if run.start_time is not None:
        states.append(StateSeen("RUNNING", "Running", run.start_time.timestamp()))
    if run.state is not None and (run.state.type.value in FINAL or not states):
        states.append(state_seen(run.state))
    return TaskRunSeen(str(run.id), run.name, str(run.flow_run_id), states, begun=run.run_count)


def _happening(event: Filter) -> Happening:
    resource = event["resource"]
    return happening_of(
        str(event["id"]),
        parse_datetime(event["occurred"]).timestamp(),
        str(event["event"]).removeprefix(f"{PREFIX}."),
        redact(str(resource.get("prefect.resource.name") or resource["prefect.resource.id"])),
        event.get("payload") or {},
    )


def _post(client: SyncPrefectClient, route: Any, body: Filter) -> Any:
    return client.request("POST", route, json=body).json()
