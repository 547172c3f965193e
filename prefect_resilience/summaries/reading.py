"""What the Prefect API knows of a flow run and those inside it: for what ran in other processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterParentFlowRunId,
    TaskRunFilter,
    TaskRunFilterFlowRunId,
)
from prefect.client.schemas.objects import State, TaskRun
from prefect.client.schemas.sorting import TaskRunSort

from prefect_resilience.errors.info import bounded
from prefect_resilience.errors.redact import redact
from prefect_resilience.summaries.model import FINAL, Happening, Seen, StateSeen, TaskRunSeen
from prefect_resilience.summaries.watch import MESSAGE, happening_of

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

PAGE = 200
MOST_TASK_RUNS = 1_000
MOST_EVENTS = 500
MOST_HISTORIES = 60
MOST_INNER = 200
DEPTH = 3
PREFIX = "prefect-resilience."

SETTLES = 10.0
"""Seconds that are waited at most for the API to know what other processes have just told it. It writes every
five."""
_EVERY = 0.5

PATIENCE = 20.0
"""Seconds after which the reading ends with what there is: a slow API must not hold up the end of a run."""


def inner_runs(client: SyncPrefectClient, flow_run_id: UUID) -> list[UUID]:
    """The flow runs inside one, down to a depth, as many as a summary can take."""
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


def settled(
    client: SyncPrefectClient,
    flow_run_id: UUID,
    state_id: UUID | None,
    wait: float = SETTLES,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Wait until the API has come to know of the run's end, which it hears of after all that went before."""
    until = time.monotonic() + wait
    while True:
        heard = state_id is None or _has_event(client, state_id)
        if heard and not _unfinished(client, flow_run_id):
            return True
        if time.monotonic() >= until:
            return heard
        sleep(_EVERY)


def _has_event(client: SyncPrefectClient, event_id: UUID) -> bool:
    body = {"filter": {"id": {"id": [str(event_id)]}}, "limit": 1}
    return bool(_json(client.request("POST", "/events/filter", json=body))["events"])


def _unfinished(client: SyncPrefectClient, flow_run_id: UUID) -> bool:
    body = {
        "flow_runs": {"id": {"any_": [str(flow_run_id)]}},
        "task_runs": {"state": {"type": {"any_": ["PENDING", "RUNNING", "SCHEDULED"]}}},
    }
    return _json(client.request("POST", "/task_runs/count", json=body)) > 0


def read(client: SyncPrefectClient, flow_run_ids: Iterable[UUID], known: Seen) -> None:
    """Add to what is known what the API knows beside it; rows are bounded, counts exact where it counts.

    Whatever the API takes for an answer, after PATIENCE nothing more is asked.
    """
    ids = [*flow_run_ids]
    until = time.monotonic() + PATIENCE
    _add_task_runs(client, ids, known, until)
    _add_events(client, ids, known, until)
    if time.monotonic() >= until:
        known.missing.append("The Prefect API was slow: not all that it knows was looked at.")


def _add_task_runs(client: SyncPrefectClient, ids: list[UUID], known: Seen, until: float) -> None:
    found = _task_runs(client, ids, until)
    total = int(
        _json(
            client.request(
                "POST", "/task_runs/count", json={"flow_runs": {"id": {"any_": [str(one) for one in ids]}}}
            )
        )
    )
    others = [run for run in found if str(run.id) not in known.noted and not _is_flow_run(run)]
    others.sort(key=lambda run: run.run_count, reverse=True)
    read_histories = 0
    for run in others:
        seen = TaskRunSeen(str(run.id), run.name, str(run.flow_run_id))
        if _interesting(run) and read_histories < MOST_HISTORIES and time.monotonic() < until:
            read_histories += 1
            seen.states = [_seen(state) for state in client.read_task_run_states(run.id)]
            seen.states.sort(key=lambda state: state.at)
        else:
            seen.states = [*_outline(run)]
        known.task_runs.append(seen)
        if run.state is not None:
            known.states[run.state.name or run.state.type.value.title()] += 1
        if run.run_count > 1:
            known.retried += 1
            known.retries += run.run_count - 1
    if total > len(found):
        known.missing.append(
            f"Of {total:,} task runs that the API knows, the newest {len(found):,} were looked at."
        )


def _task_runs(client: SyncPrefectClient, ids: list[UUID], until: float) -> list[TaskRun]:
    found: list[TaskRun] = []
    wanted = TaskRunFilter(flow_run_id=TaskRunFilterFlowRunId(any_=ids))
    while len(found) < MOST_TASK_RUNS:
        page = client.read_task_runs(
            task_run_filter=wanted, sort=TaskRunSort.END_TIME_DESC, limit=PAGE, offset=len(found)
        )
        found += page
        if len(page) < PAGE or time.monotonic() >= until:
            break
    return found


def _is_flow_run(run: TaskRun) -> bool:
    """What stands for a flow run inside another: its own task runs tell more."""
    details = run.state.state_details if run.state is not None else None
    return details is not None and details.child_flow_run_id is not None


def _interesting(run: TaskRun) -> bool:
    state = run.state
    return run.run_count > 1 or (state is not None and _seen(state).remarkable)


def _outline(run: TaskRun) -> Iterable[StateSeen]:
    """The states of a task run as far as its own record tells."""
    if run.start_time is not None:
        yield StateSeen("RUNNING", "Running", run.start_time.timestamp())
    if run.state is not None and run.state.type.value in FINAL:
        yield _seen(run.state)


def _seen(state: State[Any]) -> StateSeen:
    return StateSeen(
        state.type.value,
        state.name or state.type.value.title(),
        state.timestamp.timestamp(),
        bounded(redact(state.message), MESSAGE) if state.message else "",
    )


def _add_events(client: SyncPrefectClient, ids: list[UUID], known: Seen, until: float) -> None:
    here = {one.id for one in known.happenings}
    resources = [f"prefect.flow-run.{one}" for one in ids]
    body = {
        "filter": {"event": {"prefix": [PREFIX]}, "related": {"id": resources}, "order": "ASC"},
        "limit": 50,
    }
    page = _json(client.request("POST", "/events/filter", json=body))
    looked = 0
    while True:
        for event in page["events"]:
            looked += 1
            if str(event["id"]) not in here:
                one = _happening(event)
                known.happenings.append(one)
                known.counts[one.name] += 1
        if not page["next_page"] or looked >= MOST_EVENTS or time.monotonic() >= until:
            break
        page = _json(client._client.get(str(page["next_page"])))  # pyright: ignore[reportPrivateUsage]
    if page["total"] > looked:
        known.missing.append(f"Of {page['total']:,} events, the first {looked:,} were looked at.")


def _happening(event: dict[str, Any]) -> Happening:
    from prefect.types._datetime import parse_datetime

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
