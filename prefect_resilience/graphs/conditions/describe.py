"""Conditions in a few words, for pictures and reasons: `confidence >= 0.9`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from prefect_resilience.base.values import shortly
from prefect_resilience.errors.secrets.redact import redact, redact_data
from prefect_resilience.graphs.conditions.paths import shown_path

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
    """The condition as a line of at most `limit` characters, with secrets masked."""
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
        named = [text for text in (condition.category, condition.code) if text]
        return f"{of}failed with {' '.join(named)}" if named else f"{of}failed"
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


def masked(path: str | None, value: Any) -> Any:
    """The beginning of a text, `***` if it stands under the name of a secret such as `api_key`.

    So are the texts of a list that is short enough to be shown.
    """
    if isinstance(value, str):
        return redact_data({path: value[:_LETTERS]})[path]
    if not isinstance(value, list) or len(cast("list[Any]", value)) > _MOST_NAMED:
        return cast("Any", value)
    items = cast("list[Any]", value)
    return [masked(path, item) if isinstance(item, str) else item for item in items]


def shown(value: Any) -> str:
    """A plain value in a few characters, as JSON would write it where that is short; secrets masked."""
    if isinstance(value, bool) or value is None:
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        items = cast("list[Any]", value)
        if len(items) > _MOST_NAMED or any(isinstance(item, list | dict) for item in items):
            return f"a list of {len(items):,}"
        return f"[{', '.join(shown(item) for item in items)}]"
    if isinstance(value, dict):
        return f"a mapping of {len(cast('dict[str, Any]', value)):,}"
    if isinstance(value, str):
        return shortly(redact(value[:_LETTERS]))
    return shortly(value) if isinstance(value, int | float) else str(value)[:60]
