"""The outcomes of a plan's nodes: of a task run, of a fan-out, and of nodes that ran without an engine."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast
from uuid import UUID, uuid4

from prefect.client.schemas.objects import State, StateDetails, TaskRun, TaskRunResult
from prefect.futures import PrefectFuture
from prefect.states import Failed
from prefect.types._datetime import now
from prefect.utilities.engine import emit_task_run_state_change_event

from prefect_resilience.errors.classify.classify import classify
from prefect_resilience.errors.classify.shapes import state_error
from prefect_resilience.errors.context import ErrorContext, error_context
from prefect_resilience.errors.secrets.redact import redact, redact_data
from prefect_resilience.errors.taxonomy import ErrorCategory, ErrorInfo, FailureReason, bounded
from prefect_resilience.graphs.plans.model import FanOut, Node
from prefect_resilience.graphs.plans.result import partial_results, with_cause
from prefect_resilience.graphs.plans.schedule import name_some
from prefect_resilience.telemetry import notes


@dataclass(frozen=True, slots=True)
class NodeOutcome:
    """The outcome of a node or one of its branches: a value, or an error."""

    value: Any = None
    error: ErrorContext | None = None
    attempts: int = 0
    started_at: datetime | None = None
    duration: float | None = None
    task_run_id: UUID | None = None
    task_run: TaskRun | None = None


def outcome_of(future: PrefectFuture[Any], name: str, task_run: TaskRun | None, now: datetime) -> NodeOutcome:
    """The outcome of a task run that has ended. Never raises."""
    state, crash = _state_of(future)
    starts, rejected = (task_run.run_count, _count_rejections(task_run)) if task_run else (1, 0)
    fields_of_run: dict[str, Any] = {
        "attempts": max(starts - rejected, 0),
        "started_at": task_run.start_time if task_run else None,
        "duration": _duration(task_run),
        "task_run_id": future.task_run_id,
        "task_run": task_run,
    }
    if state is not None and state.is_completed():
        try:
            return NodeOutcome(cast(Any, state).result(raise_on_failure=False, _sync=True), **fields_of_run)
        except Exception as error:  # noqa: BLE001 - a result that cannot be read
            crash = error
    if crash is not None and task_run is not None and task_run.state and task_run.state.is_crashed():
        state, crash = task_run.state, None
    error = crash if crash is not None else state_error(state)
    own_context = error_context(state if crash is None else crash)
    context = own_context or ErrorContext.from_info(classify(state), timestamp=now)
    attempt = max(context.attempt, starts)
    fields_of_run["attempts"] = attempt - context.rejected_calls
    fields = {
        "node_id": context.node_id or name,
        "task_run_id": str(future.task_run_id),
        "attempt": attempt,
    }
    return NodeOutcome(None, with_cause(context.model_copy(update=fields), error), **fields_of_run)


def _count_rejections(task_run: TaskRun) -> int:
    noted = notes.last_notes(str(task_run.flow_run_id))
    run = None if noted is None else noted.task_runs.get(str(task_run.id))
    return 0 if run is None else run.rejected


def refusal_outcome(error: Exception, name: str, now: datetime) -> NodeOutcome:
    """The outcome of a node that could not begin, or that has an invalid output."""
    info = ErrorInfo.of(ErrorCategory.INVALID, type(error).__name__, message=str(error))
    return NodeOutcome(None, ErrorContext.from_info(info, timestamp=now, node_id=name))


def not_begun(reason: str, name: str, now: datetime) -> NodeOutcome:
    """The outcome of a node or a branch that did not begin before the plan's time was over."""
    info = ErrorInfo.of(ErrorCategory.TIMEOUT, "TIMEOUT", message=reason)
    return NodeOutcome(None, ErrorContext.from_info(info, timestamp=now, node_id=name))


def _state_of(future: PrefectFuture[Any]) -> tuple[State | None, BaseException | None]:
    """The final state, or the exception that ended the run's thread: an interrupt or an exit."""
    inner = getattr(future, "wrapped_future", None)
    if isinstance(inner, concurrent.futures.Future) and (crash := inner.exception()) is not None:
        return None, crash
    try:
        future.wait()
        return future.state, None
    except Exception as error:  # noqa: BLE001 - runners of other processes raise errors of their own
        return None, error


def _duration(task_run: TaskRun | None) -> float | None:
    if task_run is None or task_run.start_time is None or task_run.end_time is None:
        return None
    return (task_run.end_time - task_run.start_time).total_seconds()


# -- the branches of a fan-out

NAMED = 5
LISTED = 1_000


class Branches:
    """The branches of one node: the outcomes of those that have ended, and their common outcome."""

    def __init__(self, node: Node, items: Sequence[Any], began: datetime) -> None:
        self.node = node
        self.items = items
        self.began = began
        self.outcomes: dict[int, NodeOutcome] = {}

    def outcome(self, now: datetime) -> NodeOutcome:
        """The outcome of the node: all outputs in the order of the items, with None for failed branches; or
        the error that names the failed branches.
        """
        outcomes = [self.outcomes[i] for i in range(len(self.items))]
        failed = [i for i, outcome in enumerate(outcomes) if outcome.error is not None]
        times: dict[str, Any] = {
            "attempts": sum(outcome.attempts for outcome in outcomes),
            "started_at": self.began,
            "duration": (now - self.began).total_seconds(),
        }
        if self._tolerates(len(failed)):
            return NodeOutcome([outcome.value for outcome in outcomes], **times)
        return NodeOutcome(None, self._error(failed, now), **times)

    def _tolerates(self, failures: int) -> bool:
        """`allow_failures` below 1 is a share of the branches, else a number of them."""
        allowed = cast(FanOut, self.node.map).allow_failures
        return failures <= (allowed if allowed >= 1 else allowed * len(self.items))

    def _error(self, failed: list[int], now: datetime) -> ErrorContext:
        causes = {i: cast(ErrorContext, self.outcomes[i].error) for i in failed}
        first = causes[failed[0]]
        texts = [f"{self.node.id}[{i}] ({error.summary()})" for i, error in list(causes.items())[:NAMED]]
        info = ErrorInfo.of(
            ErrorCategory.SUBTASK,
            first.code,
            message=f"{len(failed)} of {len(self.items)} branches failed: {name_some(texts, len(failed))}",
            kind=first.kind,
            retryable=first.retryable,
            reason=FailureReason.SUBTASK_FAILURE,
        )
        good = {str(i): part.value for i, part in sorted(self.outcomes.items()) if part.error is None}
        return ErrorContext.from_info(
            info,
            timestamp=now,
            node_id=self.node.id,
            action_id=self.node.type,
            cause=first.deeper(),
            details=redact_data(
                {
                    "branches": len(self.items),
                    "failed": failed[:LISTED],
                    "errors": {str(i): error.summary() for i, error in list(causes.items())[:LISTED]},
                    "partial_results": partial_results(good),
                }
            ),
        )


# Task runs without an engine: nodes that were skipped or could not begin, and fan-outs.
#
# The Prefect API gets task runs from state events. For a node that runs nothing, one event is enough, and it
# is faster than an engine.

MOST_INPUTS = 100
MESSAGE = 2_000


def fail_after_all(task_run: TaskRun, message: str) -> None:
    """Set a completed task run to Failed, because its output is invalid."""
    before = task_run.state
    state = Failed(message=_message(message))
    state.state_details = StateDetails(task_run_id=task_run.id, flow_run_id=task_run.flow_run_id)
    task_run.state, task_run.state_id = state, state.id
    task_run.state_type, task_run.state_name = state.type, state.name
    emit_task_run_state_change_event(task_run, before, state)


def record_run(
    node: Node,
    state: State,
    after: Sequence[UUID],
    flow_run_id: UUID | None,
    *,
    name: str | None = None,
    began: datetime | None = None,
) -> TaskRun:
    """Record a node, or a branch called `name`, that ended in this state without an engine."""
    run_id = uuid4()
    state.message = _message(state.message or "")
    state.state_details = StateDetails(task_run_id=run_id, flow_run_id=flow_run_id)
    inputs = [TaskRunResult(id=run) for run in after[:MOST_INPUTS]]
    times: dict[str, Any] = {
        "expected_start_time": began or state.timestamp,
        "start_time": began,
        "end_time": state.timestamp,
        "created": state.timestamp,
        "updated": state.timestamp,
    }
    run = TaskRun(
        id=run_id,
        name=name or node.id,
        flow_run_id=flow_run_id,
        task_key=node.type,
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


def _message(message: str) -> str:
    return bounded(redact(message), MESSAGE)
