"""The flow run behind a batch: which it is, how it ended, and running it again under the same id."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, cast
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterEndTime,
    FlowRunFilterId,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.responses import SetStateStatus
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import ObjectNotFound
from prefect.states import AwaitingRetry
from pydantic import BaseModel

from prefect_resilience.durable.batches.strategies import Ended, RecoveryPolicy
from prefect_resilience.durable.effects.model import EffectDocument
from prefect_resilience.errors.classify.classify import classify
from prefect_resilience.errors.exceptions import ConfigurationError, ResilienceError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.errors.taxonomy import ErrorInfo

PAGE = 200
RECOVERY_TAG = "recovery:auto"
"""On a flow run that may be recovered by itself: what the automation that does it looks for."""
RECOVERY_LABEL = "prefect-resilience.recovery"
"""The policy of such a run, as JSON."""
ERROR_LABEL = "prefect-resilience.error"
"""What a run failed with, as JSON with the id of the state: of the state itself the API has but a message."""


class ApiUnavailable(ResilienceError):
    """The Prefect API could not be asked, or did not understand; nothing was changed."""


@dataclass(frozen=True, slots=True)
class BatchRun:
    """A root flow run. `state` is the name that the UI shows, `type` its type in capitals, `since` when it
    came to it, in seconds since the epoch."""

    id: UUID
    name: str
    type: str
    state: str
    since: float
    deployed: bool
    next_at: float | None
    ended: Ended
    policy: RecoveryPolicy | None = None
    """How far the flow lets it be recovered by itself, where it says so."""
    inner: bool = False
    """Whether it is a subflow run."""


def run_id_of(batch_id: str) -> UUID | None:
    """The flow run that a batch may be called after; None for a name that somebody gave."""
    try:
        found = UUID(batch_id)
    except ValueError:
        return None
    return found if str(found) == batch_id else None


def find_run(batch_id: str, effects: Iterable[EffectDocument]) -> BatchRun | None:
    """The root flow run of a batch; for a batch with a name, that of whoever was last at one of its effects.

    None where the Prefect API knows none. Raises ApiUnavailable.
    """
    asked = run_id_of(batch_id)
    last = max(effects, key=lambda one: one["intended_at"], default=None)
    if asked is None and (last is None or last.get("flow_run_id") is None):
        return None
    with _asking() as client:
        for run_id in (asked, None if last is None or asked else UUID(last["flow_run_id"])):
            try:
                if run_id is not None:
                    return _seen(_root(client, client.read_flow_run(run_id)))
            except ObjectNotFound:
                continue
    return None


def find_runs(batch_ids: Iterable[str]) -> dict[str, BatchRun]:
    """The runs of many batches that are called after one, as far as there are. Raises ApiUnavailable."""
    wanted = [run_id for batch_id in batch_ids if (run_id := run_id_of(batch_id)) is not None]
    found: dict[str, BatchRun] = {}
    with _asking() as client:
        for start in range(0, len(wanted), PAGE):
            some = FlowRunFilter(id=FlowRunFilterId(any_=wanted[start : start + PAGE]))
            for run in client.read_flow_runs(flow_run_filter=some, limit=PAGE):
                found[str(run.id)] = _seen(run)
    return found


def runs_that_ended_badly(since: datetime, most: int) -> list[BatchRun]:
    """Flow runs that failed or crashed since then, and were not run again; at most so many, the latest first.

    Raises ApiUnavailable.
    """
    wanted = FlowRunFilter(
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.FAILED, StateType.CRASHED])),
        end_time=FlowRunFilterEndTime(after_=cast("Any", since)),
    )
    found: list[FlowRun] = []
    with _asking() as client:
        while len(found) < most:
            some = client.read_flow_runs(
                flow_run_filter=wanted, sort=FlowRunSort.END_TIME_DESC, limit=PAGE, offset=len(found)
            )
            found += some
            if len(some) < PAGE:
                break
    return [_seen(run) for run in found[:most]]


def asks_for_recovery(batch_id: str) -> bool:
    """Whether the root flow run of a batch may be recovered by itself: its flow or its deployment says so.

    Raises ApiUnavailable.
    """
    run_id = run_id_of(batch_id)
    if run_id is None:
        return False
    with _asking() as client:
        try:
            run = _root(client, client.read_flow_run(run_id))
        except ObjectNotFound:
            return False
    return RECOVERY_TAG in run.tags or RECOVERY_LABEL in run.labels


@dataclass(frozen=True, slots=True)
class Rescheduled:
    """Whether a flow run is to begin once more: why the API refused, or the state that says so."""

    refused: str | None = None
    state_id: str | None = None


def run_again(run_id: UUID, at: float | None, why: str) -> Rescheduled:
    """Let a worker run the same flow run again, at `at` (seconds since the epoch; None: now).

    Raises ApiUnavailable.
    """
    moment = None if at is None else datetime.fromtimestamp(at, timezone.utc)
    with _asking() as client:
        answer = client.set_flow_run_state(run_id, AwaitingRetry(scheduled_time=moment, message=redact(why)))
    if answer.status is SetStateStatus.ACCEPT:
        return Rescheduled(state_id=None if answer.state is None else str(answer.state.id))
    reason = getattr(answer.details, "reason", None) or f"the API answered {answer.status.value}"
    return Rescheduled(refused=redact(str(reason)))


@contextmanager
def _asking() -> Generator[SyncPrefectClient, None, None]:
    try:
        with get_client(sync_client=True) as client:
            yield client
    except ObjectNotFound:
        raise
    except Exception as error:
        raise ApiUnavailable(f"the Prefect API could not be asked: {redact(repr(error))}") from error


def _root(client: SyncPrefectClient, run: FlowRun) -> FlowRun:
    """The outermost flow run above: a subflow run hangs on a task run of its parent."""
    while run.parent_task_run_id is not None:
        parent = client.read_task_run(run.parent_task_run_id).flow_run_id
        if parent is None:
            break
        run = client.read_flow_run(parent)
    return run


def _seen(run: FlowRun) -> BatchRun:
    state = run.state
    if state is None:
        return BatchRun(run.id, run.name, "PENDING", "Pending", 0.0, False, None, Ended("PENDING"))
    kind = state.type.value
    error = _error_on(run) or classify(state) if kind in ("FAILED", "CRASHED", "CANCELLED") else None
    scheduled = state.state_details.scheduled_time if kind == "SCHEDULED" else None
    return BatchRun(
        id=run.id,
        name=run.name,
        type=kind,
        state=state.name or kind.title(),
        since=state.timestamp.timestamp(),
        deployed=run.deployment_id is not None,
        next_at=None if scheduled is None else scheduled.timestamp(),
        ended=Ended(kind, error),
        policy=_policy_on(run),
        inner=run.parent_task_run_id is not None,
    )


def label_of_error(state_id: UUID, error: ErrorInfo) -> str:
    """What a run failed with, to be written on it."""
    return ErrorOnRun(state=state_id, error=error.model_copy(update={"details": {}})).model_dump_json()


class ErrorOnRun(BaseModel):
    """The error that a state of a flow run came from."""

    state: UUID
    error: ErrorInfo


def _error_on(run: FlowRun) -> ErrorInfo | None:
    written = run.labels.get(ERROR_LABEL)
    if not isinstance(written, str) or run.state is None:
        return None
    try:
        known = ErrorOnRun.model_validate_json(written)
    except ValueError:  # it was written by another version, or by somebody else
        return None
    return known.error if known.state == run.state.id else None


def _policy_on(run: FlowRun) -> RecoveryPolicy | None:
    written = run.labels.get(RECOVERY_LABEL)
    try:
        return RecoveryPolicy.model_validate_json(written) if isinstance(written, str) else None
    except (ValueError, ConfigurationError):  # it was written by another version, or by somebody else
        return None
