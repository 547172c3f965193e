"""Templates in a plan: `{{kg_query.output.text}}`, and what each one gives.

    {{node.output.path}}     a part of what a node gave        {{node.status}}  {{node.error.code}}
    {{nodes["my-node"].output}}   the same for an id that is no plain name
    {{state._last_error.code}}    {{inputs.drug}}    in a fan-out {{item}} (or its `as` name) and {{index}}

Filters, comparisons, `and`/`or`/`not`, `a if b else c`, `+`, `-` and `~` may be used; nothing is called, and
there are no statements. A text that is exactly one `{{...}}` gives the value itself, any other gives text:
nothing for null and for what a skipped or failed node did not give, `true`, JSON for lists and objects. What
is missing in a value that exists gives nothing too, with a warning. What a template gives is never read as a
template again. `{{ "{{" }}` writes the braces themselves. Keys are no templates.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, cast

from prefect_resilience.graphs.plans.reading.mistakes import Mistake, Names, quoted, shortened, suggestion
from prefect_resilience.graphs.plans.templates.expressions import (
    LONGEST_TEMPLATE,
    Expression,
    expression,
    lone_path,
)
from prefect_resilience.graphs.plans.templates.lookups import (
    NODE_FIELDS,
    TEXT_LIMIT,
    Missing,
    Outcome,
    Path,
    Scope,
    TemplateError,
    View,
    within,
)

__all__ = [
    "Outcome",
    "Rendered",
    "TemplateError",
    "View",
    "check_template",
    "has_template",
    "is_one_template",
    "references",
    "render",
]

MARKS = re.compile(r"\{\{|\{%|\{#")
ITEM_NAMES = frozenset({"item", "index"})
RESERVED = frozenset({"state", "inputs", "nodes"}) | ITEM_NAMES
"""Names that mean something of their own in a template, so that no node can have them."""

KEPT = 2_000
"""Texts up to this length are kept in the cache of what was read."""


class Rendered(NamedTuple):
    """A value with its templates filled in; `warnings` name the place, the expression and what is missing."""

    value: Any
    warnings: tuple[str, ...] = ()


class Unreadable(NamedTuple):
    """A text whose braces are not those of a template."""

    mistake: str


Pieces = tuple[str | Expression, ...]


def has_template(value: Any) -> bool:
    """Whether anything in a value is a template."""
    return any(True for _ in texts(value, ""))


def is_one_template(text: str) -> bool:
    """Whether a text is nothing but one `{{...}}`, so that it gives a value; or tries to be one."""
    found = pieces(text)
    if isinstance(found, Unreadable):
        return True
    return len(found) == 1 and isinstance(found[0], Expression)


def texts(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """Every text of a value that is a template, with its place: `input.prompts[1]`."""
    if isinstance(value, str):
        if MARKS.search(value):
            yield place, value
        return
    waiting: list[tuple[str, Any]] = [(place, value)]
    while waiting:
        at, found = waiting.pop()
        deeper: list[tuple[str, Any]] = []
        for key, part in _parts(found):
            if isinstance(part, str):
                if "{" in part and MARKS.search(part):
                    yield inside(at, key), part
            elif isinstance(part, dict | list | tuple | Mapping):
                deeper.append((inside(at, key), cast("Any", part)))
        waiting.extend(reversed(deeper))


def _parts(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return cast("Mapping[Any, Any]", value).items()
    return enumerate(cast("list[Any]", value)) if isinstance(value, list | tuple) else ()


def inside(place: str, key: Any) -> str:
    """The place of a field in an object, or of an item in a list."""
    if isinstance(key, int):
        return f"{place}[{key}]"
    if isinstance(key, str) and _FIELD.fullmatch(key):
        return f"{place}.{key}" if place else key
    return f"{place}[{quoted(key, 40)}]"


_FIELD = re.compile(r"[\w-]+")


def pieces(text: str) -> Pieces | Unreadable:
    """A text cut into what is written out and what is evaluated."""
    if len(text) > LONGEST_TEMPLATE:
        return Unreadable(
            f"a template has at most {LONGEST_TEMPLATE:,} characters, this one has {len(text):,}"
        )
    return _kept_pieces(text) if len(text) <= KEPT else _pieces(text)


_LONE = re.compile(r"\{\{([^{}%#'\"\\-]*)\}\}")


def _pieces(text: str) -> Pieces | Unreadable:
    found = _LONE.split(text)
    if not any(MARKS.search(part) or "}}" in part for part in found[::2]):
        made = [lone_path(part) if at % 2 else part for at, part in enumerate(found) if at % 2 or part]
        if None not in made:
            return cast(Pieces, tuple(made))
    return _lexed(text)


_kept_pieces = lru_cache(maxsize=4096)(_pieces)


def _lexed(text: str) -> Pieces | Unreadable:
    """As Jinja2 reads it."""
    from jinja2 import TemplateSyntaxError

    from prefect_resilience.graphs.plans.templates.sandbox import tokens

    made: list[str | Expression] = []
    inner: list[str] | None = None
    count = depth = deepest = 0
    try:
        for _, kind, value in tokens(text):
            if kind == "variable_begin":
                inner, count, depth, deepest = [], 0, 0, 0
            elif kind == "variable_end" and inner is not None:
                made.append(expression("".join(inner), count, deepest))
                inner = None
            elif inner is not None:
                inner.append(value)
                count += kind != "whitespace"
                depth += (value in ("(", "[", "{")) - (value in (")", "]", "}"))
                deepest = max(deepest, depth)
            elif kind == "data":
                made.append(value)
            else:
                return Unreadable(_statement(kind))
    except (TemplateSyntaxError, RecursionError) as error:
        return Unreadable(_unclosed(error))
    if inner is not None:
        return Unreadable(_BRACES.format("'{{' is not followed by '}}'"))
    return tuple(made)


_BRACES = 'the braces of this text are no template: {}; to write braces out: {{{{ "{{{{" }}}}'


def _statement(kind: str) -> str:
    if "comment" in kind:
        return "'{#' begins a comment, which a plan's text cannot have; to write it out: {{ \"{#\" }}"
    return "'{%' begins a statement, which a plan's text cannot have; to write it out: {{ \"{%\" }}"


def _unclosed(error: Exception) -> str:
    says = shortened(str(getattr(error, "message", "") or "it is nested too deep"), 160)
    says = says[:1].lower() + says[1:]
    return _BRACES.format(says)


def references(value: Any, *, names: Collection[str] = ITEM_NAMES) -> set[str]:
    """The ids of the nodes that the templates in a value look at. `names`: what else the fan-out names."""
    found = (path for _, text in texts(value, "") for path in paths_in(pieces(text)))
    return {path.root for path in found if is_node(path, names)}


def is_node(path: Path, names: Collection[str] = ITEM_NAMES) -> bool:
    return path.node or not (path.root in RESERVED or path.root in names)


def paths_in(found: Pieces | Unreadable) -> Iterator[Path]:
    """Every path that a text's templates look up."""
    if not isinstance(found, Unreadable):
        for piece in found:
            if isinstance(piece, Expression) and not piece.mistakes:
                yield from piece.paths


def check_template(
    value: Any,
    place: str,
    nodes: Collection[str],
    *,
    names: Collection[str] = (),
    suggest: Names | None = None,
) -> list[Mistake]:
    """What is wrong with the templates in a value, as far as they can be read by themselves.

    `nodes` are the ids that may be named, `names` the item's name and `index` inside a fan-out. `suggest`
    knows the ids too, for those who ask often.
    """
    suggest = suggest or Names(nodes)
    return [
        Mistake(at, says)
        for at, text in texts(value, place)
        for says in mistakes_in(pieces(text), nodes, names, suggest)
    ]


def mistakes_in(
    found: Pieces | Unreadable, nodes: Collection[str], names: Collection[str], suggest: Names
) -> list[str]:
    """What is wrong with one text."""
    if isinstance(found, Unreadable):
        return [found.mistake]
    made: dict[str, None] = {}
    for piece in found:
        if isinstance(piece, Expression):
            wrong = piece.mistakes or [path_mistake(path, nodes, names, suggest) for path in piece.paths]
            made.update((f"{piece}: {said}", None) for said in wrong if said)
    return list(made)


def path_mistake(path: Path, nodes: Collection[str], names: Collection[str], suggest: Names) -> str:
    """What is wrong with a path, "" if nothing is."""
    if not path.node:
        if path.root in names or path.root in ("state", "inputs"):
            return ""
        if path.root in ITEM_NAMES:
            return f"{path.root!r} stands for something only in the input of a node with 'map'"
    if path.root not in nodes:
        return f"there is no node {quoted(path.root)}{suggest.suggestion(path.root)}"
    if not path.steps:
        return f"write {path}.output, or another of {', '.join(NODE_FIELDS)}"
    if path.steps[0] not in NODE_FIELDS:
        return f"a node has no {quoted(path.steps[0])}{suggestion(str(path.steps[0]), NODE_FIELDS)}"
    return ""


def render(value: Any, view: View, *, place: str = "input") -> Rendered:
    """A value with every template in it filled in. Raises TemplateError, which names the place.

    Mappings and lists are copied, keys stay as they are. Whatever a template gives is left alone.
    """
    scope = Scope(view)
    warnings: list[str] = []
    made = _filled(value, place, scope, warnings)
    return Rendered(made, tuple(dict.fromkeys(warnings)))


def _filled(value: Any, place: str, scope: Scope, warnings: list[str]) -> Any:
    if isinstance(value, str):
        return _filled_text(value, place, scope, warnings) if MARKS.search(value) else value
    if isinstance(value, Mapping):
        fields = cast("Mapping[Any, Any]", value)
        return {key: _filled(part, inside(place, key), scope, warnings) for key, part in fields.items()}
    if isinstance(value, list | tuple):
        items = cast("list[Any]", value)
        return [_filled(part, f"{place}[{n}]", scope, warnings) for n, part in enumerate(items)]
    return value


def _filled_text(text: str, place: str, scope: Scope, warnings: list[str]) -> Any:
    found = pieces(text)
    if isinstance(found, Unreadable):
        raise TemplateError(f"{place}: {found.mistake}")
    if len(found) == 1 and isinstance(found[0], Expression):
        value = _value(found[0], place, scope, warnings, text=False)
        return None if isinstance(value, Missing) else value
    parts: list[str] = []
    size = 0
    for piece in found:
        parts.append(piece if isinstance(piece, str) else _value(piece, place, scope, warnings, text=True))
        size += len(parts[-1])
        if size > TEXT_LIMIT:
            break
    try:
        return within("".join(parts))
    except TemplateError as error:
        raise TemplateError(f"{place}: {error}") from None


def _value(piece: Expression, place: str, scope: Scope, warnings: list[str], *, text: bool) -> Any:
    """What an expression gives, and the warnings about it."""
    if piece.mistakes:
        raise TemplateError(f"{place}: {piece}: {piece.mistakes[0]}")
    scope.warnings.clear()
    try:
        value = piece.value(scope)
        if isinstance(value, Missing):
            value.use()
        if text:
            value = scope.text(value)
    except TemplateError as error:
        raise TemplateError(f"{place}: {error}") from None
    warnings.extend(f"{place}: {piece}: {said}" for said in scope.warnings)
    return value
