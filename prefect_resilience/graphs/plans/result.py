"""The results of a plan and of its nodes; PlanFailed, and its ErrorContext with the cause."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field, field_serializer

from prefect_resilience.base.plain import plain
from prefect_resilience.base.text import plural
from prefect_resilience.errors.classify.classify import classifier
from prefect_resilience.errors.context import ErrorContext, attach_context
from prefect_resilience.errors.exceptions import ResilienceError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.errors.taxonomy import ErrorCategory, ErrorInfo, FailureReason, bounded
from prefect_resilience.graphs.plans.model import Node
from prefect_resilience.guards.partials import partial_output

NodeStatus = Literal["succeeded", "failed", "handled", "skipped"]


class NodeResult(BaseModel, frozen=True):
    """One node after the run. `handled`: it failed, and another node handled its error.

    `output` is the action's output; in JSON, values that JSON cannot write become short strings. `attempts`
    of a fan-out counts all its branches. `reason` says why it was skipped, or why it took its routes.
    `routed_to` are the nodes that it routed to. `duration` is in seconds, with all attempts and delays.
    """

    status: NodeStatus
    output: Any = None
    error: ErrorContext | None = None
    attempts: int = 0
    reason: str = ""
    routed_to: tuple[str, ...] = ()
    started_at: datetime | None = None
    duration: float | None = None
    task_run_id: str | None = None

    @field_serializer("output", when_used="json")
    def _as_json(self, output: Any) -> Any:
        return plain(output)


class PlanResult(BaseModel, frozen=True):
    """The whole run. `succeeded`: every failure of a node was handled.

    `nodes` are in the plan's order; then come those that were `added` while it ran.
    """

    succeeded: bool
    nodes: dict[str, NodeResult] = Field(default_factory=dict[str, NodeResult])
    added: tuple[Node, ...] = ()

    @property
    def outputs(self) -> dict[str, Any]:
        """The output of each succeeded node, by id."""
        return {name: node.output for name, node in self.nodes.items() if node.status == "succeeded"}

    @property
    def failed(self) -> list[str]:
        """The nodes that failed and were not handled."""
        return [name for name, node in self.nodes.items() if node.status == "failed"]

    def portable(self) -> PlanResult:
        """The same with every output as plain data, so that it can always be pickled."""
        nodes = {
            name: node.model_copy(update={"output": plain(node.output)}) for name, node in self.nodes.items()
        }
        return self.model_copy(update={"nodes": nodes})


NAMED = 5
"""The most failed nodes that the message names."""
CHAIN = 20
"""The most causes of an exception that are searched for a failed plan."""
EACH_RESULT = 4_000
ALL_RESULTS = 40_000
"""Characters of JSON that one partial result, and all of them together, may take in the context."""


class PlanFailed(ResilienceError):
    """A node failed and was not handled, or the plan timed out. `result` has the outcome of each node.

    The message names the nodes and their errors. `context` (also by `error_context`) has the chain of causes,
    and in `details` the outputs of the nodes that succeeded. When pickled, outputs become plain data.
    """

    context: ErrorContext | None = None

    def __init__(self, message: str, result: PlanResult) -> None:
        self.result = result
        super().__init__(message)

    def __reduce__(self) -> tuple[type[PlanFailed], tuple[str, PlanResult], dict[str, Any]]:
        state = {name: value for name, value in self.__dict__.items() if name != "result"}
        return type(self), (str(self.args[0]), self.result.portable()), state


def failure_of(
    result: PlanResult,
    *,
    now: datetime,
    first: str | None,
    flow_run_id: str | None = None,
    overdue: str | None = None,
) -> PlanFailed:
    """The exception of a plan that failed, with its context attached.

    first: the node that failed first. overdue: the message that the plan timed out.
    """
    message = redact(_message(result, overdue))
    failure = PlanFailed(message, result)
    category = ErrorCategory.TIMEOUT if overdue else ErrorCategory.SUBTASK
    details: dict[str, Any] = {"partial_results": partial_results(result.outputs)}
    if first is not None:
        details |= {"failed_step": first, "failed_steps": result.failed[:100]}
    cause = result.nodes[first].error if first is not None else None
    model = None if overdue else cause
    failure.context = ErrorContext(
        category=category,
        kind=model.kind if model else category.kind,
        code=model.code if model else "TIMEOUT" if overdue else "subtask",
        reason=FailureReason.EXECUTION_TIMEOUT if overdue else FailureReason.SUBTASK_FAILURE,
        retryable=model.retryable if model else category.retryable,
        retry_after=model.retry_after if model else None,
        message=bounded(message, 2_000),
        node_id=first,
        flow_run_id=flow_run_id,
        timestamp=now,
        exception_type=f"{PlanFailed.__module__}.{PlanFailed.__qualname__}",
        details=details,
        cause=None if cause is None else cause.deeper(),
    )
    attach_context(failure, failure.context)
    return failure


def with_cause(context: ErrorContext, error: BaseException | None) -> ErrorContext:
    """A node's context; if a plan inside the node failed, with that plan's context as its cause."""
    inner = _plan_behind(error)
    if inner is None or context.cause is not None:
        return context
    return context.model_copy(update={"cause": inner.deeper()})


def _plan_behind(error: BaseException | None) -> ErrorContext | None:
    """The context of the first failed plan among an exception and its causes."""
    for _ in range(CHAIN):
        if error is None or isinstance(error, PlanFailed):
            break
        error = error.__cause__
    return error.context if isinstance(error, PlanFailed) else None


@classifier
def _as_its_cause(error: BaseException) -> ErrorInfo | None:
    """A failed plan is classified as its first failed node, so that it is retried if that node would be."""
    if not isinstance(error, PlanFailed) or error.context is None:
        return None
    fields = {name: getattr(error.context, name) for name in ErrorInfo.model_fields if name != "details"}
    return ErrorInfo(**fields, details={"failed_step": error.context.node_id})


def _message(result: PlanResult, overdue: str | None) -> str:
    failed = result.failed
    if not failed:
        return overdue or "the plan failed"
    texts = [f"{name!r} ({_summary(result.nodes[name].error)})" for name in failed[:NAMED]]
    more = f" and {len(failed) - NAMED} more" if len(failed) > NAMED else ""
    text = f"{len(failed)} of {plural(len(result.nodes), 'node')} failed: {', '.join(texts)}{more}"
    return f"{overdue}; {text}" if overdue else text


def _summary(error: ErrorContext | None) -> str:
    return "without an error" if error is None else bounded(error.summary(), 200)


def partial_results(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs of succeeded nodes, without secrets. Long ones are cut and marked as truncated."""
    room = ALL_RESULTS
    parts: dict[str, Any] = {}
    for name, output in outputs.items():
        part = partial_output(output, min(EACH_RESULT, room))
        parts[name] = part.model_dump() if part and part.truncated else part and part.content
        room -= len(json.dumps(parts[name], ensure_ascii=False, default=str)) + len(name)
        if room <= 0:
            if len(parts) < len(outputs):
                parts["…"] = {"truncated": True, "left_out": len(outputs) - len(parts)}
            break
    return parts
