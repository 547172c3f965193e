"""SubtaskRequest: the call of a failed sub-step, as data for records and to repeat the call."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import to_jsonable_python

from prefect_resilience.base.policy import check_parameters
from prefect_resilience.errors.classify.shapes import put, read, read_text, state_error, state_type
from prefect_resilience.errors.context import ErrorContext
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact, redact_data
from prefect_resilience.errors.taxonomy import ErrorCategory, FailureReason, bounded

ATTRIBUTE = "__prefect_resilience_request__"
LONGEST_INPUT = 500
"""Characters that the records keep of one input."""

MOST_INPUTS = 50


@dataclass(frozen=True)
class SubtaskRequest:
    """A failed call of a task or flow. It can be repeated with the same or other arguments.

    `name` is the task's or flow's name, `kind` "task" or "flow", `inputs` are the arguments by name. After
    pickling it is only a record: inputs are shortened and redacted, and it cannot be called.

        except Exception as error:
            return subtask_request(error).replace(mode="simple").call()
    """

    name: str
    inputs: Mapping[str, Any]
    kind: str = "task"
    again: Callable[[dict[str, Any]], Any] | None = field(default=None, repr=False, compare=False)
    """Makes the call with these changed arguments."""
    fn: Callable[..., Any] | None = field(default=None, repr=False, compare=False)
    changes: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)

    def replace(self, **changes: Any) -> SubtaskRequest:
        """The same request with other arguments. Raises ConfigurationError for an unknown parameter."""
        if self.fn is not None:
            check_parameters(f"the request of {self.name!r} cannot change", changes, self.fn)
        inputs = {**self.inputs, **changes}
        return dataclasses.replace(self, inputs=inputs, changes={**self.changes, **changes})

    def call(self) -> Any:
        """Make the call in a run of its own; await the result if the task or flow is async.

        Raises the exceptions of the call, and ConfigurationError if the request is from another process.
        """
        if self.again is None:
            raise ConfigurationError(
                f"the request of {self.name!r} comes from another process and is a record only: "
                f"call {self.name} itself"
            )
        return self.again(dict(self.changes))

    def as_data(self) -> dict[str, Any]:
        """The request for records: JSON, each input shortened, without secrets."""
        inputs = {name: _short(value) for name, value in list(self.inputs.items())[:MOST_INPUTS]}
        return {"type": self.kind, "name": redact(self.name), "inputs": redact_data(inputs)}

    def __reduce__(self) -> tuple[Any, ...]:
        data = self.as_data()
        return SubtaskRequest, (data["name"], data["inputs"], self.kind)


def _short(value: Any) -> Any:
    """The value as JSON if that is short, else the beginning of its text."""
    try:
        plain = to_jsonable_python(value, fallback=read_text)
        text = plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False, default=str)
        if plain is not text and len(text) <= LONGEST_INPUT:
            plain = json.loads(text, parse_constant=str)  # NaN is not JSON
    except Exception:  # noqa: BLE001 - reading any object may raise, and a failure is being reported
        plain = text = read_text(value, LONGEST_INPUT + 1)
    return plain if len(text) <= LONGEST_INPUT else bounded(redact(text[: 4 * LONGEST_INPUT]), LONGEST_INPUT)


def attach_request(error: BaseException, request: SubtaskRequest) -> None:
    """Keep a request on the exception of its call. Never raises."""
    with suppress(TypeError, AttributeError):
        put(error, ATTRIBUTE, request)


def subtask_request(source: Any) -> SubtaskRequest | None:
    """The request of a resilient task or flow that failed; None for any other failure.

    source: its exception, its state, or the future of its run.
    """
    state: object = source if state_type(source) is not None else read(source, "state")
    error = source if isinstance(source, BaseException) else state_error(state)
    request: object = read(error, ATTRIBUTE)
    return request if isinstance(request, SubtaskRequest) else None


_OWN_PLACE = (
    *("node_id", "action_id", "task_run_id", "flow_run_id", "attempt", "max_attempts"),
    *("timestamp", "stack_trace", "history", "exhausted"),
)


def is_sub_step(inner: ErrorContext, own: ErrorContext) -> bool:
    """Whether the context of an exception belongs to another run inside this one."""
    if inner.task_run_id is not None:
        return inner.task_run_id != own.task_run_id
    return inner.flow_run_id is not None and inner.flow_run_id != own.flow_run_id


def with_inner(
    own: ErrorContext, inner: ErrorContext | None, request: SubtaskRequest | None = None
) -> ErrorContext:
    """The context of a run's failure, combined with the context that its exception already has.

    The context of a sub-step (a nested task, a subflow) becomes the `cause`: the category is then `subtask`,
    with the cause's kind, code and wait, and `details` name the sub-step and its `request`. A context of the
    run itself, such as that of a loop in it, is merged.
    """
    if inner is None:
        return own
    if is_sub_step(inner, own):
        return _behind(own, inner, request)
    if inner.category is ErrorCategory.SUBTASK:
        place = {name: getattr(own, name) for name in _OWN_PLACE}
        output = {"partial_output": own.partial_output} if own.partial_output else {}
        return inner.model_copy(update={**place, **output, "kind": own.kind, "retryable": own.retryable})
    changes = {
        "details": {**own.details, **inner.details},
        "cause": own.cause or inner.cause,
        "partial_output": own.partial_output or inner.partial_output,
    }
    return own.model_copy(update=changes)


def _behind(own: ErrorContext, inner: ErrorContext, request: SubtaskRequest | None) -> ErrorContext:
    name = inner.node_id or "a sub-step"
    # The outer stack trace and the sub-step's own events have these frames and attempts.
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
