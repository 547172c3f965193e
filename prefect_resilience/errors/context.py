"""ErrorContext: the record of a failure for handlers, conditions, dead letters and events."""

from __future__ import annotations

import json
import math
import traceback
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, cast

from pydantic import BaseModel, Field

from prefect_resilience.errors.classify.classify import classify
from prefect_resilience.errors.classify.shapes import as_dict, put, read, state_error, state_type
from prefect_resilience.errors.secrets.redact import EDGE, redact, redact_beginning, redact_data
from prefect_resilience.errors.taxonomy import ErrorCategory, ErrorInfo, ErrorKind, FailureReason, bounded

RESOURCE_EXHAUSTION = "RESOURCE_EXHAUSTION"
TASK_FAILURE = "TASK_FAILURE"

_NAMES = {
    "expected_type": "expectedType",
    "actual_type": "actualType",
    "original_output": "originalOutput",
    "partial_results": "partialResults",
    "failed_step": "failedStep",
}
"""Details that have another name in agent task systems."""


def _subtask(cause: ErrorContext, request: Any) -> dict[str, Any]:
    details: dict[str, Any] = {"subtaskError": cause.to_task_error(), "nestingDepth": cause.nesting_depth}
    if call := as_dict(request):
        names = {"type": "type", "description": "name", "inputs": "inputs"}
        details["subtaskRequest"] = {name: call.get(ours) for name, ours in names.items()}
    return details


ATTRIBUTE = "__prefect_resilience_context__"
ENDED = "__prefect_resilience_ended__"
"""The attribute with the time by `monotonic()` at which the attempt that raised this exception ended."""
STACK_LIMIT = 20_000
PARTIAL_LIMIT = 64_000
MOST_LEVELS = 20
"""The most nested sub-steps in a context; deeper ones are left out."""

_FRAMES = 50

REJECTING_GUARDS = {
    "BulkheadFullError": "bulkhead",
    "AdaptiveLimitFullError": "adaptive_limit",
    "RateLimitedError": "rate_limit",
    "TokenLimitedError": "token_limit",
    "SpendCapReachedError": "spend_cap",
    "NotBegun": "deadline",
}
"""The limit or deadline that rejected a call, by the name of its error."""


@lru_cache(maxsize=1024)
def name_rejecting_guard(category: str, exception_type: str | None) -> str | None:
    """The guard that rejected the call; None: the call was made, so it is an attempt."""
    if category == ErrorCategory.CIRCUIT_OPEN:
        return "circuit"
    return REJECTING_GUARDS.get((exception_type or "").rpartition(".")[2])


class AttemptRecord(BaseModel, frozen=True, defer_build=True):
    """One attempt: its start (UTC), its seconds, its error, and the delay in seconds before the next."""

    attempt: int = Field(ge=1)
    started_at: datetime
    duration: float = Field(ge=0)
    error: ErrorInfo | None = None
    delay: float | None = None


def count_rejected(history: Sequence[AttemptRecord]) -> int:
    """How many of these calls a circuit or a limit rejected."""
    errors = [attempt.error for attempt in history if attempt.error is not None]
    return sum(name_rejecting_guard(error.category, error.exception_type) is not None for error in errors)


class PartialOutput(BaseModel, frozen=True, defer_build=True):
    """The output that was produced before the failure.

    `original_size` is None unless the output was cut. Then it is the number of characters of its JSON, or the
    number of values if they were kept or yielded one by one and the later ones are missing.
    """

    content: Any = None
    truncated: bool = False
    original_size: int | None = None


class ErrorContext(BaseModel, frozen=True, defer_build=True):
    """A failure with its context. Its JSON reads back into an equal model.

    `timestamp` is in UTC, `retry_after` in seconds, `attempt` counts from 1. `cause` is the context of the
    sub-step that failed, and `nesting_depth` is the number of steps above this one. `stack_trace` is
    redacted. `action_id` is the action (the `type`) of the plan's node that failed, None outside plans.
    """

    category: ErrorCategory
    kind: ErrorKind
    code: str
    reason: FailureReason
    message: str = ""
    retryable: bool
    node_id: str | None = None
    action_id: str | None = None
    task_run_id: str | None = None
    flow_run_id: str | None = None
    attempt: int = Field(default=1, ge=1)
    max_attempts: int | None = None
    timestamp: datetime
    exception_type: str | None = None
    stack_trace: str | None = None
    retry_after: float | None = None
    circuit: str | None = None
    partial_output: PartialOutput | None = None
    details: dict[str, Any] = Field(default_factory=dict)
    cause: ErrorContext | None = None
    nesting_depth: int = Field(default=0, ge=0)
    history: list[AttemptRecord] = Field(default_factory=list[AttemptRecord])
    exhausted: bool = False
    """Whether it was retried until no attempts, time or budget were left."""

    @classmethod
    def from_info(cls, info: ErrorInfo, *, timestamp: datetime, **fields: Any) -> ErrorContext:
        """The context of a classified failure; `fields` are further fields of this model."""
        own = {**vars(info), "circuit": info.details.get("circuit"), "timestamp": timestamp}
        return cls.model_validate({**own, **fields})

    @classmethod
    def from_exception(
        cls,
        error: BaseException,
        info: ErrorInfo | None = None,
        *,
        timestamp: datetime,
        stack_trace: bool = True,
        **fields: Any,
    ) -> ErrorContext:
        """The context of an exception, classified unless `info` is given, with its redacted stack trace."""
        info = info or classify(error, now=timestamp.timestamp())
        own: dict[str, Any] = {"partial_output": _partial_output(error)}
        if stack_trace:
            own["stack_trace"] = _stack_trace(error)
        if info.category is ErrorCategory.SUBTASK:
            own["cause"] = _cause(error, timestamp, MOST_LEVELS)
        return cls.from_info(info, timestamp=timestamp, **{**own, **fields})

    @property
    def rejected_calls(self) -> int:
        """How many of the calls in the history a circuit or a limit rejected. They are not attempts.

        Example:
            >>> error_context(ConnectionError("refused")).rejected_calls
            0
        """
        return count_rejected(self.history)

    @property
    def attempts_made(self) -> int:
        """The attempts without rejected calls.

        Example:
            >>> error_context(ConnectionError("refused")).attempts_made
            1
        """
        return max(self.attempt - count_rejected(self.history), 0)

    @property
    def categories(self) -> tuple[str, ...]:
        """The category, with those of a group's members, and of the cause of a failed sub-step."""
        own = (self.category.value, *self.details.get("categories", ()))
        if self.category is not ErrorCategory.SUBTASK or self.cause is None:
            return own
        return (*own, *self.cause.categories)

    def deeper(self, room: int = MOST_LEVELS) -> ErrorContext:
        """A copy for a sub-step: one level deeper, also its causes. At most `room` levels are kept."""
        inner = None if self.cause is None or room <= 1 else self.cause.deeper(room - 1)
        return self.model_copy(update={"nesting_depth": self.nesting_depth + 1, "cause": inner})

    def to_task_error(self) -> dict[str, Any]:
        """This failure in the format of agent task systems: `type`, `reason`, `message`, `details`, as JSON.

        For an exhausted resource `type` is "RESOURCE_EXHAUSTION", with `resource` and `metrics` (`usage` and
        `limit`); else it is "TASK_FAILURE". A sub-step's error is in `details["subtaskError"]`.
        """
        own = dict(self.details)
        details: dict[str, Any] = {}
        head: dict[str, Any] = {"type": TASK_FAILURE, "reason": self.reason.value}
        if self.category.kind is ErrorKind.RESOURCE:
            resource = own.pop("resource", None)
            metrics = {"usage": own.pop("usage", None), "limit": own.pop("limit", None)}
            head = {"type": RESOURCE_EXHAUSTION, "resource": resource, "metrics": metrics}
        if self.cause is not None:
            details |= _subtask(self.cause, own.pop("subtask_request", None))
        details |= {_NAMES.get(name, name): value for name, value in own.items()}
        if self.partial_output is not None:
            details["partialOutput"] = self.partial_output.content
            if self.partial_output.truncated:
                details["partialOutputTruncated"] = True
        return {**head, "message": self.message, "details": details}

    def summary(self) -> str:
        """One line: `503 unavailable: Service Unavailable`."""
        lines = self.message.strip().splitlines()
        same = self.code.lower() == self.category.value
        head = str(self.category) if same else f"{self.code} {self.category}"
        return f"{head}: {bounded(lines[0], 200)}" if lines else head


def _partial_output(error: BaseException) -> PartialOutput | None:
    """The exception's own `partial_output`, redacted and bounded."""
    output = read(error, "partial_output")
    if output is None or isinstance(output, PartialOutput):
        return output
    content = redact_data(output, PARTIAL_LIMIT)
    # A round trip through text: a context must be JSON, and an exception may hold any object.
    text = json.dumps(content, default=_show, skipkeys=True, ensure_ascii=False)
    size = len(json.dumps(output, ensure_ascii=False)) if isinstance(output, str) else len(text)
    if max(size, len(text)) <= PARTIAL_LIMIT:
        return PartialOutput(content=json.loads(text))
    shown = content if isinstance(content, str) else text
    return PartialOutput(content=shown[:PARTIAL_LIMIT], truncated=True, original_size=size)


def _show(value: object) -> str:
    return redact_beginning(repr(value), PARTIAL_LIMIT)


def _cause(error: BaseException, timestamp: datetime, room: int) -> ErrorContext | None:
    """The context of the exception that a failed sub-step was raised from."""
    behind = cast("object", read(error, "__cause__"))
    if not isinstance(behind, BaseException) or room <= 0:
        return None
    context = attached_context(behind)
    if context is None:
        info = classify(behind, now=timestamp.timestamp())
        inner = _cause(behind, timestamp, room - 1) if info.category is ErrorCategory.SUBTASK else None
        output = _partial_output(behind)
        context = ErrorContext.from_info(info, timestamp=timestamp, cause=inner, partial_output=output)
    return context.deeper()


def attach_context(error: BaseException, context: ErrorContext) -> None:
    """Keep a context on its exception, where `error_context` finds it; never raises.

    It is pickled together with the exception's `__dict__`. A value that is not an exception gets no context.
    """
    with suppress(TypeError, AttributeError):  # not an exception
        put(error, ATTRIBUTE, context)


def error_context(source: Any) -> ErrorContext | None:
    """The context of an exception, a Prefect state or a future; None when nothing failed. Never raises.

    A state with a substituted value keeps the context in its attribute `error_context`. For an exception
    without an attached context, a new one is made.

    Example:
        >>> error_context(ConnectionError("connection refused")).summary()
        'NETWORK_ERROR network: connection refused'
    """
    try:
        return _context_of(source)
    except Exception:  # noqa: BLE001 - the caller is handling a failure
        return None


def _context_of(source: Any) -> ErrorContext | None:
    if isinstance(source, BaseException):
        context = _with_trace(source) or _of_response(source)
        return context or ErrorContext.from_exception(source, timestamp=_now())
    kind = state_type(source)
    if kind is None:
        state = read(source, "state")
        kind, source = state_type(state), state
    own = read(source, "error_context")
    if isinstance(own, ErrorContext):
        return own
    if kind not in ("FAILED", "CRASHED", "CANCELLED", "CANCELLING"):
        return None
    error = state_error(source)
    attached = _with_trace(error) if error is not None else None
    return attached or _of_state(source, error)


def _with_trace(error: BaseException) -> ErrorContext | None:
    """The attached context, with the stack trace that the context of a retried error is attached without."""
    context = attached_context(error)
    if context is None or context.stack_trace is not None or error.__traceback__ is None:
        return context
    context = context.model_copy(update={"stack_trace": _stack_trace(error)})
    attach_context(error, context)
    return context


def _of_state(state: Any, error: BaseException | None) -> ErrorContext:
    stamp = read(state, "timestamp")
    timestamp = stamp if isinstance(stamp, datetime) else _now()
    fields: dict[str, Any] = {
        name: str(value)
        for name in ("task_run_id", "flow_run_id")
        if (value := read(read(state, "state_details"), name)) is not None
    }
    trace = None if error is None else _stack_trace(error)
    return ErrorContext.from_info(classify(state), timestamp=timestamp, stack_trace=trace, **fields)


def exhausted_since(error: BaseException, moment: float, began: float = math.inf) -> ErrorContext | None:
    """The context of a guard that retried this error to the end after `moment`, in seconds since the epoch.

    `began` is the same moment by `monotonic()`, in case the wall clock was set meanwhile.

    It may be on the error, on one of its causes, or on the HTTP response of one of them.
    """
    link: BaseException | None = error
    for _ in range(MOST_LEVELS):
        if link is None:
            break
        for context in (attached_context(link), _of_response(link)):
            if context is None or not context.exhausted:
                continue
            if context.timestamp.timestamp() >= moment or (read(link, ENDED) or 0.0) >= began:
                return context
        link = link.__cause__
    return None


def _of_response(error: object) -> ErrorContext | None:
    """The context that a resilient transport left on the HTTP response of this exception, or None."""
    extensions: object = read(read(error, "response"), "extensions")
    context: object = as_dict(extensions).get(ATTRIBUTE)
    return context if isinstance(context, ErrorContext) else None


def attached_context(error: object) -> ErrorContext | None:
    """The context that `attach_context` put on this exception, or None."""
    context = cast("object", read(error, ATTRIBUTE))
    return context if isinstance(context, ErrorContext) else None


def _now() -> datetime:
    return datetime.now(UTC)


def _stack_trace(error: BaseException) -> str | None:
    try:
        lines = traceback.format_exception(type(error), error, error.__traceback__, limit=_FRAMES)
        # A secret at the cut may not be recognized: what is near it is dropped.
        return redact("".join(lines)[-STACK_LIMIT - EDGE // 4 :])[-STACK_LIMIT:]
    except Exception:  # noqa: BLE001 - printing runs the exception's own code
        return None
