"""Failures of sub-steps: the sub-step's context behind the one of the work that it was part of."""

from __future__ import annotations

from typing import Any

from prefect_resilience.errors.context import ErrorContext
from prefect_resilience.errors.info import bounded
from prefect_resilience.errors.requests import SubtaskRequest
from prefect_resilience.errors.taxonomy import ErrorCategory, FailureReason

_OWN_PLACE = frozenset(
    {
        "node_id",
        "action_id",
        "task_run_id",
        "flow_run_id",
        "attempt",
        "max_attempts",
        "timestamp",
        "stack_trace",
        "history",
    }
)


def is_sub_step(inner: ErrorContext, own: ErrorContext) -> bool:
    """Whether a context that an exception carries is that of another run, inside this one."""
    if inner.task_run_id is not None:
        return inner.task_run_id != own.task_run_id
    return inner.flow_run_id is not None and inner.flow_run_id != own.flow_run_id


def with_inner(
    own: ErrorContext, inner: ErrorContext | None, request: SubtaskRequest | None = None
) -> ErrorContext:
    """The context of a run's failure, with what the exception that ended it already carries.

    That of a sub-step (a nested task, a subflow) becomes the `cause`: the category is `subtask` then, whose
    kind, code and wait are as the cause's, and `details` name the sub-step and its `request`. That of the run
    itself, such as of a loop in it, is taken over.
    """
    if inner is None:
        return own
    if is_sub_step(inner, own):
        return _behind(own, inner, request)
    if inner.category is ErrorCategory.SUBTASK:
        place = {name: getattr(own, name) for name in _OWN_PLACE}
        kept = {"partial_output": own.partial_output} if own.partial_output else {}
        return inner.model_copy(update={**place, **kept, "kind": own.kind, "retryable": own.retryable})
    taken = {
        "details": {**own.details, **inner.details},
        "cause": own.cause or inner.cause,
        "partial_output": own.partial_output or inner.partial_output,
    }
    return own.model_copy(update=taken)


def _behind(own: ErrorContext, inner: ErrorContext, request: SubtaskRequest | None) -> ErrorContext:
    name = inner.node_id or "a sub-step"
    # The frames and the attempts below stand in the outer stack trace, and in the sub-step's own events.
    cause = inner.model_copy(update={"stack_trace": None}).deeper()
    details: dict[str, Any] = {**own.details, "failed_step": inner.node_id}
    if request is not None:
        details["subtask_request"] = request.as_data()
    partial = own.partial_output or inner.partial_output
    return own.model_copy(
        update={
            "category": ErrorCategory.SUBTASK,
            "reason": FailureReason.SUBTASK_FAILURE,
            "message": bounded(f"{name} failed: {inner.message}"),
            "details": details,
            "cause": cause,
            "partial_output": partial,
        }
    )
