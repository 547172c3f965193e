"""What may stand between `{{` and `}}`: read by Jinja2, checked against a list of what is allowed.

A path (`kg_query.output.items[0].name`) is looked up directly. Anything more is compiled by Jinja2's sandbox,
with the values of its paths put in from outside: compiled code sees data only, no object's attributes, and it
calls nothing but the filters below. No part of an expression takes longer than its operands are large, an
expression has at most `MOST_TOKENS` parts, and no text that it makes passes `TEXT_LIMIT`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from prefect_resilience.base.policy import nearest
from prefect_resilience.graphs.plans.reading.mistakes import shortened
from prefect_resilience.graphs.plans.templates.lookups import Missing, Path, Scope, TemplateError

if TYPE_CHECKING:
    from jinja2 import nodes
    from jinja2.environment import TemplateExpression

LONGEST_TEMPLATE = 100_000
LONGEST_KEPT = 2_000
MOST_TOKENS = 200
MOST_BRACKETS = 10

FILTERS = {
    "default": 2,
    "d": 2,
    "tojson": 0,
    "length": 0,
    "count": 0,
    "upper": 0,
    "lower": 0,
    "capitalize": 0,
    "trim": 0,
    "join": 1,
    "first": 0,
    "last": 0,
    "round": 1,
    "int": 1,
    "float": 1,
    "string": 0,
    "truncate": 1,
}
"""The filters, and how many values each takes at most."""

TESTS = ("boolean", "defined", "mapping", "none", "number", "sequence", "string", "undefined")

WORDS = frozenset(
    ["and", "else", "false", "if", "in", "is", "none", "not", "or", "true", "False", "None", "True"]
)
"""Words of the template language, which name nothing."""

_NAME = r"[^\W\d]\w*"
_PATH = rf"""{_NAME}(?:\.{_NAME}|\[\d{{1,9}}\]|\["[^"\\\n]*"\]|\['[^'\\\n]*'\])*"""
_SIMPLE = re.compile(rf"\s*({_PATH})\s*")
_STEP = re.compile(rf"""\.({_NAME})|\[(\d+)\]|\["([^"]*)"\]|\['([^']*)'\]""")

TOO_LARGE = (
    f"an expression has at most {MOST_TOKENS} parts and {MOST_BRACKETS} brackets inside each other: "
    f"compute this in an action"
)


@dataclass(frozen=True)
class Expression:
    """One `{{...}}`. `paths` are what it looks up, `tree` what it does with that: None for a lone path.

    `mistakes` are sentences; an expression that has any is never evaluated.
    """

    source: str
    paths: tuple[Path, ...] = ()
    tree: nodes.Expr | None = None
    mistakes: tuple[str, ...] = ()
    _compiled: list[TemplateExpression] = field(default_factory=list[Any], compare=False, repr=False)

    @property
    def computes(self) -> bool:
        """Whether it is more than a path."""
        return self.tree is not None or bool(self.mistakes)

    def __str__(self) -> str:
        return f"{{{{ {shortened(self.source.strip(), 60)} }}}}"

    def value(self, scope: Scope) -> Any:
        """What it gives: any object, or `Missing`. Raises TemplateError."""
        if self.tree is None:
            return scope.value(self.paths[0])
        from prefect_resilience.graphs.plans.templates.sandbox import compiled

        if not self._compiled:
            self._compiled.append(compiled(self.tree))
        values: dict[str, Any] = {
            f"p{n}": scope.plain(scope.value(path)) for n, path in enumerate(self.paths)
        }
        try:
            return self._compiled[0](scope=scope, **values)
        except TemplateError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever operators say of values that do not fit
            raise TemplateError(f"{self} cannot be evaluated: {_why(error, values.values())}") from None


def _why(error: Exception, values: Iterable[Any]) -> str:
    missing = [str(value) for value in values if isinstance(value, Missing)]
    return missing[0] if missing else shortened(str(error), 200)


def expression(source: str, tokens: int = 0, brackets: int = 0) -> Expression:
    """An expression that was read before is the same one."""
    lone = lone_path(source)
    if lone is not None:
        return lone
    if tokens > MOST_TOKENS or brackets > MOST_BRACKETS:
        return Expression(source, mistakes=(TOO_LARGE,))
    return _kept_complex(source) if len(source) <= LONGEST_KEPT else _complex(source)


def lone_path(source: str) -> Expression | None:
    """An expression that is nothing but a path, which needs no Jinja2; None if it is more, or wrong."""
    simple = _SIMPLE.fullmatch(source)
    path = _simple_path(simple[1]) if simple and "__" not in source else None
    return None if path is None else Expression(source, (path,))


def _simple_path(text: str) -> Path | None:
    root = re.match(r"\w+", text)
    assert root
    if root[0] in WORDS or root[0] == "nodes":
        return None
    steps = tuple(
        int(found[2]) if found[2] else next(part for part in found.groups() if part is not None)
        for found in _STEP.finditer(text, root.end())
    )
    return Path(root[0], steps)


def _complex(source: str) -> Expression:
    from jinja2 import TemplateSyntaxError

    from prefect_resilience.graphs.plans.templates.sandbox import parsed

    try:
        tree = parsed(source)
    except TemplateSyntaxError as error:
        return Expression(source, mistakes=(f"no expression: {_jinja_says(error)}",))
    except (RecursionError, ValueError, OverflowError):
        return Expression(source, mistakes=("no expression that can be read",))
    if tree is None:
        return Expression(source, mistakes=("no expression: write one value",))
    walk = Walk()
    rewritten = walk.of(tree)
    return Expression(source, tuple(walk.paths), rewritten, tuple(dict.fromkeys(walk.mistakes)))


_kept_complex = lru_cache(maxsize=4096)(_complex)


def _jinja_says(error: Any) -> str:
    says = str(error.message or "").replace("end of print statement", "its end")
    return shortened(says[:1].lower() + says[1:], 160)


class Walk:
    """Goes through a tree: notes what is not allowed, and puts names in the place of paths."""

    def __init__(self) -> None:
        self.paths: list[Path] = []
        self.mistakes: list[str] = []

    def of(self, node: nodes.Expr) -> nodes.Expr:
        from jinja2 import nodes as n

        if isinstance(node, n.Name | n.Getattr | n.Getitem):
            return self._looked_up(node)
        match node:
            case n.Const() | n.TemplateData():
                return node
            case n.And() | n.Or() | n.Add() | n.Sub():
                return type(node)(self.of(node.left), self.of(node.right), lineno=1)
            case n.Not() | n.Neg():
                return type(node)(self.of(node.node), lineno=1)
            case n.CondExpr():
                otherwise = self.of(node.expr2) if node.expr2 is not None else n.Const(None, lineno=1)
                return n.CondExpr(self.of(node.test), self.of(node.expr1), otherwise, lineno=1)
            case n.Compare():
                ops = [n.Operand(op.op, self.of(op.expr), lineno=1) for op in node.ops]
                return n.Compare(self.of(node.expr), ops, lineno=1)
            case n.Concat() | n.List():
                parts = self._list(node)
                return _filter(parts, "concat" if isinstance(node, n.Concat) else "listed")
            case n.Filter():
                return self._filtered(node)
            case n.Test():
                return self._tested(node)
            case _:
                return self._refused(node)

    def _list(self, node: Any) -> nodes.List:
        from jinja2 import nodes as n

        items: list[n.Expr] = node.nodes if isinstance(node, n.Concat) else node.items
        return n.List([self.of(item) for item in items], lineno=1)

    def _filtered(self, node: nodes.Filter) -> nodes.Expr:
        args = list(node.args)
        if node.name not in FILTERS:
            self.mistakes.append(f"there is no filter {node.name!r}{nearest(node.name, FILTERS)}")
        elif node.kwargs or node.dyn_args or node.dyn_kwargs or len(args) > FILTERS[node.name]:
            most = f"at most {FILTERS[node.name]}" if FILTERS[node.name] else "no"
            self.mistakes.append(f"the filter {node.name!r} takes {most} values, without names")
        return _filter(self.of(cast("nodes.Expr", node.node)), node.name, [self.of(arg) for arg in args])

    def _tested(self, node: nodes.Test) -> nodes.Expr:
        from jinja2 import nodes as n

        if node.name not in TESTS:
            self.mistakes.append(f"there is no test {node.name!r}{nearest(node.name, TESTS)}")
        elif node.args or node.kwargs or node.dyn_args or node.dyn_kwargs:
            self.mistakes.append(f"the test {node.name!r} takes no values")
        return n.Test(self.of(node.node), node.name, [], [], None, None, lineno=1)

    def _refused(self, node: nodes.Expr) -> nodes.Expr:
        from jinja2 import nodes as n

        kind = type(node).__name__
        self.mistakes.append(_REFUSALS.get(kind, f"{kind} is not allowed in a template"))
        for child in node.iter_child_nodes(exclude=("args", "kwargs")):
            if isinstance(child, n.Expr) and kind != "Call":
                self.of(child)
        return n.Const(None, lineno=1)

    def _looked_up(self, node: nodes.Expr) -> nodes.Expr:
        """A path becomes a name whose value is put in; a step on any other value stays one."""
        from jinja2 import nodes as n

        steps: list[str | int | n.Expr] = []
        base: n.Expr = node
        while isinstance(base, n.Getattr | n.Getitem):
            steps.append(self._step(base))
            base = base.node
        steps.reverse()
        inner = steps[1:] if isinstance(base, n.Name) and base.name == "nodes" else steps
        for step in inner:
            if isinstance(step, str) and "__" in step:
                self.mistakes.append(f"{shortened(step)!r}: names with '__' are not looked up")
        if not isinstance(base, n.Name):
            return self._stepped(self.of(base), steps)
        fixed = next((at for at, step in enumerate(steps) if isinstance(step, n.Expr)), len(steps))
        named = self._named(base.name, cast("list[str | int]", steps[:fixed]), whole=fixed == len(steps))
        return self._stepped(named, steps[fixed:])

    def _named(self, root: str, steps: list[str | int], *, whole: bool) -> nodes.Expr:
        from jinja2 import nodes as n

        path = Path(root, tuple(steps))
        if root == "nodes":
            if not steps or not isinstance(steps[0], str):
                self.mistakes.append('write nodes["the node\'s id"].output, with the id in quotes')
                return n.Const(None, lineno=1)
            path = Path(steps[0], tuple(steps[1:]), node=True)
        if path not in self.paths:
            self.paths.append(path)
        return n.Name(f"p{self.paths.index(path)}", "load", lineno=1)

    def _stepped(self, base: nodes.Expr, steps: list[str | int | nodes.Expr]) -> nodes.Expr:
        from jinja2 import nodes as n

        for step in steps:
            key = step if isinstance(step, n.Expr) else n.Const(step, lineno=1)
            base = _filter(base, "step", [key])
        return base

    def _step(self, node: nodes.Getattr | nodes.Getitem) -> str | int | nodes.Expr:
        from jinja2 import nodes as n

        key: Any = node.attr if isinstance(node, n.Getattr) else node.arg
        if isinstance(key, n.Neg) and isinstance(key.node, n.Const) and isinstance(key.node.value, int):
            key = -key.node.value
        if isinstance(key, n.Const):
            key = key.value
        if isinstance(key, str):
            return key
        if isinstance(key, int) and not isinstance(key, bool):
            return key
        if isinstance(key, n.Expr):
            return self.of(key)
        self.mistakes.append("write a name or a whole number between the brackets")
        return ""


def _filter(value: nodes.Expr, name: str, args: list[nodes.Expr] | None = None) -> nodes.Filter:
    from jinja2 import nodes as n

    return n.Filter(value, name, args or [], [], None, None, lineno=1)


_REFUSALS = {
    "Call": "templates call nothing: write a path such as kg_query.output.text, or a filter such as | upper",
    "Mul": "'*' is not allowed in a template: compute this in an action",
    "Div": "'/' is not allowed in a template: compute this in an action",
    "FloorDiv": "'//' is not allowed in a template: compute this in an action",
    "Mod": "'%' is not allowed in a template: compute this in an action",
    "Pow": "'**' is not allowed in a template: compute this in an action",
    "Pos": "'+' stands between two values",
    "Slice": "slices are not allowed in a template: use first, last or truncate, or cut in an action",
    "Tuple": "write one value; several stand in a list [a, b]",
    "Dict": "objects are not allowed in a template: write the object in the input, with templates in it",
}
