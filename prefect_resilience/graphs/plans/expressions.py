"""One `{{...}}` of a plan: read by Jinja2, checked, and evaluated on plain data.

The values of an expression's paths (`kg_query.output.items[0].name`) are looked up first, and are passed to
Jinja2's sandbox as plain data. A single path gives the value itself. Sandboxed code reads no attributes,
calls only the filters below, and makes no text longer than `TEXT_LIMIT`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, cast

from jinja2 import TemplateSyntaxError, nodes
from jinja2.environment import TemplateExpression
from jinja2.filters import do_int
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from prefect_resilience.base.policy import nearest
from prefect_resilience.base.text import plural
from prefect_resilience.graphs.plans.lookups import (
    TEXT_LIMIT,
    Absent,
    Rendering,
    TemplateError,
    TemplatePath,
    as_json,
    as_text,
    stepped,
    within,
)
from prefect_resilience.graphs.plans.reading.mistakes import shortened

MOST_TOKENS = 200
KEPT = 2_000
"""Expressions and texts of at most this many characters are cached."""

WORDS = frozenset(
    ["and", "else", "false", "if", "in", "is", "none", "not", "or", "true", "False", "None", "True"]
)
"""Keywords of the template language; no node can have such an id."""


def _number(value: Any, wanted_by: str) -> int | float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    kind = "null" if value is None else f"a {type(value).__name__}"
    kind = f"a missing value: {value}" if isinstance(value, Absent) else kind
    raise TemplateError(f"{wanted_by} needs a number, not {kind}")


def _default(value: Any, fallback: Any = "", falsy: Any = False) -> Any:
    return fallback if isinstance(value, Absent) or (falsy and not value) else value


def _joined(values: Any, between: Any = "") -> str:
    if not isinstance(values, list | Absent):
        raise TemplateError(f"join needs a list, not a {type(values).__name__}")
    parts, between = [as_text(value) for value in cast("list[Any]", values)], as_text(between)
    if sum(map(len, parts)) + len(between) * (len(parts) - 1) > TEXT_LIMIT:
        within(" " * (TEXT_LIMIT + 1))
    return between.join(parts)


def _changed(change: Callable[[str], str]) -> Callable[[Any], str]:
    return lambda value: change(as_text(value))


def _listed(values: list[Any]) -> list[Any]:
    """A list literal, with null for each missing value."""
    return [value.use() if isinstance(value, Absent) else value for value in values]


FILTERS: dict[str, tuple[int, Callable[..., Any]]] = {
    "default": (2, _default),
    "tojson": (0, as_json),
    "length": (0, len),
    "upper": (0, _changed(str.upper)),
    "lower": (0, _changed(str.lower)),
    "trim": (0, _changed(str.strip)),
    "join": (1, _joined),
    "int": (1, do_int),
}
"""The filters, and the most values that each takes."""

TESTS: dict[str, Callable[[Any], bool]] = {
    "defined": lambda value: not isinstance(value, Absent),
    "none": lambda value: value is None,
    "undefined": lambda value: isinstance(value, Absent),
}


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja2 on plain data: a step looks up a key or an item, never an attribute."""

    intercepted_binops: frozenset[str] = frozenset({"+", "-"})

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(argument, bool) or not isinstance(argument, str | int) or "__" in str(argument):
            raise TemplateError("the brackets must contain a name or a whole number")
        return stepped(obj, argument)

    def getattr(self, obj: Any, attribute: str) -> Any:
        return self.getitem(obj, attribute)

    def is_safe_callable(self, obj: Any) -> bool:
        return False

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        for value in (left, right):
            if isinstance(value, Absent):
                raise TemplateError(f"'{operator}' has a missing value: {value}")
        if operator == "+" and isinstance(left, str) and isinstance(right, str):
            return within(left + right)
        if operator == "+" and isinstance(left, list) and isinstance(right, list):
            return [*cast("list[Any]", left), *cast("list[Any]", right)]
        first, second = _number(left, f"'{operator}'"), _number(right, f"'{operator}'")
        return first + second if operator == "+" else first - second


SANDBOX = _Sandbox(keep_trailing_newline=True, cache_size=0, autoescape=False, optimized=False)
SANDBOX.globals.clear()
SANDBOX.filters = cast(
    "Any", {name: function for name, (_, function) in FILTERS.items()} | {"listed": _listed}
)
SANDBOX.tests = cast("Any", TESTS)


@dataclass(frozen=True)
class Expression:
    """One `{{...}}`: it looks up `paths` and computes `tree` with the values; None if it is only a path.

    `mistakes` are sentences; an expression that has any is never evaluated.
    """

    source: str
    paths: tuple[TemplatePath, ...] = ()
    tree: nodes.Expr | None = None
    mistakes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{{{{ {shortened(self.source.strip(), 60)} }}}}"

    @property
    def computes(self) -> bool:
        """Whether it is more than a path."""
        return self.tree is not None or bool(self.mistakes)

    @cached_property
    def _compiled(self) -> TemplateExpression:
        result = nodes.Assign(nodes.Name("result", "store", lineno=1), self.tree, lineno=1)
        template = SANDBOX.from_string(nodes.Template([result], lineno=1))
        return TemplateExpression(template, undefined_to_none=False)

    def value(self, rendering: Rendering, place: str) -> Any:
        """The value, which may be any object; None if it is missing. Raises TemplateError."""
        if self.mistakes:
            raise TemplateError(self.mistakes[0])
        rendering.place = f"{place}: {self}"
        values = [rendering.value(path) for path in self.paths]
        if self.tree is None:
            value = values[0]
        else:
            try:
                value = self._compiled({f"p{n}": rendering.plain(value) for n, value in enumerate(values)})
            except TemplateError:
                raise
            except Exception as error:  # noqa: BLE001 - operators raise many kinds of errors
                missing = [str(value) for value in values if isinstance(value, Absent)]
                why = missing[0] if missing else shortened(str(error), 200)
                raise TemplateError(f"{self} cannot be evaluated: {why}") from None
        return value.use() if isinstance(value, Absent) else value


_LONE = re.compile(r"\s*([^\W\d]\w*)((?:\.[^\W\d]\w*|\[\d{1,9}\])*)\s*")
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")


def lone_path(source: str) -> Expression | None:
    """An expression that is only a path, read without the parser; None for any other expression."""
    found = _LONE.fullmatch(source)
    if found is None or "__" in source or found[1] in WORDS or found[1] == "nodes":
        return None
    steps = tuple(name or int(index) for name, index in _STEP.findall(found[2]))
    return Expression(source, (TemplatePath(found[1], steps),))


def expression(source: str) -> Expression:
    """The expression between `{{` and `}}`, with its mistakes. Short ones are cached."""
    return lone_path(source) or (_read if len(source) <= KEPT else _read.__wrapped__)(source)


@lru_cache(maxsize=4096)
def _read(source: str) -> Expression:
    rewriting = _Rewriting()
    tree: Any = None
    try:
        count = sum(kind != "whitespace" for _, kind, _ in SANDBOX.lex("{{" + source + "}}")) - 2
        if count > MOST_TOKENS:
            rewriting.mistakes[
                f"an expression may have at most {MOST_TOKENS} parts: compute this in an action"
            ] = None
        else:
            tree = rewriting.visit(_parsed(source))
    except TemplateSyntaxError as error:
        says = str(error.message or "").replace("end of print statement", "its end")
        rewriting.refuse(f"invalid expression: {shortened(says[:1].lower() + says[1:], 160)}")
    except (RecursionError, ValueError, OverflowError):
        rewriting.refuse("the expression cannot be read")
    made = Expression(source, tuple(rewriting.paths), tree)
    if len(made.paths) == 1 and isinstance(tree, nodes.Name):
        made = Expression(source, made.paths)
    if rewriting.mistakes:
        return Expression(source, mistakes=tuple(f"{made}: {says}" for says in rewriting.mistakes))
    return made


def _parsed(source: str) -> nodes.Expr:
    body = SANDBOX.parse("{{" + source + "}}").body
    if len(body) != 1 or not isinstance(body[0], nodes.Output) or len(body[0].nodes) != 1:
        raise TemplateSyntaxError("write one value", 1)
    return body[0].nodes[0]


class _Rewriting(NodeTransformer):
    """Collects the mistakes of a template, and replaces each path by a name: p0, p1..."""

    def __init__(self) -> None:
        self.paths: list[TemplatePath] = []
        self.mistakes: dict[str, None] = {}

    def refuse(self, says: str) -> None:
        self.mistakes[says] = None

    def generic_visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        kind = type(node).__name__
        if isinstance(node, _ALLOWED) and kind not in _REFUSALS:
            return super().generic_visit(node)
        self.refuse(_REFUSALS.get(kind, f"{kind} is not allowed in a template"))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        return _filter(self.visit(nodes.List(node.nodes, lineno=1)), "join")

    def visit_List(self, node: nodes.List) -> nodes.Node:
        return _filter(cast("nodes.Expr", self.generic_visit(node)), "listed")

    def visit_CondExpr(self, node: nodes.CondExpr) -> nodes.Node:
        if node.expr2 is None:
            node.expr2 = nodes.Const(None, lineno=1)
        return self.generic_visit(node)

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:
        most = FILTERS[node.name][0] if node.name in FILTERS else 0
        if node.name not in FILTERS:
            self.refuse(f"unknown filter {node.name!r}{nearest(node.name, FILTERS)}")
        elif node.kwargs or node.dyn_args or node.dyn_kwargs or len(node.args) > most:
            many = f"at most {plural(most, 'argument')}, by position" if most else "no arguments"
            self.refuse(f"the filter {node.name!r} takes {many}")
        return self.generic_visit(node)

    def visit_Test(self, node: nodes.Test) -> nodes.Node:
        if node.name not in TESTS:
            self.refuse(f"unknown test {node.name!r}{nearest(node.name, TESTS)}")
        elif node.args or node.kwargs or node.dyn_args or node.dyn_kwargs:
            self.refuse(f"the test {node.name!r} takes no arguments")
        return self.generic_visit(node)

    def visit_Name(self, node: Any) -> nodes.Node:
        """Replace a path by a name; visit the parts of any other expression."""
        path = self._path(node)
        if path is None:
            return self.generic_visit(node)
        if path.root == "nodes" and not path.node:
            self.refuse('write nodes["the node\'s id"].output, with the id in quotes')
        if path not in self.paths:
            self.paths.append(path)
        return nodes.Name(f"p{self.paths.index(path)}", "load", lineno=1)

    visit_Getattr = visit_Getitem = visit_Name

    def _path(self, node: nodes.Node) -> TemplatePath | None:
        """The tree as a path; None if it computes something."""
        if isinstance(node, nodes.Name):
            return TemplatePath(node.name)
        if not isinstance(node, nodes.Getattr | nodes.Getitem):
            return None
        base, key = self._path(node.node), _key(node)
        if isinstance(key, nodes.Node):
            return None
        if isinstance(key, bool) or not isinstance(key, str | int):
            self.refuse("write a name or a whole number between the brackets")
        if base == ("nodes", (), False) and isinstance(key, str):
            return TemplatePath(key, node=True)
        if isinstance(key, str) and "__" in key:
            self.refuse(f"{shortened(key)!r}: names with '__' are not allowed in a template")
        return base and base._replace(steps=(*base.steps, key))


def _key(node: nodes.Getattr | nodes.Getitem) -> Any:
    """A literal key, else the expression that computes it."""
    key: Any = node.attr if isinstance(node, nodes.Getattr) else node.arg
    if isinstance(key, nodes.Neg) and isinstance(key.node, nodes.Const) and type(key.node.value) is int:
        return -key.node.value
    return key.value if isinstance(key, nodes.Const) else key


def _filter(value: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(value, name, [], [], None, None, lineno=1)


_ALLOWED = (
    *(nodes.BinExpr, nodes.UnaryExpr, nodes.Literal, nodes.CondExpr, nodes.Compare, nodes.Operand),
    *(nodes.Filter, nodes.Test, nodes.Getattr, nodes.Getitem),
)
_REFUSALS = {
    kind: f"'{sign}' is not allowed in a template: compute this in an action"
    for kind, sign in {"Mul": "*", "Div": "/", "FloorDiv": "//", "Mod": "%", "Pow": "**"}.items()
} | {
    "Call": "calls are not allowed in a template: write a path such as kg_query.output.text, or a filter "
    "such as | upper",
    "Pos": "'+' needs a value on each side",
    "Slice": "slices are not allowed in a template: use first, last or truncate, or slice in an action",
    "Tuple": "write one value, or a list as in [a, b]",
    "Dict": "objects are not allowed in a template: write the object in the input, with templates inside",
}
