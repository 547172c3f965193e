"""What the failures that users raise (see `failures`) say about themselves."""

from __future__ import annotations

from typing import Any

from prefect_resilience.errors.classify.shapes import as_dict, read, read_text
from prefect_resilience.errors.info import Finding, bounded
from prefect_resilience.errors.taxonomy import ErrorCategory as C
from prefect_resilience.errors.taxonomy import FailureReason as R

MOST_VIOLATIONS = 100
LONGEST_OUTPUT = 2_000
"""Characters of the original output that stand in the details; more of it is the partial output."""

_BY_REASON: dict[R, C] = {
    R.CONTEXT_RETRIEVAL_FAILURE: C.NOT_FOUND,
    R.CONTEXT_MATCHING_FAILURE: C.VALIDATION,
    R.CONTEXT_PARSING_FAILURE: C.VALIDATION,
    R.XML_VALIDATION_FAILURE: C.VALIDATION,
    R.OUTPUT_FORMAT_FAILURE: C.VALIDATION,
    R.EXECUTION_TIMEOUT: C.TIMEOUT,
    R.EXECUTION_HALTED: C.CANCELLED,
    R.SUBTASK_FAILURE: C.SUBTASK,
    R.INPUT_VALIDATION_FAILURE: C.INVALID,
    R.UNEXPECTED_ERROR: C.UNEXPECTED,
}


def resource_exhausted(error: object, now: float) -> Finding:
    known = {name: read(error, name) for name in ("resource", "usage", "limit")}
    details = {name: value for name, value in known.items() if value is not None}
    return Finding(C.RESOURCE_EXHAUSTED, details=details)


def task_failure(error: object, now: float) -> Finding:
    """By its reason. What matched badly may match better the next time."""
    reason = R(str(read(error, "reason")))
    again = True if reason is R.CONTEXT_MATCHING_FAILURE else None
    details: dict[str, Any] = as_dict(read(error, "details"))
    return Finding(_BY_REASON[reason], reason.value, details=details, retryable=again, reason=reason)


def subtask_error(error: object, now: float) -> Finding:
    request = {"type": "step", "name": read(error, "name"), "inputs": as_dict(read(error, "inputs"))}
    step = read(error, "failed_step")
    details = {"subtask_request": request, "failed_step": request["name"] if step is None else step}
    return Finding(C.SUBTASK, details=details)


def output_format_error(error: object, now: float) -> Finding:
    details: dict[str, Any] = {
        "expected_type": read(error, "expected_type"),
        "actual_type": read(error, "actual_type"),
        "violations": list(read(error, "violations") or ())[:MOST_VIOLATIONS],
    }
    original = read(error, "original_output")
    if original is not None:
        text = original if isinstance(original, str) else None
        details["original_output"] = original if text is None else bounded(text, LONGEST_OUTPUT)
        if text is None and len(read_text(original)) > LONGEST_OUTPUT:
            details["original_output"] = bounded(read_text(original), LONGEST_OUTPUT)
    return Finding(C.VALIDATION, details=details)
