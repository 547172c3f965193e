"""Exceptions of this package, of Prefect, and of processes: they carry more than a code."""

from __future__ import annotations

import signal
from typing import Any

from prefect_resilience.errors.classify.http import http_finding
from prefect_resilience.errors.classify.shapes import as_dict, as_number, read
from prefect_resilience.errors.classify.table import codes_of
from prefect_resilience.errors.taxonomy import ErrorCategory as C
from prefect_resilience.errors.taxonomy import ErrorKind, FailureReason, Look, Opinion


def _by_exit_code(name: str, category: C, sign: int = -1) -> Look:
    """A rule: a process that exited has this category; a process that a signal ended is an `agent_crash`."""

    def look(error: object, now: float) -> Opinion:
        code = as_number(read(error, name))
        if code is None or code * sign <= 0:
            return Opinion(category, None if code is None else f"EXIT_{code:.0f}")
        number = int(abs(code))
        try:
            return Opinion(C.AGENT_CRASH, signal.Signals(number).name)
        except ValueError:
            return Opinion(C.AGENT_CRASH, f"SIGNAL_{number}")

    return look


def _prefect_api(error: object, now: float) -> Opinion | None:
    """Prefect's own API: a status of 500 or more is a failure of the infrastructure, not of the work."""
    found = http_finding(error, now)
    if found is None or (found.details or {}).get("status", 0) < 500:
        return found
    return found._replace(category=C.INFRASTRUCTURE, retryable=None)


def _task_failure(error: object, now: float) -> Opinion:
    """By its reason. A context matching failure is retryable: the next attempt may match better."""
    reason = FailureReason(str(read(error, "reason")))
    again = True if reason is FailureReason.CONTEXT_MATCHING_FAILURE else None
    details: dict[str, Any] = as_dict(read(error, "details"))
    return Opinion(
        codes_of("reasons")[reason.value], reason.value, details=details, retryable=again, reason=reason
    )


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


OWN: dict[str, Look] = {
    "subprocess.CalledProcessError": _by_exit_code("returncode", C.TOOL_ERROR),
    "xml.ParseError": lambda error, now: Opinion(C.VALIDATION, reason=FailureReason.XML_VALIDATION_FAILURE),
    "prefect.TerminationSignal": _by_exit_code("signal", C.AGENT_CRASH, sign=1),
    "prefect.PrefectHTTPStatusError": _prefect_api,
    # The run was not resumed in time. It stays paused, so another attempt would fail at once.
    "prefect.FlowPauseTimeout": lambda error, now: Opinion(
        C.TIMEOUT, "TIMEOUT", kind=ErrorKind.PERMANENT, retryable=False
    ),
    "prefect_resilience.ProcessDied": _by_exit_code("exit_code", C.AGENT_CRASH),
    "prefect_resilience.StateReturned": _by_state,
    "prefect_resilience.TaskFailure": _task_failure,
    "prefect_resilience.StreamCut": lambda error, now: read(error, "found"),
    "prefect_resilience.SubtaskError": _subtask_error,
}
