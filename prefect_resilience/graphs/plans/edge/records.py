"""Task runs that no engine runs: nodes that were skipped, that could not begin, or that are many branches.

The Prefect API learns of a task run from the events of its states, so that a node which does nothing needs
nothing else: one event, instead of the milliseconds of an engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from prefect.client.schemas.objects import State, StateDetails, TaskRun, TaskRunResult
from prefect.states import Completed, Failed
from prefect.types._datetime import now
from prefect.utilities.engine import emit_task_run_state_change_event

from prefect_resilience.errors.info import bounded
from prefect_resilience.errors.secrets.redact import redact

MOST_INPUTS = 100
MESSAGE = 2_000


def skipped(name: str, key: str, reason: str, after: Sequence[UUID], flow_run_id: UUID | None) -> TaskRun:
    """Record a node that did not run, in a state `Skipped`."""
    state = Completed(name="Skipped", message=_shown(reason))
    return _recorded(name, key, state, after, flow_run_id)


def completed(
    name: str, key: str, message: str, after: Sequence[UUID], flow_run_id: UUID | None, began: datetime
) -> TaskRun:
    """Record a node whose work was done by other task runs."""
    return _recorded(name, key, Completed(message=_shown(message)), after, flow_run_id, began)


def failed(
    name: str,
    key: str,
    message: str,
    after: Sequence[UUID],
    flow_run_id: UUID | None,
    began: datetime | None = None,
) -> TaskRun:
    """Record a node that failed before or after its work."""
    return _recorded(name, key, Failed(message=_shown(message)), after, flow_run_id, began)


def failed_after_all(task_run: TaskRun, message: str) -> None:
    """A task run that had completed, and whose output then turned out to be of no use."""
    before = task_run.state
    state = Failed(message=_shown(message))
    state.state_details = StateDetails(task_run_id=task_run.id, flow_run_id=task_run.flow_run_id)
    task_run.state, task_run.state_id = state, state.id
    task_run.state_type, task_run.state_name = state.type, state.name
    emit_task_run_state_change_event(task_run, before, state)


def _recorded(
    name: str,
    key: str,
    state: State,
    after: Sequence[UUID],
    flow_run_id: UUID | None,
    began: datetime | None = None,
) -> TaskRun:
    run_id = uuid4()
    state.state_details = StateDetails(task_run_id=run_id, flow_run_id=flow_run_id)
    inputs = [TaskRunResult(id=one) for one in after[:MOST_INPUTS]]
    times: dict[str, Any] = {
        "expected_start_time": began or state.timestamp,
        "start_time": began,
        "end_time": state.timestamp,
        "created": state.timestamp,
        "updated": state.timestamp,
    }
    run = TaskRun(
        id=run_id,
        name=name,
        flow_run_id=flow_run_id,
        task_key=key,
        dynamic_key=str(run_id),
        task_inputs={"wait_for": [*inputs]} if inputs else {},
        state=state,
        state_id=state.id,
        state_type=state.type,
        state_name=state.name,
        **times,
    )
    if began is not None:
        run.total_run_time = now("UTC") - began
    emit_task_run_state_change_event(run, None, state)
    return run


def _shown(message: str) -> str:
    return bounded(redact(message), MESSAGE)
