"""Templates in a plan, such as `{{kg_query.output.text}}`: read by Jinja2, checked, and filled in.

    {{node.output.path}}     a part of a node's output         {{node.status}}  {{node.error.code}}
    {{nodes["my-node"].output}}   the same for an id that is not a plain name
    {{state._last_error.code}}    {{inputs.drug}}    in a fan-out {{item}} (or its `as` name) and {{index}}

Filters, comparisons, `and`/`or`/`not`, `a if b else c`, `+` and `-` are allowed; calls and statements
are not. A string that is exactly one `{{...}}` gives the value itself. Any other template gives a string:
empty for null and for the missing output of a skipped or failed node, `true` for true, JSON for lists and
objects. A missing part of a value that exists is an error, except in `default` and `is defined`. A rendered
value is never rendered again. `{{ "{{" }}` writes the braces themselves. Keys are not templates.

The values of paths are looked up first, and are passed to Jinja2's sandbox as plain data. Sandboxed code
reads no attributes, calls only the filters below, and makes no text longer than `TEXT_LIMIT`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, cast

from jinja2 import TemplateSyntaxError, Undefined, UndefinedError, nodes
from jinja2.environment import TemplateExpression
from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.tests import TESTS as JINJA_TESTS
from jinja2.visitor import NodeTransformer

from prefect_resilience.base.plain import shortly
from prefect_resilience.base.policy import nearest
from prefect_resilience.graphs.plans.lookups import (
    NODE_FIELDS,
    Rendering,
    TemplateError,
    TemplatePath,
    as_json,
    as_plain,
    as_text,
    join_text,
    step_into,
    within,
)
from prefect_resilience.graphs.plans.reading.mistakes import Names, Place, inside, shorten

LONGEST_TEMPLATE = 100_000
LONGEST_CACHED = 2_000
ITEM_NAMES = frozenset({"item", "index"})
RESERVED = frozenset({"state", "inputs", "nodes"}) | ITEM_NAMES
"""Names with a special meaning in templates; no node can have such an id."""
WORDS = frozenset(
    ["and", "else", "false", "if", "in", "is", "none", "not", "or", "true", "False", "None", "True"]
)
"""Keywords of the template language; no node can have such an id."""

FILTERS = ("default", "int", "join", "length", "lower", "tojson", "trim", "upper")
TESTS = ("defined", "none", "undefined")


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja2 on plain data: a step looks up a key or an item, never an attribute."""

    intercepted_binops: frozenset[str] = frozenset({"+", "-"})

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(argument, bool) or not isinstance(argument, str | int) or "__" in str(argument):
            raise TemplateError("the brackets must contain a name or a whole number")
        return step_into(obj, argument)

    def getattr(self, obj: Any, attribute: str) -> Any:
        return self.getitem(obj, attribute)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        value = super().call_binop(context, operator, left, right)
        return within(value) if isinstance(value, str) else value


SANDBOX = _Sandbox(keep_trailing_newline=True, cache_size=0, autoescape=False, optimized=False)
SANDBOX.globals.clear()
_OWN: dict[str, Any] = {"join": join_text, "tojson": as_json}
SANDBOX.filters = cast("Any", {name: JINJA_FILTERS[name] for name in FILTERS} | _OWN)
SANDBOX.tests = cast("Any", {name: JINJA_TESTS[name] for name in TESTS})


@dataclass(frozen=True)
class Template:
    """A text that was read: its `parts` are texts and paths, unless it computes the list `tree` with `paths`.

    `mistakes` are sentences; a template that has any is never filled in.
    """

    text: str
    parts: tuple[str | TemplatePath, ...] = ()
    paths: tuple[TemplatePath, ...] = ()
    tree: nodes.List | None = None
    mistakes: tuple[str, ...] = ()

    @property
    def is_one_value(self) -> bool:
        """Whether it is exactly one `{{...}}`, valid or not. Such a text gives a value of any type."""
        if self.tree is not None:
            return len(self.tree.items) == 1
        return bool(self.mistakes) or (len(self.parts) == 1 and self.parts == self.paths)

    @cached_property
    def _expression(self) -> TemplateExpression:
        result = nodes.Assign(nodes.Name("result", "store", lineno=1), self.tree, lineno=1)
        return TemplateExpression(SANDBOX.from_string(nodes.Template([result], lineno=1)), False)

    def fill(self, rendering: Rendering) -> Any:
        """The text with its values; the value itself if it is exactly one `{{...}}`. Raises TemplateError."""
        if self.mistakes:
            raise TemplateError(self.mistakes[0])
        if self.tree is None:
            values = [rendering.value(part) if isinstance(part, tuple) else part for part in self.parts]
        else:
            values = [as_plain(rendering.value(path)) for path in self.paths]
        try:
            if self.tree is not None:
                values = self._compute(values)
            if not self.is_one_value:
                return join_text([as_plain(value) for value in values])
            if isinstance(values[0], Undefined):
                return as_text(values[0]) or None
            return values[0] if self.tree is None else as_plain(values[0])
        except UndefinedError as error:
            raise TemplateError(f"{error}; for a part that may be missing, write | default(...)") from None

    def _compute(self, values: list[Any]) -> list[Any]:
        try:
            results: list[Any] = cast("Any", self._expression)(
                {f"p{n}": value for n, value in enumerate(values)}
            )
        except TemplateError:
            raise
        except Exception as error:  # noqa: BLE001 - operators raise many kinds of errors
            says = f"{shortly(self.text)} cannot be evaluated: {shorten(str(error), 200)}"
            raise TemplateError(says) from None
        for result in results:
            if isinstance(result, list):
                join_text([part for part in cast("list[Any]", result) if isinstance(part, Undefined)])
        return results


MARKS = re.compile(r"\{\{|\{%|\{#")
_PATH = re.compile(r"\{\{\s*([^\W\d]\w*)((?:\.[^\W\d]\w*|\[\d{1,9}\])*)\s*\}\}")
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")


def read_template(text: str) -> Template:
    """The text with its parts and its mistakes. Short ones are cached."""
    if len(text) > LONGEST_TEMPLATE:
        return Template(text, mistakes=(f"a template may have at most {LONGEST_TEMPLATE:,} characters",))
    return (_read if len(text) <= LONGEST_CACHED else _read.__wrapped__)(text)


@lru_cache(maxsize=4096)
def _read(text: str) -> Template:
    reader = _TemplateReader()
    try:
        return _of_paths(text) or reader.template(text)
    except TemplateSyntaxError as error:
        says = shorten(str(error.message), 160).replace("end of print statement", "}}")
        says = f"these braces are not a valid template: {says[:1].lower()}{says[1:]}"
        return Template(text, mistakes=(f'{says}; to write literal braces: {{{{ "{{{{" }}}}',))
    except (RecursionError, ValueError, OverflowError):
        return Template(
            text, mistakes=(f"{shortly(text)} cannot be read: it is nested too deep or too long",)
        )


def _of_paths(text: str) -> Template | None:
    """A text in which all templates are paths, read without the parser; None for any other text."""
    split = _PATH.split(text)
    data, roots = split[::3], split[1::3]
    if any(MARKS.search(part) or "}}" in part for part in data) or "__" in text:
        return None
    if not WORDS.isdisjoint(roots) or "nodes" in roots:
        return None
    parts: list[str | TemplatePath] = [data[0]]
    for root, steps, after in zip(roots, split[2::3], data[1:], strict=True):
        names = tuple(name or int(index) for name, index in _STEP.findall(steps))
        parts += [TemplatePath(root, names), after]
    filled = tuple(part for part in parts if part)
    return Template(text, filled, tuple(part for part in filled if isinstance(part, tuple)))


class _TemplateReader(NodeTransformer):
    """Collects the mistakes of a template, and replaces each path by a name: p0, p1..."""

    def __init__(self) -> None:
        self.paths: list[TemplatePath] = []
        self.mistakes: dict[str, None] = {}

    def template(self, text: str) -> Template:
        for _, kind, value in SANDBOX.lex(text):
            if kind in ("block_begin", "comment_begin", "raw_begin"):
                write = f'to write it literally: {{{{ "{value[:2]}" }}}}'
                self.refuse(f"{value[:2]!r} begins a statement or a comment; {write}")
        if not self.mistakes:
            (output,) = SANDBOX.parse(text).body
            items = [self.visit(part) for part in cast("nodes.Output", output).nodes]
            if not self.mistakes:
                return Template(text, (), tuple(self.paths), nodes.List(items, lineno=1))
        return Template(text, mistakes=tuple(self.mistakes))

    def refuse(self, says: str) -> None:
        self.mistakes[says] = None

    def generic_visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        if type(node) in _ALLOWED:
            return super().generic_visit(node)
        kind = getattr(node, "operator", type(node).__name__.lower())
        self.refuse(f"{kind!r} is not allowed in a template: write a path or a filter, or use an action")
        return node

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:
        return nodes.Const(node.data, lineno=1)

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:
        return self._call(node, "filter", FILTERS)

    def visit_Test(self, node: nodes.Test) -> nodes.Node:
        return self._call(node, "test", TESTS)

    def _call(self, node: nodes.Filter | nodes.Test, kind: str, names: tuple[str, ...]) -> nodes.Node:
        if node.name not in names:
            self.refuse(f"unknown {kind} {node.name!r}{nearest(node.name, names)}")
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
            self.refuse(f"{shorten(key)!r}: names with '__' are not allowed in a template")
        return base and base._replace(steps=(*base.steps, key))


def _key(node: nodes.Getattr | nodes.Getitem) -> Any:
    """A literal key, else the expression that computes it."""
    key: Any = node.attr if isinstance(node, nodes.Getattr) else node.arg
    try:
        return key.as_const() if isinstance(key, nodes.Expr) else key
    except nodes.Impossible:
        return key


_ALLOWED = {
    *(nodes.Const, nodes.List, nodes.Name, nodes.Getattr, nodes.Getitem, nodes.Filter, nodes.Test),
    *(nodes.And, nodes.Or, nodes.Not, nodes.CondExpr, nodes.Compare, nodes.Operand),
    *(nodes.Add, nodes.Sub, nodes.Neg),
}


def texts(value: Any, place: Place = ()) -> Iterator[tuple[Place, str]]:
    """Every template in a value, with its place."""
    if isinstance(value, str):
        if "{" in value and MARKS.search(value):
            yield place, value
    elif isinstance(value, dict | Mapping | list | tuple):
        parts: Any = cast("Any", value)
        for key, part in parts.items() if isinstance(value, dict | Mapping) else enumerate(parts):
            if isinstance(part, str | dict | list | tuple | Mapping):
                yield from texts(part, (*place, key))


def references(value: Any, *, names: Collection[str] = ITEM_NAMES) -> set[str]:
    """The ids of the nodes that a value's templates use. `names` are the other names of a fan-out."""
    paths = (path for _, text in texts(value) for path in read_template(text).paths)
    return {path.root for path in paths if is_node(path, names)}


def is_node(path: TemplatePath, names: Collection[str] = ITEM_NAMES) -> bool:
    return path.node or not (path.root in RESERVED or path.root in names)


def path_mistake(path: TemplatePath, nodes: Collection[str], names: Collection[str], suggest: Names) -> str:
    """The mistake in a path, "" if there is none.

    `nodes` are the ids that may be named, `names` the item's name and `index` inside a fan-out.
    """
    if not path.node:
        if path.root in names or path.root in ("state", "inputs"):
            return ""
        if path.root in ITEM_NAMES:
            return f"{path.root!r} exists only in the input of a node with 'map'"
    if path.root not in nodes:
        return f"unknown node {shortly(path.root)}{suggest.suggestion(path.root)}"
    if not path.steps:
        return f"write {path}.output, or another of {', '.join(NODE_FIELDS)}"
    if path.steps[0] not in NODE_FIELDS:
        near = Names(NODE_FIELDS).suggestion(str(path.steps[0]))
        return f"a node has no field {shortly(path.steps[0])}{near}"
    return ""


def render(value: Any, rendering: Rendering, *, place: str = "input") -> Any:
    """A value with every template in it filled in. Raises TemplateError, which names the place.

    Mappings and lists are copied, keys stay as they are. A rendered value is not rendered again.
    """
    if isinstance(value, Mapping):
        fields = cast("Mapping[Any, Any]", value)
        return {key: render(part, rendering, place=inside(place, key)) for key, part in fields.items()}
    if isinstance(value, list | tuple):
        items = cast("list[Any]", value)
        return [render(part, rendering, place=f"{place}[{n}]") for n, part in enumerate(items)]
    if not isinstance(value, str) or not MARKS.search(value):
        return value
    try:
        return read_template(value).fill(rendering)
    except TemplateError as error:
        raise TemplateError(f"{place}: {error}") from None
