"""What the Prefect API knows about a flow run and the runs inside it.

The task runs and the events are read once. More than MOST_RUNS or MOST_EVENTS are not: then the summary
says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterParentFlowRunId
from prefect.client.schemas.objects import FlowRun, TaskRun
from prefect.settings import PREFECT_UI_URL
from prefect.types._datetime import parse_datetime

from prefect_resilience.durable.batches.run_passes import RunOrigin
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.tasks.edge.seams import next_page
from prefect_resilience.tasks.summaries.story import CIRCUIT_MOVES
from prefect_resilience.telemetry.edge.events import PREFIX, happening_of, state_seen
from prefect_resilience.telemetry.model import (
    FINAL,
    REMARKABLE_HAPPENINGS,
    Happening,
    StateSeen,
    TaskRunSeen,
    cut_random_part,
)

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

PAGE = 200
MOST_RUNS = 4_000
MOST_EVENTS = 2_000
MOST_INNER = 200
DEPTH = 3
MOST_CIRCUITS = 20
MOST_LINKS = 20
EVENTS = (*sorted(REMARKABLE_HAPPENINGS), "attempt.refused")
HEARTBEAT = "prefect.flow-run.heartbeat"
DAY = 86_400.0

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
    """The flow runs inside one, at most DEPTH levels down and at most MOST_INNER."""
    inner: list[UUID] = []
    level = [flow_run_id]
    for _ in range(DEPTH):
        parents = FlowRunFilter(parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=level))
        runs = client.read_flow_runs(flow_run_filter=parents, limit=PAGE) if level else []
        level = [run.id for run in runs]
        inner += level
    return inner[:MOST_INNER]


def has_heard_the_end(client: SyncPrefectClient, run_id: UUID, state_id: UUID, *, died: bool) -> bool:
    """Whether the API knows about the run's last state, and unless its process died, the end of every task
    run. It receives the run's last state after all earlier events."""
    unfinished: Filter = {"state": {"type": {"any_": ["PENDING", "RUNNING", "SCHEDULED"]}}}
    body = {"flow_runs": {"id": {"any_": [str(run_id)]}}, "task_runs": unfinished}
    if not died and _post(client, "/task_runs/count", body):
        return False
    return bool(_first_events(client, {"id": {"id": [str(state_id)]}}, 1)["events"])


def read_task_runs(client: SyncPrefectClient, ids: Iterable[UUID]) -> list[tuple[TaskRunSeen, int]]:
    """The task runs of these flow runs in the order of their begin, each with its flow run's run count;
    without those that represent a subflow run."""
    read: list[tuple[TaskRunSeen, int]] = []
    body: Filter = {
        "flow_runs": {"id": {"any_": [str(run_id) for run_id in ids]}},
        "task_runs": {"subflow_runs": {"exists_": False}},
        "sort": "EXPECTED_START_TIME_ASC",
        "limit": PAGE,
    }
    while len(read) < MOST_RUNS:
        page = _post(client, "/task_runs/filter", {**body, "offset": len(read)})
        runs = [TaskRun.model_validate(run) for run in page]
        read += [(_task_run_seen(run), run.flow_run_run_count) for run in runs]
        if len(page) < PAGE:
            break
    return read


def read_history(client: SyncPrefectClient, task_run_id: str) -> list[StateSeen]:
    """All states of a task run."""
    states = map(state_seen, client.read_task_run_states(UUID(task_run_id)))
    return sorted(states, key=lambda state: state.at)


def read_events(client: SyncPrefectClient, ids: Iterable[UUID], since: float) -> list[Happening]:
    """The events about these flow runs that a summary shows, the first one first."""
    related = {"id": [f"prefect.flow-run.{run_id}" for run_id in ids]}
    return _events(client, EVENTS, {"related": related, "occurred": {"since": _iso(since)}})


def read_circuit_events(
    client: SyncPrefectClient, names: Sequence[str], since: float, until: float
) -> list[Happening]:
    """The changes of these circuits in a time span, by any process or person."""
    about = {"id": [f"{PREFIX}.circuit.{name}" for name in names[:MOST_CIRCUITS]]}
    occurred = {"since": _iso(since), "until": _iso(until)}
    return _events(client, sorted(CIRCUIT_MOVES), {"resource": about, "occurred": occurred})


def read_beats(client: SyncPrefectClient, flow_run_id: UUID, ends: Iterable[float]) -> list[float]:
    """The last heartbeat of a flow run before each of these times, if it sent any."""
    beats: list[float] = []
    for end in ends:
        wanted: Filter = {
            "event": {"name": [HEARTBEAT]},
            "resource": {"id": [f"prefect.flow-run.{flow_run_id}"]},
            "occurred": {"since": _iso(end - DAY), "until": _iso(end)},
            "order": "DESC",
        }
        page = _first_events(client, wanted, 1)
        beats += [parse_datetime(event["occurred"]).timestamp() for event in page["events"]]
    return beats


def read_links(client: SyncPrefectClient, flow_run_ids: Iterable[UUID]) -> list[tuple[str, str | None]]:
    """Other artifacts of these runs, such as the picture of a plan: pairs of a key and an address."""
    body = {"artifacts": {"flow_run_id": {"any_": [str(run_id) for run_id in flow_run_ids]}}, "limit": 100}
    base = PREFECT_UI_URL.value()
    links = {
        artifact["key"]: f"{base}/artifacts/artifact/{artifact['id']}" if base else None
        for artifact in _post(client, "/artifacts/filter", body)
        if artifact["key"]
        and artifact["type"] != "progress"
        and not artifact["key"].startswith("run-summary-")
    }
    return sorted(links.items())[:MOST_LINKS]


def _events(client: SyncPrefectClient, names: Sequence[str], wanted: Filter) -> list[Happening]:
    """Events of these names, at most about MOST_EVENTS."""
    event_names = [f"{PREFIX}.{name}" for name in names]
    page = _first_events(client, {**wanted, "event": {"name": event_names}, "order": "ASC"}, 50)
    events = [*page["events"]]
    while page["next_page"] and len(events) < MOST_EVENTS:
        page = next_page(client, str(page["next_page"])).raise_for_status().json()
        events += page["events"]
    return [_happening(event) for event in events]


def _task_run_seen(run: TaskRun) -> TaskRunSeen:
    """A task run with the states that its own record contains."""
    states: list[StateSeen] = []
    if run.start_time is not None:
        states.append(StateSeen("RUNNING", "Running", run.start_time.timestamp()))
    if run.state is not None and (run.state.type.value in FINAL or not states):
        states.append(state_seen(run.state))
    label = cut_random_part(run.name, run.dynamic_key)
    return TaskRunSeen(str(run.id), run.name, str(run.flow_run_id), states, begun=run.run_count, label=label)


def _happening(event: Filter) -> Happening:
    resource = event["resource"]
    return happening_of(
        str(event["id"]),
        parse_datetime(event["occurred"]).timestamp(),
        str(event["event"]).removeprefix(f"{PREFIX}."),
        redact(str(resource.get("prefect.resource.name") or resource["prefect.resource.id"])),
        event.get("payload") or {},
    )


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()


def _first_events(client: SyncPrefectClient, wanted: Filter, limit: int) -> Any:
    return _post(client, "/events/filter", {"filter": wanted, "limit": limit})


def _post(client: SyncPrefectClient, route: Any, body: Filter) -> Any:
    return client.request("POST", route, json=body).raise_for_status().json()
