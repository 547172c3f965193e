"""How one task run of a plan ended, read from its future."""

from __future__ import annotations

import concurrent.futures
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast
from uuid import UUID

from prefect.client.schemas.objects import State, TaskRun
from prefect.futures import PrefectFuture

from prefect_resilience.errors.classify.classify import classify
from prefect_resilience.errors.classify.states import state_error
from prefect_resilience.errors.context import ErrorContext, error_context
from prefect_resilience.errors.info import ErrorInfo
from prefect_resilience.errors.taxonomy import ErrorCategory
from prefect_resilience.graphs.plans.failures import with_cause


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a node or one of its branches gave: a value, or an error if it failed."""

    value: Any = None
    error: ErrorContext | None = None
    attempts: int = 0
    started_at: datetime | None = None
    duration: float | None = None
    task_run_id: UUID | None = None
    task_run: TaskRun | None = None


def outcome_of(future: PrefectFuture[Any], name: str, task_run: TaskRun | None, now: datetime) -> Outcome:
    """The outcome of a task run that has ended. Never raises."""
    state, crash = _state_of(future)
    known: dict[str, Any] = {
        "attempts": task_run.run_count if task_run else 1,
        "started_at": task_run.start_time if task_run else None,
        "duration": _duration(task_run),
        "task_run_id": future.task_run_id,
        "task_run": task_run,
    }
    if state is not None and state.is_completed():
        try:
            return Outcome(cast(Any, state).result(raise_on_failure=False, _sync=True), **known)
        except Exception as error:  # noqa: BLE001 - a result that cannot be read back
            crash = error
    if crash is not None and task_run is not None and task_run.state and task_run.state.is_crashed():
        state, crash = task_run.state, None
    error = crash if crash is not None else state_error(state)
    found = error_context(state if crash is None else crash)
    context = found or ErrorContext.from_info(classify(state), timestamp=now)
    known["attempts"] = max(context.attempt, known["attempts"])
    fields = {
        "node_id": context.node_id or name,
        "task_run_id": str(future.task_run_id),
        "attempt": known["attempts"],
    }
    return Outcome(None, with_cause(context.model_copy(update=fields), error), **known)


def refused(message: str, name: str, now: datetime, exception: str | None = None) -> Outcome:
    """A node that could not begin, or whose output was of no use: something in the plan is invalid."""
    info = ErrorInfo.of(ErrorCategory.INVALID, exception, message=message)
    return Outcome(None, ErrorContext.from_info(info, timestamp=now, node_id=name))


def not_begun(reason: str, name: str, now: datetime) -> Outcome:
    """A node or a branch for which there was no time any more."""
    info = ErrorInfo.of(ErrorCategory.TIMEOUT, "TIMEOUT", message=reason)
    return Outcome(None, ErrorContext.from_info(info, timestamp=now, node_id=name))


def _state_of(future: PrefectFuture[Any]) -> tuple[State | None, BaseException | None]:
    """The final state, or what ended the thread that the run was in: an interrupt, an exit."""
    inner = getattr(future, "wrapped_future", None)
    if isinstance(inner, concurrent.futures.Future) and (crash := inner.exception()) is not None:
        return None, crash
    try:
        future.wait()
        return future.state, None
    except Exception as error:  # noqa: BLE001 - runners of other processes have their own ways to fail
        return None, error


def _duration(task_run: TaskRun | None) -> float | None:
    if task_run is None or task_run.start_time is None or task_run.end_time is None:
        return None
    return (task_run.end_time - task_run.start_time).total_seconds()
