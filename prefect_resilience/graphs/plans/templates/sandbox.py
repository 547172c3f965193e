"""Jinja2's sandbox as templates use it: its parser and compiler, our filters and tests, and nothing else.

Imported where the first expression is met that is more than a path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

from jinja2 import nodes, pass_context
from jinja2.environment import TemplateExpression
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from prefect_resilience.graphs.plans.templates.lookups import (
    TEXT_LIMIT,
    Missing,
    Scope,
    TemplateError,
    within,
)

LONGEST_NUMBER = 400
"""Characters of a text that `int` and `float` still read."""


class Sandbox(ImmutableSandboxedEnvironment):
    """Operators see plain data; attributes are never read."""

    intercepted_binops: frozenset[str] = frozenset({"+", "-"})

    def getattr(self, obj: Any, attribute: str) -> Any:
        raise TemplateError("a template reads no attributes")

    def getitem(self, obj: Any, argument: Any) -> Any:
        raise TemplateError("a template reads no attributes")

    def is_safe_callable(self, obj: Any) -> bool:
        return False

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        for value in (left, right):
            if isinstance(value, Missing):
                raise TemplateError(f"'{operator}' lacks a value: {value}")
        if operator == "+" and isinstance(left, str) and isinstance(right, str):
            return within(left + right)
        if operator == "+" and isinstance(left, list) and isinstance(right, list):
            return [*cast("list[Any]", left), *cast("list[Any]", right)]
        first, second = _number(left, f"'{operator}'"), _number(right, f"'{operator}'")
        return first + second if operator == "+" else first - second


def _scoped(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that is given the scope. Its values are plain data, as those of paths are."""

    @pass_context
    def filtered(context: Context, value: Any, *args: Any) -> Any:
        return function(context["scope"], value, *args)

    return filtered


def _default(scope: Scope, value: Any, fallback: Any = "", falsy: Any = False) -> Any:
    if isinstance(value, Missing):
        return fallback
    return fallback if falsy and not value else value


def _length(scope: Scope, value: Any) -> int:
    if isinstance(value, str | list | dict | Missing):
        return len(cast("list[Any]", value))
    raise TemplateError(f"a {type(value).__name__} has no length")


def _text(change: Callable[[str], str]) -> Callable[..., str]:
    def changed(scope: Scope, value: Any) -> str:
        return within(change(scope.text(value)))

    return changed


def _joined(scope: Scope, values: Any, between: Any = "") -> str:
    if not isinstance(values, list | Missing):
        raise TemplateError(f"join wants a list, not a {type(values).__name__}")
    between = scope.text(between)
    parts: list[str] = []
    size = 0
    for value in cast("list[Any]", values):
        parts.append(scope.text(value))
        size += len(parts[-1]) + len(between)
        if size - len(between) > TEXT_LIMIT:
            within(" " * (TEXT_LIMIT + 1))
    return between.join(parts)


def _concat(scope: Scope, values: list[Any]) -> str:
    return _joined(scope, values)


def _listed(scope: Scope, values: list[Any]) -> list[Any]:
    """A list that was written out: what is missing is null in it."""
    for value in values:
        if isinstance(value, Missing):
            value.use()
    return [None if isinstance(value, Missing) else value for value in values]


def _end(at: int) -> Callable[..., Any]:
    def end(scope: Scope, value: Any) -> Any:
        if isinstance(value, dict):
            value = list(cast("dict[Any, Any]", value))
        if isinstance(value, Missing):
            return value
        if not isinstance(value, str | list):
            raise TemplateError(f"first and last want a list, not a {type(value).__name__}")
        parts = cast("list[Any]", value)
        return parts[at] if parts else Missing(scope, lambda: "the list is empty")

    return end


def _round(scope: Scope, value: Any, digits: Any = 0) -> Any:
    number = _number(value, "round")
    digits = max(-300, min(300, int(_number(digits, "round"))))
    return round(number, digits)


def _number(value: Any, wanted_by: str) -> int | float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    raise TemplateError(f"{wanted_by} wants a number, not {_kind(value)}")


def _kind(value: Any) -> str:
    if isinstance(value, Missing):
        return f"a missing value: {value}"
    return "null" if value is None else f"a {type(value).__name__}"


def _as_number(kind: type[int] | type[float]) -> Callable[..., Any]:
    def converted(scope: Scope, value: Any, fallback: Any = 0) -> Any:
        if isinstance(value, Missing):
            value.use()
        if not isinstance(value, str | int | float):
            return fallback
        try:
            if isinstance(value, str):
                value = value.strip()
                if len(value) > LONGEST_NUMBER:
                    return fallback
                return kind(value) if kind is float or "." not in value else int(float(value))
            return kind(value)
        except (ValueError, OverflowError):
            return fallback

    return converted


def _truncated(scope: Scope, value: Any, length: Any = 255) -> str:
    most = max(1, min(TEXT_LIMIT, int(_number(length, "truncate"))))
    whole = value if isinstance(value, str) else scope.text(value)
    return whole if len(whole) <= most else whole[: most - 1] + "…"


def _step(scope: Scope, value: Any, key: Any) -> Any:
    if isinstance(key, bool) or not isinstance(key, str | int) or (isinstance(key, str) and "__" in key):
        raise TemplateError("what stands between brackets must be a name or a whole number")
    return scope.step(value, key)


_FILTERS: dict[str, Callable[..., Any]] = {
    "default": _default,
    "d": _default,
    "tojson": Scope.json,
    "length": _length,
    "count": _length,
    "upper": _text(str.upper),
    "lower": _text(str.lower),
    "capitalize": _text(str.capitalize),
    "trim": _text(str.strip),
    "join": _joined,
    "first": _end(0),
    "last": _end(-1),
    "round": _round,
    "int": _as_number(int),
    "float": _as_number(float),
    "string": _text(str),
    "truncate": _truncated,
    "concat": _concat,
    "listed": _listed,
    "step": _step,
}

_TESTS: dict[str, Callable[[Any], bool]] = {
    "boolean": lambda value: isinstance(value, bool),
    "defined": lambda value: not isinstance(value, Missing),
    "mapping": lambda value: isinstance(value, dict),
    "none": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "sequence": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "undefined": lambda value: isinstance(value, Missing),
}


def _sandbox() -> Sandbox:
    made = Sandbox(keep_trailing_newline=True, cache_size=0, autoescape=False, optimized=False)
    made.globals.clear()
    made.filters = {name: _scoped(function) for name, function in _FILTERS.items()}
    made.tests = cast("Any", dict(_TESTS))
    return made


SANDBOX = _sandbox()


def tokens(text: str) -> Iterator[tuple[int, str, str]]:
    """Jinja2's tokens of a text: line, kind, text. Raises its TemplateSyntaxError."""
    return SANDBOX.lex(text)


def parsed(source: str) -> nodes.Expr | None:
    """The tree of one expression; None if it is not exactly one. Raises Jinja2's TemplateSyntaxError."""
    body = SANDBOX.parse("{{" + source + "}}").body
    if len(body) != 1 or not isinstance(body[0], nodes.Output) or len(body[0].nodes) != 1:
        return None
    return body[0].nodes[0]


def compiled(tree: nodes.Expr) -> TemplateExpression:
    """A checked tree as a function of its paths' values."""
    result = nodes.Assign(nodes.Name("result", "store", lineno=1), tree, lineno=1)
    template = SANDBOX.from_string(nodes.Template([result], lineno=1))
    return TemplateExpression(template, undefined_to_none=False)
