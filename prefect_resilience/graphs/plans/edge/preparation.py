"""Prepares ready nodes: fills in templates and converts the parameters of their tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from prefect_resilience.base.plain import shortly
from prefect_resilience.errors.context import ErrorContext
from prefect_resilience.errors.secrets.redact import redact_data
from prefect_resilience.errors.taxonomy import ErrorCategory, ErrorInfo, FailureReason
from prefect_resilience.graphs.plans.actions import ERROR
from prefect_resilience.graphs.plans.edge.nodes import AnyTask, TaskFactory
from prefect_resilience.graphs.plans.edge.outcomes import NodeOutcome
from prefect_resilience.graphs.plans.lookups import Rendering
from prefect_resilience.graphs.plans.model import Cache, FanOut, Node
from prefect_resilience.graphs.plans.node_states import name_some
from prefect_resilience.graphs.plans.result import NodeResult, partial_results
from prefect_resilience.graphs.plans.routes import state_of
from prefect_resilience.graphs.plans.templates import render


@dataclass(frozen=True, slots=True)
class Job:
    """A task to submit, for a node or for the branch with this `index`."""

    node: Node
    task: AnyTask
    parameters: dict[str, Any]
    index: int | None = None


@dataclass(frozen=True)
class Preparation:
    """Makes the jobs of one run. All methods raise ValueError if a template cannot be filled in.

    results: those of the nodes that have ended. errors: those of the nodes that have failed.
    """

    factory: TaskFactory
    results: Mapping[str, NodeResult]
    errors: dict[str, ErrorContext]
    inputs: Mapping[str, Any]

    def single(self, node: Node, seen: ErrorContext | None) -> Job:
        """The job of a node. `seen` is the error that it gets."""
        return self._job(node, node.id, self._view(seen, {}), seen, None)

    def branch(self, node: Node, name: str, index: int, item: Any, seen: ErrorContext | None) -> Job:
        """The job of one branch of a fan-out."""
        view = self._view(seen, {cast(FanOut, node.map).item: item, "index": index})
        return self._job(node, name, view, seen, index)

    def items(self, node: Node, seen: ErrorContext | None) -> Sequence[Any]:
        """The items of a fan-out."""
        items = render(cast(FanOut, node.map).over, self._view(seen, {}), place="map.over")
        if not isinstance(items, list | tuple):
            raise ValueError(f"map.over must be a list, not {shortly(items)}")
        return cast("Sequence[Any]", items)

    def _view(self, seen: ErrorContext | None, names: Mapping[str, Any]) -> Rendering:
        return Rendering(self.results, state_of(seen, self.errors), self.inputs, names)

    def _job(
        self, node: Node, name: str, view: Rendering, seen: ErrorContext | None, index: int | None
    ) -> Job:
        action = self.factory.action(node)
        inputs = dict(render(node.input, view))
        if node.map is not None and node.map.item in action.parameters:
            inputs.setdefault(node.map.item, view.names[node.map.item])
        parameters = action.convert(inputs)
        if ERROR in action.parameters:
            parameters.setdefault(ERROR, seen)
        key = node.cache.key if isinstance(node.cache, Cache) else None
        rendered = None if key is None else str(render(key, view, place="cache.key"))
        return Job(node, self.factory.task_for(node, name, rendered), parameters, index)


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
