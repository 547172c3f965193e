"""From a node that may run to a task with its parameters: templates filled in, types made right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from prefect_resilience.errors.context import ErrorContext
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.graphs.plans.actions import ERROR
from prefect_resilience.graphs.plans.edge.nodes import AnyTask, Workshop
from prefect_resilience.graphs.plans.model import Cache, FanOut, Node
from prefect_resilience.graphs.plans.reading.mistakes import quoted
from prefect_resilience.graphs.plans.result import NodeResult
from prefect_resilience.graphs.plans.routes import with_errors
from prefect_resilience.graphs.plans.templates.templates import View, render


@dataclass(frozen=True, slots=True)
class Job:
    """A task run to be: of a node, or of the branch with this `index`."""

    node: Node
    task: AnyTask
    parameters: dict[str, Any]
    index: int | None = None


class Preparation:
    """Makes the jobs of one run. All raise ValueError for what cannot be filled in."""

    def __init__(
        self,
        workshop: Workshop,
        results: Mapping[str, NodeResult],
        errors: dict[str, ErrorContext],
        inputs: Mapping[str, Any],
        logger: Any,
    ) -> None:
        self._workshop = workshop
        self._results = results
        self._errors = errors
        self._inputs = inputs
        self._logger = logger

    def single(self, node: Node, seen: ErrorContext | None) -> Job:
        """The job of a node; `seen` is the error that it is told of."""
        return self._job(node, node.id, self._view(seen, {}), seen, None)

    def branch(self, node: Node, name: str, index: int, item: Any, seen: ErrorContext | None) -> Job:
        """The job of one branch of a fan-out."""
        view = self._view(seen, {cast(FanOut, node.map).item: item, "index": index})
        return self._job(node, name, view, seen, index)

    def items(self, node: Node, seen: ErrorContext | None) -> Sequence[Any]:
        """What a fan-out goes over."""
        items = self._rendered(node, cast(FanOut, node.map).over, self._view(seen, {}), "map.over")
        if not isinstance(items, list | tuple):
            raise ValueError(f"map.over: a list is needed, and this is {quoted(items)}")
        return cast("Sequence[Any]", items)

    def _view(self, seen: ErrorContext | None, names: Mapping[str, Any]) -> View:
        return View(self._results, with_errors({}, seen, self._errors), self._inputs, names)

    def _job(self, node: Node, name: str, view: View, seen: ErrorContext | None, index: int | None) -> Job:
        action = self._workshop.action(node)
        given = dict(self._rendered(node, node.templated, view, "input"))
        given = {name: given.get(name, written) for name, written in node.input.items()}
        if node.map is not None and node.map.item in action.parameters:
            given.setdefault(node.map.item, view.names[node.map.item])
        parameters = action.converted(given)
        if action.takes_error:
            parameters.setdefault(ERROR, seen)
        key = node.cache.key if isinstance(node.cache, Cache) else None
        rendered = None if key is None else str(self._rendered(node, key, view, "cache.key"))
        return Job(node, self._workshop.named(node, name, rendered), parameters, index)

    def _rendered(self, node: Node, value: Any, view: View, place: str) -> Any:
        rendered = render(value, view, place=place)
        for warning in rendered.warnings:
            self._logger.warning("Node %r: %s", node.id, redact(warning))
        return rendered.value
