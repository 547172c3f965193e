"""Whether the process of a flow run is gone: by the events of its worker, and by the time of its next retry.

A worker sends an event when it submits a flow run, and another one when it has released the run's slot and
has nothing more to report. A worker with --limit ends if a run is scheduled again while it holds the slot.

A flow with `retries=` waits for its next attempt in its process, as AwaitingRetry. Workers leave such a run
to that process, so nothing runs it if the process is gone: it is stranded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import FlowRun, WorkerStatus
from prefect.types._datetime import parse_datetime

from prefect_resilience.durable.batches.edge.marks import pages
from prefect_resilience.durable.batches.run_passes import SKEW

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

    from prefect_resilience.durable.batches.edge.flow_runs import BatchRun

SUBMITTED, EXECUTED = "prefect.worker.submitted-flow-run", "prefect.worker.executed-flow-run"
LETS_GO = 300.0
"""The most seconds after the end of a run until its worker has released it. On a busy machine, it takes more
than a minute. A worker that died is offline before."""
PAUSE = 1.0
OVERDUE = timedelta(minutes=10)
"""How late a retry in a process must be before its process counts as gone."""

Hold = Literal["held", "released", "unknown"]


def hold_on(client: SyncPrefectClient, run_id: UUID, since: float) -> Hold:
    """Whether a worker that is online still holds the process that last ran this flow run.

    `since`: when the run entered its state. "unknown": no worker sent an event after that. Raises errors of
    the API.
    """
    events = _events_of(client, run_id)
    submitted = next((one for one in events if one["event"] == SUBMITTED), None)
    if submitted is None:
        return "unknown"
    executed = next((one for one in events if one["follows"] == submitted["id"]), None)
    if executed is not None:
        at = parse_datetime(executed["occurred"]).timestamp()
        return "released" if at > since - SKEW else "unknown"
    return "held" if _is_online(client, submitted) else "unknown"


def _events_of(client: SyncPrefectClient, run_id: UUID) -> list[dict[str, Any]]:
    """The events of workers about a flow run, the newest first."""
    now = datetime.now(UTC)
    wanted = {
        "event": {"name": [SUBMITTED, EXECUTED]},
        "related": {"id": [f"prefect.flow-run.{run_id}"]},
        "occurred": {"since": str(now - timedelta(days=30)), "until": str(now + timedelta(days=1))},
        "order": "DESC",
    }
    answer = client.request("POST", "/events/filter", json={"filter": wanted, "limit": 50})
    return answer.raise_for_status().json()["events"]


def _is_online(client: SyncPrefectClient, event: dict[str, Any]) -> bool:
    """Whether the worker that sent the event is online."""
    name = "prefect.resource.name"
    pools = [one[name] for one in event["related"] if one["prefect.resource.role"] == "work-pool"]
    return any(
        worker.name == event["resource"][name] and worker.status == WorkerStatus.ONLINE.value
        for pool in pools
        for worker in client.read_workers_for_work_pool(pool)
    )


def wait_for_worker(run: BatchRun, say: Callable[[str], None]) -> tuple[Hold, float]:
    """Wait while a worker holds a flow run that has ended, at most until its end is LETS_GO seconds old.

    Returns the worker's last word, and the seconds waited. `say` gets a sentence before a wait.
    """
    began = time.monotonic()
    # The time waited is added, because the API's clock may differ from this machine's.
    age = max(0.0, time.time() - run.since) if run.ended_badly else 0.0
    waited = 0.0
    while (hold := _hold(run)) == "held" and age + waited < LETS_GO:
        if not waited:
            say(f"Waiting until the worker has released flow run {run.name!r}")
        time.sleep(PAUSE)
        waited = time.monotonic() - began
    return hold, waited


def _hold(run: BatchRun) -> Hold:
    try:
        with get_client(sync_client=True) as client:
            return hold_on(client, run.id, run.since)
    except Exception:  # noqa: BLE001 - without events, the age of the run's end decides
        return "unknown"


def stranded_runs(
    client: SyncPrefectClient, overdue: timedelta = OVERDUE, since: datetime | None = None
) -> Iterator[FlowRun]:
    """The stranded flow runs with a retry that is `overdue`, and was due after `since`. Raises errors of the
    API."""
    due = {"before_": datetime.now(UTC) - overdue, "after_": since}
    wanted = FlowRunFilter.model_validate(
        {"state": {"name": {"any_": ["AwaitingRetry"]}}, "next_scheduled_start_time": due}
    )
    for run in pages(partial(client.read_flow_runs, flow_run_filter=wanted)):
        if is_stranded(client, run, overdue):
            yield run


def is_stranded(client: SyncPrefectClient, run: FlowRun, overdue: timedelta = OVERDUE) -> bool:
    """Whether a flow run waits for a retry in a process that is gone. Raises errors of the API."""
    if not retries_in_process(run):
        return False
    assert run.state is not None
    hold = hold_on(client, run.id, run.state.timestamp.timestamp())
    return hold == "released" or (hold == "unknown" and retry_at(run) < datetime.now(UTC) - overdue)


def retries_in_process(run: FlowRun) -> bool:
    """Whether a flow run waits in its process for a retry."""
    waits = run.state is not None and run.state.is_scheduled()
    return waits and run.empirical_policy.retry_type == "in_process"


def retry_at(run: FlowRun) -> datetime:
    """When a flow run that waits for a retry is to be retried."""
    assert run.state is not None
    return run.state.state_details.scheduled_time or run.state.timestamp
