"""The flow run of a batch: how to find it, how it ended, whether its process is gone, how to reschedule it.

A worker sends an event when it submits a flow run, and another one when it has released the run's slot and
has nothing more to report. A worker with --limit ends if a run is scheduled again while it holds the slot.

A flow with `retries=` waits for its next attempt in its process, as AwaitingRetry. Workers leave such a run
to that process, so nothing runs it if the process is gone: it is stranded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from typing import Any, Literal, TypeVar, cast
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import FlowRun, State, WorkerStatus
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import ObjectNotFound
from prefect.settings import get_current_settings
from prefect.states import AwaitingRetry, Crashed, Pending
from prefect.types._datetime import parse_datetime
from pydantic import BaseModel

from prefect_resilience.base.process import user_of_host
from prefect_resilience.durable.batches.batch import run_id_of
from prefect_resilience.durable.batches.decisions import FAILED_OR_CRASHED, ApiUnavailable, BatchRun
from prefect_resilience.durable.batches.edge.marks import PAGE, asking, flow_run_of_name, pages, refusal_of
from prefect_resilience.durable.batches.edge.tags import flow_run_around, runs_above
from prefect_resilience.durable.batches.run_passes import SKEW
from prefect_resilience.durable.batches.strategies import RecoveryPolicy, RunEnd
from prefect_resilience.errors.classify.classify import classify
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.errors.taxonomy import ErrorInfo

RECOVERY_TAG = "recovery:auto"
"""On a flow run that may be recovered automatically; the automation filters by it."""
OWN_TAG = "prefect-resilience"
"""On every run of this package's own deployments, see `operations/installation`."""
RECOVERY_LABEL = "prefect-resilience.recovery"
"""The recovery policy of such a run, as JSON."""
ERROR_LABEL = "prefect-resilience.error"
"""The error of a run with the id of its state, as JSON. The API has only a message in the state itself."""
M = TypeVar("M", bound=BaseModel)
_EPOCH = datetime.fromtimestamp(0, UTC)


def find_run(batch_id: str, flow_run_id: str | None = None, *, by_name: bool = False) -> BatchRun | None:
    """The root flow run of a batch; for a batch with a name, that of its newest effect, `flow_run_id`.
    `by_name`: else any flow run that Prefect has of the name.

    None if the Prefect API knows none. Raises ApiUnavailable.
    """
    run_id = run_id_of(batch_id) or (flow_run_id and UUID(flow_run_id))
    if not run_id and by_name and get_current_settings().api.url is not None:
        with suppress(ApiUnavailable), _asking() as client:
            run_id = flow_run_of_name(client, batch_id)
    if not run_id:
        return None
    with _asking() as client, suppress(ObjectNotFound):
        run = client.read_flow_run(run_id)
        root = [run, *runs_above(client, run)][-1]
        return _batch_run(root, stranded=is_stranded(client, root))
    return None


def find_runs(batch_ids: Iterable[str]) -> dict[str, BatchRun]:
    """The flow runs of those batches whose ids are flow run ids. Raises ApiUnavailable."""
    wanted = [run_id for batch_id in batch_ids if (run_id := run_id_of(batch_id)) is not None]
    runs: dict[str, BatchRun] = {}
    for start in range(0, len(wanted), PAGE):
        some = FlowRunFilter.model_validate({"id": {"any_": wanted[start : start + PAGE]}})
        with _asking() as client:
            read = client.read_flow_runs(flow_run_filter=some, limit=PAGE)
        runs |= {str(run.id): _batch_run(run) for run in read}
    return runs


def runs_that_ended_badly(since: datetime, most: int) -> list[BatchRun]:
    """Flow runs that failed or crashed after `since`, or are stranded since then, the latest first; at most
    `most`. Runs of this package's own flows, such as those that replay letters, are left out.

    Raises ApiUnavailable.
    """
    conditions = {"state": {"type": {"any_": [*FAILED_OR_CRASHED]}}, "end_time": {"after_": since}}
    wanted = FlowRunFilter.model_validate(conditions)
    with _asking() as client:
        read = partial(client.read_flow_runs, flow_run_filter=wanted, sort=FlowRunSort.END_TIME_DESC)
        stranded = islice(stranded_runs(client, since=since), most)
        runs = [(run, True) for run in stranded] + [(run, False) for run in pages(read, most)]
        return [_batch_run(run, stranded=is_lost) for run, is_lost in runs if OWN_TAG not in run.tags][:most]


def run_again(run_id: UUID, at: float | None, why: str) -> str | None:
    """Reschedule the same flow run at `at` (seconds since the epoch; None: now). Returns why the API rejected
    it. Raises ApiUnavailable."""
    moment = None if at is None else datetime.fromtimestamp(at, UTC)
    with _asking() as client:
        if retries_in_process(client.read_flow_run(run_id)):
            # Workers take it only after a final state.
            set_state(client, run_id, Crashed(message="Its process is gone."))
        state = set_state(client, run_id, AwaitingRetry(scheduled_time=moment, message=redact(why)))
    return state if isinstance(state, str) else None


def set_state(client: SyncPrefectClient, run_id: UUID, state: State[Any]) -> State[Any] | str:
    """The new state of a flow run; or why the API rejected it. A final state that was set meanwhile stays."""
    answer = client.set_flow_run_state(run_id, state)
    refusal = refusal_of(answer)
    return cast("State[Any]", answer.state) if refusal is None else refusal


_asking = partial(asking, ApiUnavailable, "the Prefect API is unavailable", (ObjectNotFound,))


def _batch_run(run: FlowRun, *, stranded: bool = False) -> BatchRun:
    state = run.state or Pending(timestamp=_EPOCH)
    kind = "CRASHED" if stranded else state.type.value
    error = _error_on(run) or classify(state) if kind in ("FAILED", "CRASHED", "CANCELLED") else None
    scheduled = state.state_details.scheduled_time if kind == "SCHEDULED" else None
    since = state.timestamp.timestamp()
    wait = error.retry_after if error is not None and kind == "FAILED" else None
    return BatchRun(
        id=run.id,
        name=run.name,
        type=kind,
        state=state.name or kind.title(),
        since=since,
        deployed=run.deployment_id is not None,
        next_at=None if scheduled is None else scheduled.timestamp(),
        ended=RunEnd(kind, error, back_at=since + wait if wait else None),
        policy=_on_label(run, RECOVERY_LABEL, RecoveryPolicy),
        inner=run.parent_task_run_id is not None,
        labels=run.labels,
        pool=run.work_pool_name,
        run_count=run.run_count,
        asks_for_recovery=RECOVERY_TAG in run.tags or RECOVERY_LABEL in run.labels,
        in_process=retries_in_process(run),
    )


def label_of_error(state_id: UUID, error: ErrorInfo) -> str:
    """The error of a run, as the value of its label."""
    return ErrorOnRun(state=state_id, error=error.model_copy(update={"details": {}})).model_dump_json()


class ErrorOnRun(BaseModel):
    """The error that a state of a flow run came from."""

    state: UUID
    error: ErrorInfo


def _error_on(run: FlowRun) -> ErrorInfo | None:
    recorded = _on_label(run, ERROR_LABEL, ErrorOnRun)
    if recorded is None or run.state is None or recorded.state != run.state.id:
        return None
    return recorded.error


def _on_label(run: FlowRun, label: str, model: type[M]) -> M | None:
    """The model that a label has as JSON; None without it, or if another version, or a person, wrote it."""
    try:
        return model.model_validate_json(str(run.labels.get(label)))
    except (ValueError, ConfigurationError):
        return None


def who() -> str:
    """The caller: the current flow run, else the user of this host."""
    run = flow_run_around()
    if run is not None:
        creator = run.created_by.display_value if run.created_by else None
        if creator and run.created_by and run.created_by.type == "AUTOMATION":
            return f"automation {creator!r} in flow run {run.name!r}"
        return f"flow run {run.name!r}" + (f" of {creator!r}" if creator else "")
    return user_of_host()


# -- its process, and the worker that holds it

SUBMITTED, EXECUTED = "prefect.worker.submitted-flow-run", "prefect.worker.executed-flow-run"
LETS_GO = 300.0
"""The most seconds after the end of a run until its worker has released it. On a busy machine, it takes more
than a minute. A worker that died is offline before."""
PAUSE = 1.0
BEATS_OF_WORKER = 3
"""How many heartbeats a worker must have missed to be offline."""
OVERDUE = timedelta(minutes=2)
"""How late a retry in a process must be before its process counts as gone."""

Hold = Literal["held", "released", "gone", "unknown"]


def hold_on(client: SyncPrefectClient, run_id: UUID, since: float) -> Hold:
    """Whether a worker that is online still holds the process that last ran this flow run.

    `since`: when the run entered its state. "gone": the worker is offline. "unknown": no worker sent an event
    after that. Raises errors of the API.
    """
    events = _events_of(client, run_id)
    submitted = next((event for event in events if event["event"] == SUBMITTED), None)
    if submitted is None:
        return "unknown"
    executed = next((event for event in events if event["follows"] == submitted["id"]), None)
    if executed is not None:
        at = parse_datetime(executed["occurred"]).timestamp()
        return "released" if at > since - SKEW else "unknown"
    return "held" if _is_online(client, submitted) else "gone"


def _events_of(client: SyncPrefectClient, run_id: UUID) -> list[dict[str, Any]]:
    """The events of workers about a flow run, the newest first."""
    since = datetime.now(UTC) - timedelta(days=30)
    about = {"related": {"id": [f"prefect.flow-run.{run_id}"]}}
    wanted = {"filter": events_since(since, [SUBMITTED, EXECUTED], about), "limit": 50}
    return client.request("POST", "/events/filter", json=wanted).raise_for_status().json()["events"]


def events_since(since: datetime, names: list[str], about: dict[str, Any]) -> dict[str, Any]:
    """The filter of the API for events of these names, by the filter of their resources."""
    # Clocks differ, and without `until` the API uses its own time.
    until = datetime.now(UTC) + timedelta(days=1)
    occurred = {"since": since.isoformat(), "until": until.isoformat()}
    return {"event": {"name": names}, **about, "occurred": occurred, "order": "DESC"}


def _is_online(client: SyncPrefectClient, event: dict[str, Any]) -> bool:
    """Whether the worker that sent the event is online, and sends heartbeats: the service of the server that
    sets workers offline may be switched off."""
    name, now = "prefect.resource.name", datetime.now(UTC)
    pools = [entry[name] for entry in event["related"] if entry["prefect.resource.role"] == "work-pool"]
    return any(
        worker.name == event["resource"][name]
        and worker.status == WorkerStatus.ONLINE.value
        and (beat := worker.last_heartbeat_time) is not None
        and now - beat < BEATS_OF_WORKER * timedelta(seconds=worker.heartbeat_interval_seconds or 30)
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
    return hold == "released" or (hold != "held" and retry_at(run) < datetime.now(UTC) - overdue)


def retries_in_process(run: FlowRun) -> bool:
    """Whether a flow run waits in its process for a retry."""
    waits = run.state is not None and run.state.is_scheduled()
    return waits and run.empirical_policy.retry_type == "in_process"


def retry_at(run: FlowRun) -> datetime:
    """When a flow run that waits for a retry is to be retried."""
    assert run.state is not None
    return run.state.state_details.scheduled_time or run.state.timestamp
