"""The routes from a node that has ended, and the reason.

- It succeeded: its condition chooses between `on_success` and `on_failure`. No condition counts as true.
  Nodes in `on_failure` that also have `handles_error` for this node are skipped: the node did not fail.
- It failed after all retries: `on_failure`, and the nodes that handle its error. A condition that is only
  about errors is evaluated too; if it holds, `on_success` replaces `on_failure`.
- In both cases the first transition that holds is taken as well.

If a condition raises `ConditionError` after a success, the node fails (category `invalid`), and the rules for
failures apply. After a failure, or in a condition that is only about errors, `ConditionError` means that the
condition does not hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

from prefect_resilience.errors.context import ErrorContext
from prefect_resilience.errors.taxonomy import ErrorCategory, ErrorInfo, bounded
from prefect_resilience.graphs.conditions.compare import ConditionError
from prefect_resilience.graphs.conditions.evaluate import Explanation, parts
from prefect_resilience.graphs.conditions.model import Condition
from prefect_resilience.graphs.conditions.reading import OF_CONDITIONS, OF_ERRORS
from prefect_resilience.graphs.plans.model import Node, PlanTransition

LAST_ERROR = "_last_error"
"""In the state: the failure that led to the current node."""

PLAN_ERROR = "_plan_error"
"""In the state: the latest failure of the whole plan so far, handled or not."""


class Routing(NamedTuple):
    """The routes that a node takes.

    to: the target nodes, each once.
    why: the reason in a sentence, "" if there was nothing to decide.
    error: the error of the node, or of a condition that could not be evaluated.
    """

    to: tuple[str, ...]
    why: str
    error: ErrorContext | None


def routes(
    node: Node,
    *,
    handlers: tuple[str, ...] = (),
    output: Any = None,
    error: ErrorContext | None = None,
    outputs: Mapping[str, Any] | None = None,
    errors: dict[str, ErrorContext] | None = None,
    inputs: Mapping[str, Any] | None = None,
    now: datetime,
) -> Routing:
    """The routes of `node` after it returned `output`, or failed after all retries with `error`.

    `handlers` are the nodes that have it in `handles_error`. `outputs` and `errors` are those of ended nodes,
    by id, for conditions with a `source_task`. `inputs` are the plan's. `now` is the timestamp for the error
    of a condition that cannot be evaluated.
    """
    if error is not None and error.action_id is None:
        error = error.model_copy(update={"action_id": node.type})
    values = _Seen(output, error, outputs or {}, errors or {}, inputs or {})
    if error is not None:
        return _after_failure(node, handlers, values, error, f"it failed ({bounded(error.code, 40)})")
    try:
        return _after_success(node, handlers, values)
    except ConditionError as unanswered:
        info = ErrorInfo.of(
            ErrorCategory.INVALID,
            type(unanswered).__name__,
            message=f"{node.id}: {unanswered}",
            details={"path": unanswered.path},
        )
        error = ErrorContext.from_info(info, timestamp=now, node_id=node.id, action_id=node.type)
        return _after_failure(node, handlers, replace(values, error=error), error, bounded(info.message, 200))


def state_of(error: ErrorContext | None, others: dict[str, ErrorContext]) -> dict[str, Any]:
    """The plan's state for a node or a condition.

    `error` led to this node. `others` are the errors of all failed nodes so far, the latest one last.
    """
    errors = {LAST_ERROR: error, PLAN_ERROR: next(reversed(others.values()), None) or error}
    return {name: context.model_dump(mode="json") for name, context in errors.items() if context is not None}


@dataclass(frozen=True, slots=True)
class _Seen:
    """The values that the conditions of one node are evaluated on."""

    output: Any
    error: ErrorContext | None
    outputs: Mapping[str, Any]
    errors: dict[str, ErrorContext]
    inputs: Mapping[str, Any]

    @property
    def scope(self) -> dict[str, Any]:
        errors = self.errors if self.error is None else {"": self.error}
        return {"state": state_of(self.error, errors), "inputs": self.inputs}

    def source(self, task: str) -> tuple[Any, Any]:
        """The output and the error of a `source_task`. A skipped node has neither."""
        return self.outputs.get(task), self.errors.get(task)

    def ask(self, condition: Condition) -> Explanation:
        """Raises `ConditionError` if the condition cannot be evaluated."""
        return condition.explain(self.output, error=self.error, scope=self.scope, source=self.source)


def about_errors(condition: Condition) -> bool:
    """Whether a condition is only about failures."""
    about_values = [part for part in parts(condition) if part.operator not in OF_CONDITIONS]
    return all(part.operator in OF_ERRORS or _names_an_error(part.path) for part in about_values)


def _names_an_error(path: str | None) -> bool:
    wholes = (f"state.{LAST_ERROR}", f"state.{PLAN_ERROR}")
    return path is not None and any(path == it or path.startswith((f"{it}.", f"{it}[")) for it in wholes)


def _after_success(node: Node, handlers: tuple[str, ...], seen: _Seen) -> Routing:
    answer = Explanation(True, "it succeeded") if node.condition is None else _strictly(node.condition, seen)
    named, way = node.on_success, "on_success"
    if not answer.holds:
        named, way = tuple(name for name in node.on_failure if name not in handlers), "on_failure"
    if not named:
        only_handlers = not answer.holds and node.on_failure
        way = "on_failure has only error handlers" if only_handlers else "no node to run next"
    clauses: list[str] = []
    if named or node.condition is not None:
        clauses.append(_clause(answer.text, way))
    to = _transition(node, seen, _strictly, clauses)
    return Routing(tuple(dict.fromkeys([*named, *to])), "; ".join(clauses), None)


def _after_failure(
    node: Node, handlers: tuple[str, ...], seen: _Seen, error: ErrorContext, said: str
) -> Routing:
    named, field = node.on_failure, "on_failure"
    if node.condition is not None and about_errors(node.condition) and _leniently(node.condition, seen).holds:
        named, field = node.on_success, "on_success, because the condition holds"
    ways = [field] if named else []
    if handlers:
        ways.append(f"handled by {bounded(', '.join(handlers), 80)}")
    clauses = [_clause(said, " and ".join(ways) or "no node to run next")]
    to = _transition(node, seen, _leniently, clauses)
    return Routing(tuple(dict.fromkeys([*named, *handlers, *to])), "; ".join(clauses), error)


def _clause(reason: str, way: str) -> str:
    return f"{bounded(reason, 200)}: {way}"


def _strictly(condition: Condition, seen: _Seen) -> Explanation:
    """The answer after a success. A condition about a missing error is then false, not a mistake."""
    return _leniently(condition, seen) if about_errors(condition) else seen.ask(condition)


def _leniently(condition: Condition, seen: _Seen) -> Explanation:
    """The answer after a failure: false if the condition needs an output."""
    try:
        return seen.ask(condition)
    except ConditionError as unanswered:
        return Explanation(False, str(unanswered))


def _transition(
    node: Node, seen: _Seen, ask: Callable[[Condition, _Seen], Explanation], clauses: list[str]
) -> list[str]:
    """The target of the first transition that holds. Adds its reason to `clauses`."""
    for way in in_order(node.transitions):
        answer = Explanation(True, "") if way.condition is None else ask(way.condition, seen)
        if answer.holds:
            named = f"transition to {way.to}"
            clauses.append(_clause(answer.text, named) if answer.text else named)
            return [way.to]
    return []


def in_order(transitions: tuple[PlanTransition, ...]) -> list[PlanTransition]:
    """Transitions by priority, the lowest first; equal ones in their written order."""
    return sorted(transitions, key=lambda way: way.priority)
