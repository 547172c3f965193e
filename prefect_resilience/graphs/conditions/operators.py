"""The operators of conditions, and the types under which JSON writes them."""

from __future__ import annotations

from typing import Literal, get_args

Operator = Literal[
    "error_occurred",
    "success",
    "failed",
    "contains",
    "equals",
    "not_equals",
    "gt",
    "gte",
    "lt",
    "lte",
    "exists",
    "not_exists",
    "in",
    "matches",
    "all",
    "any",
    "not",
]

OPERATORS: tuple[str, ...] = get_args(Operator)

OF_ERRORS = ("error_occurred", "success", "failed")
OF_ORDER = ("gt", "gte", "lt", "lte")
OF_PRESENCE = ("exists", "not_exists")
OF_CONDITIONS = ("all", "any", "not")
WITH_VALUE = ("contains", "equals", "not_equals", *OF_ORDER, "in", "matches")
WITH_PATH = (*WITH_VALUE, *OF_PRESENCE)

FAMILIES: dict[str, tuple[str, ...]] = {
    "error_catch": OF_ERRORS,
    "output_check": ("contains", "equals", "not_equals", "in", "matches", *OF_PRESENCE),
    "comparison": (*OF_ORDER, "equals", "not_equals"),
}
"""The types that stand for several operators, each with its own. An operator's name is a type as well."""

TYPES: tuple[str, ...] = (*FAMILIES, *OPERATORS)


def type_of(operator: str) -> str:
    """The type under which an operator is written."""
    if operator in OF_ERRORS:
        return "error_catch"
    if operator in OF_ORDER:
        return "comparison"
    if operator in ("contains", "equals", "not_equals"):
        return "output_check"
    return operator


def operators_of(kind: str) -> tuple[str, ...]:
    """The operators that may stand under a type."""
    return FAMILIES.get(kind, (kind,))
