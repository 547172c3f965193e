"""The flow run of a batch: how to find it, how it ended, how to reschedule it; and the batch's state."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import SetStateStatus
from prefect.client.schemas.sorting import FlowRunSort
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectNotFound
from prefect.states import AwaitingRetry, Pending
from pydantic import BaseModel

from prefect_resilience.durable.batches.audit import Audit, archived_effects
from prefect_resilience.durable.batches.decisions import (
    ArchivedEffects,
    BatchSnapshot,
    RecoveryRequest,
    hint_for,
)
from prefect_resilience.durable.batches.edge.marks import PAGE, pages
from prefect_resilience.durable.batches.strategies import RecoveryHint, RecoveryPolicy, RunEnd, SeenEffect
from prefect_resilience.durable.effects.ledger import Ledger
from prefect_resilience.durable.effects.model import EffectDocument, EffectState
from prefect_resilience.errors.classify.classify import classify
from prefect_resilience.errors.exceptions import ConfigurationError, ResilienceError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.errors.taxonomy import ErrorInfo

RECOVERY_TAG = "recovery:auto"
"""On a flow run that may be recovered automatically; the automation filters by it."""
RECOVERY_LABEL = "prefect-resilience.recovery"
"""The recovery policy of such a run, as JSON."""
ERROR_LABEL = "prefect-resilience.error"
"""The error of a run with the id of its state, as JSON. The API has only a message in the state itself."""


FAILED_OR_CRASHED = ("FAILED", "CRASHED")
_EPOCH = datetime.fromtimestamp(0, UTC)


class ApiUnavailable(ResilienceError):
    """The Prefect API is unavailable or rejected the request; nothing was changed."""


@dataclass(frozen=True, slots=True)
class BatchRun:
    """A root flow run. `state` is its state's name in the UI, `type` the type in capitals. `since` is when it
    entered the state, in seconds since the epoch."""

    id: UUID
    name: str
    type: str
    state: str
    since: float
    deployed: bool
    next_at: float | None
    ended: RunEnd
    policy: RecoveryPolicy | None = None
    """The recovery policy of its flow, if it has one."""
    inner: bool = False
    """Whether it is a subflow run."""


def run_id_of(batch_id: str) -> UUID | None:
    """The flow run id that a batch id may be; None for a name."""
    try:
        found = UUID(batch_id)
    except ValueError:
        return None
    return found if str(found) == batch_id else None


def find_run(batch_id: str, effects: Iterable[EffectDocument]) -> BatchRun | None:
    """The root flow run of a batch; for a batch with a name, that of its last intended effect.

    None if the Prefect API knows none. Raises ApiUnavailable.
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
    """The flow runs of those batches whose ids are flow run ids. Raises ApiUnavailable."""
    wanted = [run_id for batch_id in batch_ids if (run_id := run_id_of(batch_id)) is not None]
    found: dict[str, BatchRun] = {}
    with _asking() as client:
        for start in range(0, len(wanted), PAGE):
            some = FlowRunFilter.model_validate({"id": {"any_": wanted[start : start + PAGE]}})
            for run in client.read_flow_runs(flow_run_filter=some, limit=PAGE):
                found[str(run.id)] = _seen(run)
    return found


def runs_that_ended_badly(since: datetime, most: int) -> list[BatchRun]:
    """Flow runs that failed or crashed after `since`; at most `most`, the latest first.

    Raises ApiUnavailable.
    """
    asked = {"state": {"type": {"any_": [*FAILED_OR_CRASHED]}}, "end_time": {"after_": since}}
    wanted = FlowRunFilter.model_validate(asked)
    with _asking() as client:
        read = partial(client.read_flow_runs, flow_run_filter=wanted, sort=FlowRunSort.END_TIME_DESC)
        return [_seen(run) for run in pages(read, most)]


def asks_for_recovery(batch_id: str) -> bool:
    """Whether the flow or the deployment of a batch's root flow run allows automatic recovery.

    Raises ApiUnavailable.
    """
    run_id = run_id_of(batch_id)
    if run_id is None:
        return False
    try:
        with _asking() as client:
            run = _root(client, client.read_flow_run(run_id))
    except ObjectNotFound:
        return False
    return RECOVERY_TAG in run.tags or RECOVERY_LABEL in run.labels


def run_again(run_id: UUID, at: float | None, why: str) -> tuple[str | None, str | None]:
    """Reschedule the same flow run at `at` (seconds since the epoch; None: now).

    Returns why the API rejected it, and the id of the new state. Raises ApiUnavailable.
    """
    moment = None if at is None else datetime.fromtimestamp(at, UTC)
    with _asking() as client:
        answer = client.set_flow_run_state(run_id, AwaitingRetry(scheduled_time=moment, message=redact(why)))
    if answer.status is SetStateStatus.ACCEPT:
        return None, None if answer.state is None else str(answer.state.id)
    reason = getattr(answer.details, "reason", None) or f"the API answered {answer.status.value}"
    return redact(str(reason)), None


@contextmanager
def _asking() -> Generator[SyncPrefectClient, None, None]:
    try:
        with get_client(sync_client=True) as client:
            yield client
    except ObjectNotFound:
        raise
    except Exception as error:
        raise ApiUnavailable(f"the Prefect API is unavailable: {redact(repr(error))}") from error


def _root(client: SyncPrefectClient, run: FlowRun) -> FlowRun:
    """The outermost parent: a subflow run is attached to a task run of its parent."""
    while run.parent_task_run_id is not None:
        parent = client.read_task_run(run.parent_task_run_id).flow_run_id
        if parent is None:
            break
        run = client.read_flow_run(parent)
    return run


def _seen(run: FlowRun) -> BatchRun:
    state = run.state or Pending(timestamp=_EPOCH)
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
        ended=RunEnd(kind, error),
        policy=_policy_on(run),
        inner=run.parent_task_run_id is not None,
    )


def label_of_error(state_id: UUID, error: ErrorInfo) -> str:
    """The error of a run, as the value of its label."""
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
    except ValueError:  # another version, or a person, wrote it
        return None
    return known.error if known.state == run.state.id else None


def _policy_on(run: FlowRun) -> RecoveryPolicy | None:
    written = run.labels.get(RECOVERY_LABEL)
    try:
        return RecoveryPolicy.model_validate_json(written) if isinstance(written, str) else None
    except (ValueError, ConfigurationError):  # another version, or a person, wrote it
        return None


# The state of a batch: its effects, its run and its earlier recoveries.

_UNKNOWN_END = "the Prefect API is unavailable, so the end of its run is unknown"


def look(ledger: Ledger, batch_id: str, run: BatchRun | None = None) -> BatchSnapshot:
    """The state of a batch. `run`: its flow run, if the caller has it."""
    found = effects_seen(ledger, batch_id)
    newest = () if found.newest is None else (found.newest,)
    run = run or find_run(batch_id, newest)
    if run is not None and not newest and run_id_of(batch_id) and str(run.id) != batch_id:
        # A subflow run: its effects belong to its root.
        return look(ledger, str(run.id))
    return snapshot_with(ledger, batch_id, found, run)


def hint_of(
    ledger: Ledger, batch_id: str, policy: RecoveryPolicy | None = None, *, run: BatchRun | None = None
) -> RecoveryHint | None:
    """How to recover a batch. While the Prefect API is unavailable, the effects alone decide.

    `run`: its flow run, if the caller has it.
    """
    asked = RecoveryRequest(policy=policy)
    try:
        return hint_for(look(ledger, batch_id, run), asked, 0.5)
    except ApiUnavailable:
        hint = hint_for(snapshot_with(ledger, batch_id, effects_seen(ledger, batch_id), None), asked, 0.5)
        return None if hint is None else hint.model_copy(update={"why": f"{hint.why} ({_UNKNOWN_END})"})


def run_of(ledger: Ledger, batch_id: str) -> BatchRun | None:
    """The flow run of a batch; None if there is none, or the Prefect API is unavailable."""
    try:
        return find_run(batch_id, (document for document, _ in ledger.each_effect(batch_id)))
    except ApiUnavailable:
        return None


class _EffectsSeen(NamedTuple):
    """What a recovery needs to know of the effects of a batch, without their documents."""

    effects: tuple[SeenEffect, ...]
    busy: tuple[str, ...]
    begun_at: float | None
    newest: EffectDocument | None


def effects_seen(ledger: Ledger, batch_id: str) -> _EffectsSeen:
    effects: list[tuple[float, str, SeenEffect]] = []
    busy: list[tuple[float, str]] = []
    newest: EffectDocument | None = None
    begun_at: float | None = None
    for document, alive in ledger.each_effect(batch_id):
        undoes, place = "compensates" in document, (document["first_at"], document["key"])
        # Compensations count only if they are in doubt.
        if not undoes or state_of(document, alive) == "unknown":
            effects.append((*place, _counted(document, alive)))
        if alive:
            busy.append(place)
        if not undoes and (begun_at is None or document["intended_at"] > begun_at):
            begun_at = document["intended_at"]
        if newest is None or document["intended_at"] > newest["intended_at"]:
            newest = document
    effects.sort(key=itemgetter(0, 1))
    seen = tuple(one for _, _, one in effects)
    return _EffectsSeen(seen, tuple(key for _, key in sorted(busy)), begun_at, newest)


def snapshot_with(ledger: Ledger, batch_id: str, found: _EffectsSeen, run: BatchRun | None) -> BatchSnapshot:
    done = [] if found.newest is not None else archived_effects(ledger, batch_id)
    done = [one for one in done if one["effect"]["state"] == "done"]
    return BatchSnapshot(
        batch_id,
        effects=found.effects,
        busy=found.busy,
        run=run,
        named_after_run=run_id_of(batch_id) is not None,
        log=Audit(ledger, batch_id).document(),
        now=ledger.store.now(),
        begun_at=found.begun_at,
        archived=ArchivedEffects(len(done), done[-1]["archived_at"]) if done else None,
    )


def _counted(document: EffectDocument, alive: bool) -> SeenEffect:
    undo: dict[str, Any] = document.get("compensation") or {}
    return SeenEffect(
        key=document["key"],
        kind=document["kind"],
        state=state_of(document, alive),
        verify=bool(document.get("verify") or undo.get("verify")),
        compensate=bool(undo) and not undo.get("given_up"),
        stuck=document["state"] == "compensating" and undo.get("error") is not None,
    )


def state_of(document: EffectDocument, busy: bool) -> EffectState:
    """The state to show: an intent of a dead owner is unknown."""
    return "unknown" if document["state"] == "intended" and not busy else document["state"]


def who() -> str:
    """The caller: the current flow run, else the user of this host."""
    context = FlowRunContext.get()
    run = context.flow_run if context is not None else None
    if run is not None:
        creator = run.created_by.display_value if run.created_by else None
        if creator and run.created_by and run.created_by.type == "AUTOMATION":
            return f"automation {creator!r} in flow run {run.name!r}"
        return f"flow run {run.name!r}" + (f" of {creator!r}" if creator else "")
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # a container's user may have no name
        return f"somebody@{socket.gethostname()}"
