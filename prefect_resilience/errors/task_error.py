"""An ErrorContext in the shape that agent task systems hand around: type, reason, message, details."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prefect_resilience.errors.classify.shapes import as_dict
from prefect_resilience.errors.taxonomy import ErrorKind

if TYPE_CHECKING:
    from prefect_resilience.errors.context import ErrorContext

RESOURCE_EXHAUSTION = "RESOURCE_EXHAUSTION"
TASK_FAILURE = "TASK_FAILURE"

_NAMES = {
    "expected_type": "expectedType",
    "actual_type": "actualType",
    "original_output": "originalOutput",
    "partial_results": "partialResults",
    "failed_step": "failedStep",
}
"""Details of ours that have another name there; the others keep theirs."""


def to_task_error(context: ErrorContext) -> dict[str, Any]:
    """`{"type", "reason", "message", "details"}`; of an exhausted resource also `resource` and `metrics`."""
    own = dict(context.details)
    details: dict[str, Any] = {}
    if context.category.kind is ErrorKind.RESOURCE:
        metrics = {"usage": own.pop("usage", None), "limit": own.pop("limit", None)}
        head: dict[str, Any] = {
            "type": RESOURCE_EXHAUSTION,
            "resource": own.pop("resource", None),
            "metrics": metrics,
        }
    else:
        head = {"type": TASK_FAILURE, "reason": context.reason.value}
    if context.cause is not None:
        details |= _subtask(context.cause, own.pop("subtask_request", None))
    details |= {_NAMES.get(name, name): value for name, value in own.items()}
    if context.partial_output is not None:
        details["partialOutput"] = context.partial_output.content
        if context.partial_output.truncated:
            details["partialOutputTruncated"] = True
    return {**head, "message": context.message, "details": details}


def _subtask(cause: ErrorContext, request: Any) -> dict[str, Any]:
    known: dict[str, Any] = {"subtaskError": to_task_error(cause), "nestingDepth": cause.nesting_depth}
    asked = as_dict(request)
    if asked:
        known = {
            "subtaskRequest": {
                "type": asked.get("type"),
                "description": asked.get("name"),
                "inputs": asked.get("inputs"),
            },
            **known,
        }
    return known
