"""Where a node leads once it has ended, and why.

- It succeeded: its condition decides, which counts as true where there is none: `on_success` or `on_failure`.
  Of `on_failure`, nodes with `handles_error` for it are left out: an answer that is too weak is no error.
- It failed for good: `on_failure`, and the nodes that handle its error. A condition about nothing but errors
  is asked all the same; when it holds, `on_success` stands in place of `on_failure`.
- Either way, the first transition whose condition holds is taken besides.

A condition that has no answer after a success makes the node fail (category `invalid`), and then what is said
for failures applies. Two kinds without an answer only do not hold: those about nothing but errors, and all of
them after a failure. So nothing is asked more than twice.
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
"""In the state: the failure that led to where one is."""

PLAN_ERROR = "_plan_error"
"""In the state: the latest failure in the whole plan so far, wherever it was and whoever handled it."""


class Routing(NamedTuple):
    """The way out of a node.

    to: the nodes that it leads to, each once.
    why: a sentence for people, "" when there was nothing to decide.
    error: what the node failed of: its own error, or that of a condition without an answer.
    handled: it failed, and leads somewhere because of that.
    """

    to: tuple[str, ...]
    why: str
    error: ErrorContext | None
    handled: bool


def routes(
    node: Node,
    *,
    handlers: tuple[str, ...] = (),
    output: Any = None,
    error: ErrorContext | None = None,
    outputs: Mapping[str, Any] | None = None,
    errors: dict[str, ErrorContext] | None = None,
    state: Mapping[str, Any] | None = None,
    inputs: Mapping[str, Any] | None = None,
    now: datetime,
) -> Routing:
    """Where `node` leads after it gave `output`, or failed for good with `error`.

    `handlers` are the nodes whose `handles_error` names it. `outputs` and `errors` are those of the nodes
    that ended, by id, for conditions with a `source_task`; `state` and `inputs` are the plan's. `now` dates
    the error of a condition without an answer.
    """
    if error is not None and error.action_id is None:
        error = error.model_copy(update={"action_id": node.type})
    seen = _Seen(output, error, outputs or {}, errors or {}, state or {}, inputs or {})
    if error is not None:
        return _after_failure(node, handlers, seen, error, f"it failed ({bounded(error.code, 40)})")
    try:
        return _after_success(node, handlers, seen)
    except ConditionError as unanswered:
        info = ErrorInfo.of(
            ErrorCategory.INVALID,
            type(unanswered).__name__,
            message=f"{node.id}: {unanswered}",
            details={"path": unanswered.path},
        )
        error = ErrorContext.from_info(info, timestamp=now, node_id=node.id, action_id=node.type)
        return _after_failure(node, handlers, replace(seen, error=error), error, bounded(info.message, 200))


def with_errors(
    state: Mapping[str, Any], error: ErrorContext | None, others: dict[str, ErrorContext] | None = None
) -> dict[str, Any]:
    """The plan's state as a node or a condition sees it: without an error there is none in it.

    `error` led here; `others` are those of all nodes that failed so far, the latest one last.
    """
    told = {LAST_ERROR: error, PLAN_ERROR: next(reversed((others or {}).values()), None) or error}
    plain = {name: value for name, value in state.items() if name not in told}
    return plain | {name: one.model_dump(mode="json") for name, one in told.items() if one is not None}


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the conditions of one node are asked about."""

    output: Any
    error: ErrorContext | None
    outputs: Mapping[str, Any]
    errors: dict[str, ErrorContext]
    state: Mapping[str, Any]
    inputs: Mapping[str, Any]

    @property
    def scope(self) -> dict[str, Any]:
        others = self.errors if self.error is None else {"": self.error}
        return {"state": with_errors(self.state, self.error, others), "inputs": self.inputs}

    def source(self, task: str) -> tuple[Any, Any]:
        """What a `source_task` gave. One that was skipped gave nothing, and nothing went wrong there."""
        return self.outputs.get(task), self.errors.get(task)

    def ask(self, condition: Condition) -> Explanation:
        """Raises `ConditionError` where there is no answer."""
        return condition.explain(self.output, error=self.error, scope=self.scope, source=self.source)


def about_errors(condition: Condition) -> bool:
    """Whether a condition asks about nothing but whether, and how, a node failed."""
    asked = [part for part in parts(condition) if part.operator not in OF_CONDITIONS]
    return all(part.operator in OF_ERRORS or _names_an_error(part.path) for part in asked)


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
        way = "on_failure names only handlers of its error" if only_handlers else "no node is named for that"
    clauses: list[str] = []
    if named or node.condition is not None:
        clauses.append(_clause(answer.text, way))
    to = _transition(node, seen, _strictly, clauses)
    return _routing([*named, *to], clauses, None)


def _after_failure(
    node: Node, handlers: tuple[str, ...], seen: _Seen, error: ErrorContext, said: str
) -> Routing:
    named, field = node.on_failure, "on_failure"
    if node.condition is not None and about_errors(node.condition) and _leniently(node.condition, seen).holds:
        named, field = node.on_success, "on_success, as the condition holds"
    ways = [field] if named else []
    if handlers:
        ways.append(f"handled by {bounded(', '.join(handlers), 80)}")
    clauses = [_clause(said, " and ".join(ways) or "no node is named for that")]
    to = _transition(node, seen, _leniently, clauses)
    return _routing([*named, *handlers, *to], clauses, error)


def _routing(to: list[str], clauses: list[str], error: ErrorContext | None) -> Routing:
    names = tuple(dict.fromkeys(to))
    return Routing(names, "; ".join(clauses), error, error is not None and bool(names))


def _clause(reason: str, way: str) -> str:
    return f"{bounded(reason, 200)}: {way}"


def _strictly(condition: Condition, seen: _Seen) -> Explanation:
    """The answer after a success. That there is no error then is the usual case, and no mistake."""
    return _leniently(condition, seen) if about_errors(condition) else seen.ask(condition)


def _leniently(condition: Condition, seen: _Seen) -> Explanation:
    """The answer after a failure, when there is no output to ask about."""
    try:
        return seen.ask(condition)
    except ConditionError as unanswered:
        return Explanation(False, str(unanswered))


def _transition(
    node: Node, seen: _Seen, ask: Callable[[Condition, _Seen], Explanation], clauses: list[str]
) -> list[str]:
    """Where the first transition leads whose condition holds; adds the clause that says why."""
    for way in in_order(node.transitions):
        answer = Explanation(True, "") if way.condition is None else ask(way.condition, seen)
        if answer.holds:
            named = f"transition to {way.to}"
            clauses.append(_clause(answer.text, named) if answer.text else named)
            return [way.to]
    return []


def in_order(transitions: tuple[PlanTransition, ...]) -> list[PlanTransition]:
    """The lowest priority first; of equal ones, as they are written."""
    return sorted(transitions, key=lambda way: way.priority)
