"""Exceptions of this package, of Prefect, and of processes: they carry more than a code."""

from __future__ import annotations

import signal
from typing import Any

from prefect_resilience.errors.classify.http import http_finding
from prefect_resilience.errors.classify.shapes import as_dict, as_number, read, read_text
from prefect_resilience.errors.taxonomy import (
    CATEGORY_CODES,
    ErrorKind,
    FailureReason,
    Look,
    Opinion,
    bounded,
    coded,
)
from prefect_resilience.errors.taxonomy import ErrorCategory as C


def _by_exit_code(name: str, category: C) -> Look:
    """A rule: a process that exited has this category; a process that a signal ended is an `agent_crash`."""

    def look(error: object, now: float) -> Opinion:
        code = as_number(read(error, name))
        if code is not None and code < 0:
            return _signalled(-code)
        return Opinion(category, None if code is None else f"EXIT_{code:.0f}")

    return look


def _termination(error: object, now: float) -> Opinion:
    number = as_number(read(error, "signal"))
    return _signalled(number) if number else Opinion(C.AGENT_CRASH)


def _signalled(number: float) -> Opinion:
    try:
        return Opinion(C.AGENT_CRASH, signal.Signals(int(number)).name)
    except ValueError:
        return Opinion(C.AGENT_CRASH, f"SIGNAL_{number:.0f}")


def _circuit_open(error: object, now: float) -> Opinion:
    wait = as_number(read(error, "retry_in"))
    name = read(error, "name")
    details = {"circuit": name} if isinstance(name, str) else None
    return Opinion(C.CIRCUIT_OPEN, "CIRCUIT_OPEN", None if wait is None else max(0.0, wait), details)


def _prefect_api(error: object, now: float) -> Opinion | None:
    """Prefect's own API: a status of 500 or more is a failure of the infrastructure, not of the work."""
    found = http_finding(error, now)
    if found is None or (found.details or {}).get("status", 0) < 500:
        return found
    return found._replace(category=C.INFRASTRUCTURE, retryable=None)


MOST_VIOLATIONS = 100
LONGEST_OUTPUT = 2_000
"""Characters of the original output in the details; the partial output has more of it."""

_BY_REASON = coded(
    not_found="context_retrieval_failure",
    validation="""
        context_matching_failure context_parsing_failure xml_validation_failure output_format_failure
        """,
    timeout="execution_timeout",
    cancelled="execution_halted",
    subtask="subtask_failure",
    invalid="input_validation_failure",
    unexpected="unexpected_error",
)


def _resource_exhausted(error: object, now: float) -> Opinion:
    known = {name: read(error, name) for name in ("resource", "usage", "limit")}
    details = {name: value for name, value in known.items() if value is not None}
    return Opinion(C.RESOURCE_EXHAUSTED, details=details)


def _task_failure(error: object, now: float) -> Opinion:
    """By its reason. A context matching failure is retryable: the next attempt may match better."""
    reason = FailureReason(str(read(error, "reason")))
    again = True if reason is FailureReason.CONTEXT_MATCHING_FAILURE else None
    details: dict[str, Any] = as_dict(read(error, "details"))
    return Opinion(_BY_REASON[reason.value], reason.value, details=details, retryable=again, reason=reason)


def _by_state(error: object, now: float) -> Opinion:
    from prefect_resilience.errors.classify.classify import classify

    info = classify(read(error, "state"), now=now)
    about = info.model_dump(include={"retry_after", "details", "kind", "retryable", "reason"})
    return Opinion(info.category, info.code, **about)


def _subtask_error(error: object, now: float) -> Opinion:
    request = {"type": "step", "name": read(error, "name"), "inputs": as_dict(read(error, "inputs"))}
    step = read(error, "failed_step")
    details = {"subtask_request": request, "failed_step": request["name"] if step is None else step}
    return Opinion(C.SUBTASK, details=details)


def _output_format_error(error: object, now: float) -> Opinion:
    details: dict[str, Any] = {
        "expected_type": read(error, "expected_type"),
        "actual_type": read(error, "actual_type"),
        "violations": list(read(error, "violations") or ())[:MOST_VIOLATIONS],
    }
    original = read(error, "original_output")
    if original is not None:
        text = original if isinstance(original, str) else read_text(original)
        details["original_output"] = (
            original if len(text) <= LONGEST_OUTPUT else bounded(text, LONGEST_OUTPUT)
        )
    return Opinion(C.VALIDATION, details=details)


def _not_well_formed(error: object, now: float) -> Opinion:
    return Opinion(C.VALIDATION, reason=FailureReason.XML_VALIDATION_FAILURE)


def _never_resumed(error: object, now: float) -> Opinion:
    """The flow run was not resumed in time. It stays paused, so another attempt would fail at once."""
    return Opinion(C.TIMEOUT, CATEGORY_CODES[C.TIMEOUT], kind=ErrorKind.PERMANENT, retryable=False)


OWN: dict[str, Look] = {
    "subprocess.CalledProcessError": _by_exit_code("returncode", C.TOOL_ERROR),
    "xml.ParseError": _not_well_formed,
    "prefect.TerminationSignal": _termination,
    "prefect.PrefectHTTPStatusError": _prefect_api,
    "prefect.FlowPauseTimeout": _never_resumed,
    "prefect_resilience.ProcessDied": _by_exit_code("exit_code", C.AGENT_CRASH),
    "prefect_resilience.CircuitOpenError": _circuit_open,
    "prefect_resilience.StateReturned": _by_state,
    "prefect_resilience.ResourceExhausted": _resource_exhausted,
    "prefect_resilience.TaskFailure": _task_failure,
    "prefect_resilience.StreamCut": lambda error, now: read(error, "found"),
    "prefect_resilience.SubtaskError": _subtask_error,
    "prefect_resilience.OutputFormatError": _output_format_error,
}
