"""Evaluates and describes conditions: strict, bounded, with the reason in words."""

from __future__ import annotations

import operator as python
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from prefect_resilience.base.plain import shortly
from prefect_resilience.errors.classify.classify import classify
from prefect_resilience.errors.secrets.redact import redact, redact_data
from prefect_resilience.graphs.conditions.compare import (
    ConditionError,
    EvaluationBounds,
    equal,
    matches,
    ordered,
)
from prefect_resilience.graphs.conditions.paths import Missing, kind_of, look_up, shown_path

if TYPE_CHECKING:
    from prefect_resilience.graphs.conditions.model import Condition

SIGNS = {
    "equals": "==",
    "not_equals": "!=",
    "gt": ">",
    "gte": ">=",
    "lt": "<",
    "lte": "<=",
    "contains": "contains",
    "matches": "matches",
    "in": "in",
}
_MOST_NAMED = 6
_LETTERS = 10_000


def describe(condition: Condition, limit: int = 200) -> str:
    """The condition in one line of at most `limit` characters, with secrets masked."""
    text = redact(_text(condition, 4))
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _text(condition: Condition, depth: int) -> str:
    operator = condition.operator
    if operator in ("all", "any"):
        return _joined(condition.conditions, " and " if operator == "all" else " or ", depth)
    if operator == "not":
        return f"not ({_text(condition.conditions[0], depth - 1)})" if depth else "not (…)"
    of = f"{condition.source_task}: " if condition.source_task else ""
    if operator == "failed":
        return f"{of}failed with {wanted}" if (wanted := _wanted(condition)) else f"{of}failed"
    if operator in ("error_occurred", "success"):
        return of + {"error_occurred": "an error occurred", "success": "succeeded"}[operator]
    path = shown_path(cast("str", condition.path))[1:-1]
    if operator in SIGNS:
        return f"{of}{path} {SIGNS[operator]} {shown(masked(condition.path, condition.value))}"
    return f"{of}{path} {'exists' if operator == 'exists' else 'does not exist'}"


def _joined(conditions: tuple[Condition, ...], word: str, depth: int) -> str:
    if not depth:
        return "…"
    parts = [
        f"({_text(part, depth - 1)})" if part.operator in ("all", "any") else _text(part, depth - 1)
        for part in conditions[:_MOST_NAMED]
    ]
    if len(conditions) > _MOST_NAMED:
        parts.append("…")
    return word.join(parts)


def parts(condition: Condition) -> Iterator[Condition]:
    """The condition itself and everything inside it."""
    waiting = [condition]
    while waiting:
        part = waiting.pop()
        yield part
        waiting.extend(part.conditions)


def masked(path: str | None, value: Any) -> Any:
    """The beginning of a text, or `***` if the path is the name of a secret such as `api_key`.

    Texts in a short list are masked in the same way.
    """
    if isinstance(value, str):
        return redact_data({path: value[:_LETTERS]})[path]
    if not isinstance(value, list) or len(cast("list[Any]", value)) > _MOST_NAMED:
        return cast("Any", value)
    items = cast("list[Any]", value)
    return [masked(path, item) if isinstance(item, str) else item for item in items]


def shown(value: Any) -> str:
    """A plain value in a few characters, as short JSON if possible, with secrets masked."""
    if isinstance(value, list):
        items = cast("list[Any]", value)
        if len(items) <= _MOST_NAMED and not any(isinstance(item, list | dict) for item in items):
            return f"[{', '.join(shown(item) for item in items)}]"
    if value is None or isinstance(value, bool | list | dict):
        return kind_of(value)
    if isinstance(value, str):
        return shortly(redact(value[:_LETTERS]))
    return shortly(value) if isinstance(value, int | float) else str(value)[:60]


Source = Callable[[str], tuple[Any, Any]]
"""Returns (value, error) of the task that a condition names in `source_task`."""

_MOST_REASONS = 3
_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "gt": python.gt,
    "gte": python.ge,
    "lt": python.lt,
    "lte": python.le,
}


@dataclass(frozen=True, slots=True)
class Explanation:
    """Whether the condition holds, and why: `confidence is 0.71, not >= 0.9`."""

    holds: bool
    text: str

    def __bool__(self) -> bool:
        return self.holds


@dataclass(frozen=True, slots=True)
class ConditionAnswer:
    """Whether a condition or a part of it holds, and a function for the reason."""

    holds: bool
    why: Callable[[], str]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One evaluation: its values and its bounds."""

    value: Any
    error: Any
    scope: Mapping[str, Any] | None
    source: Source | None
    bounds: EvaluationBounds

    def of(self, condition: Condition) -> ConditionAnswer:
        self.bounds.step()
        if condition.operator == "not":
            inner = self.of(condition.conditions[0])
            return ConditionAnswer(not inner.holds, inner.why)
        if condition.operator in ("all", "any"):
            return self._several(condition)
        value, error = self.value, self.error
        if condition.source_task is not None and self.source is not None:
            value, error = self.source(condition.source_task)
        if condition.path is None:
            return _of_error(condition, error)
        actual = look_up(condition.path, value, self.scope, self.bounds)
        if condition.operator in ("exists", "not_exists"):
            return _of_presence(condition, actual)
        if isinstance(actual, Missing):
            raise ConditionError(
                f"the condition {describe(condition)!r} cannot be evaluated: {actual.why()}", condition.path
            )
        holds = _compared(condition, actual, self.bounds)
        return ConditionAnswer(holds, lambda: _reason(condition, actual, holds))

    def _several(self, condition: Condition) -> ConditionAnswer:
        """Evaluate from left to right, until the answer is known."""
        stops_at = condition.operator == "any"
        reasons: list[ConditionAnswer] = []
        for part in condition.conditions:
            answer = self.of(part)
            if answer.holds is stops_at:
                return answer
            reasons.append(answer)
        return ConditionAnswer(not stops_at, lambda: _together(reasons))


def _of_error(condition: Condition, error: Any) -> ConditionAnswer:
    if condition.operator == "success":
        return ConditionAnswer(error is None, lambda: _what_happened(error))
    if condition.operator == "error_occurred" or error is None:
        return ConditionAnswer(error is not None, lambda: _what_happened(error))
    category, code = _named(error)
    # A failed subtask has the categories of its causes, too.
    same = condition.category in (None, category, *getattr(error, "categories", ()))
    holds = same and condition.code in (None, code)
    return ConditionAnswer(
        holds, lambda: _what_happened(error) + ("" if holds else f", not {_wanted(condition)}")
    )


def _named(error: Any) -> tuple[str, str]:
    """Category and code of an ErrorContext, an ErrorInfo, the JSON of one, or an exception."""
    if isinstance(error, BaseException):
        error = classify(error)
    if isinstance(error, Mapping):
        fields = cast("Mapping[str, Any]", error)
        return str(fields.get("category", "")), str(fields.get("code", ""))
    return str(getattr(error, "category", "")), str(getattr(error, "code", ""))


def _wanted(condition: Condition) -> str:
    return " ".join(text for text in (condition.category, condition.code) if text)


def _what_happened(error: Any) -> str:
    if error is None:
        return "no error occurred"
    category, code = _named(error)
    return f"it failed with {category} {code}" if category != code else f"it failed with {category}"


def _of_presence(condition: Condition, found: Any) -> ConditionAnswer:
    there = not isinstance(found, Missing)
    text = f"{condition.path} {'exists' if there else 'does not exist'}"
    return ConditionAnswer(there is (condition.operator == "exists"), lambda: text)


def _compared(condition: Condition, found: Any, bounds: EvaluationBounds) -> bool:
    operator, value = condition.operator, condition.value
    if operator in _ORDERS:
        return ordered(found, value, _ORDERS[operator])
    if operator in ("equals", "not_equals"):
        return equal(found, value, bounds) is (operator == "equals")
    if operator == "in":
        return any(equal(found, item, bounds) for item in value)
    if operator == "contains":
        return _contains(found, value, bounds)
    return isinstance(found, str) and matches(value, found, bounds)


def _contains(found: Any, value: Any, bounds: EvaluationBounds) -> bool:
    """A part of a text, a member of a list, a key of a mapping."""
    if isinstance(found, list):
        return any(equal(item, value, bounds) for item in cast("list[Any]", found))
    return isinstance(value, str) and isinstance(found, str | dict) and value in found


def _reason(condition: Condition, found: Any, holds: bool) -> str:
    path, operator = condition.path, condition.operator
    is_it = f"{path} is {shown(masked(path, found))}"
    wanted = shown(masked(path, condition.value))
    if operator in ("equals", "not_equals"):
        return is_it if holds is (operator == "equals") else f"{is_it}, not {wanted}"
    if operator in ("contains", "matches"):
        negated = "does not contain" if operator == "contains" else "does not match"
        return f"{path} {operator} {wanted}" if holds else f"{is_it}, which {negated} {wanted}"
    return f"{is_it}, {'' if holds else 'not '}{SIGNS[operator]} {wanted}"


def _together(reasons: list[ConditionAnswer]) -> str:
    texts = [reason.why() for reason in reasons[:_MOST_REASONS]]
    return "; ".join([*texts, "…"] if len(reasons) > _MOST_REASONS else texts)
