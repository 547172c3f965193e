"""Templates in a plan, such as `{{kg_query.output.text}}`, and their values.

    {{node.output.path}}     a part of a node's output         {{node.status}}  {{node.error.code}}
    {{nodes["my-node"].output}}   the same for an id that is not a plain name
    {{state._last_error.code}}    {{inputs.drug}}    in a fan-out {{item}} (or its `as` name) and {{index}}

Filters, comparisons, `and`/`or`/`not`, `a if b else c`, `+`, `-` and `~` are allowed; calls and statements
are not. A string that is exactly one `{{...}}` gives the value itself. Any other template gives a string:
empty for null and for the missing output of a skipped or failed node, `true` for true, JSON for lists and
objects. A missing part of a value that exists also gives an empty string, with a warning. A rendered value is
never rendered again. `{{ "{{" }}` writes the braces themselves. Keys are not templates.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, cast

from jinja2 import TemplateSyntaxError

from prefect_resilience.base.process import setting
from prefect_resilience.graphs.plans.expressions import KEPT, SANDBOX, Expression, expression, lone_path
from prefect_resilience.graphs.plans.lookups import (
    NODE_FIELDS,
    RENDERING,
    TEXT_LIMIT,
    Rendering,
    TemplateError,
    TemplatePath,
    TemplateView,
    within,
)
from prefect_resilience.graphs.plans.reading.mistakes import Names, inside, quoted, shortened, suggestion

LONGEST_TEMPLATE = 100_000
MARKS = re.compile(r"\{\{|\{%|\{#")
ITEM_NAMES = frozenset({"item", "index"})
RESERVED = frozenset({"state", "inputs", "nodes"}) | ITEM_NAMES
"""Names with a special meaning in templates; no node can have such an id."""

Pieces = tuple["str | Expression", ...]


class Rendered(NamedTuple):
    """A value with its templates filled in. A warning has a place, an expression and the missing part."""

    value: Any
    warnings: tuple[str, ...] = ()


def has_template(value: Any) -> bool:
    """Whether a value contains a template."""
    return any(True for _ in texts(value, ""))


def is_one_template(text: str) -> bool:
    """Whether a text is exactly one `{{...}}`, valid or not. Such a text gives a value of any type."""
    found = pieces(text)
    return len(found) == 1 and isinstance(found[0], Expression)


def texts(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """Every template in a value, with its place: `input.prompts[1]`."""
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


def pieces(text: str) -> Pieces:
    """A text split into plain text and expressions. Unreadable braces give one expression with a mistake."""
    if len(text) > LONGEST_TEMPLATE:
        says = f"a template may have at most {LONGEST_TEMPLATE:,} characters, not {len(text):,}"
        return (Expression(text, mistakes=(says,)),)
    return (_pieces if len(text) <= KEPT else _pieces.__wrapped__)(text)


@lru_cache(maxsize=4096)
def _pieces(text: str) -> Pieces:
    found = re.split(r"\{\{([\w.\[\]\s]*)\}\}", text)
    if not any(MARKS.search(part) or "}}" in part for part in found[::2]):
        made = [lone_path(part) if at % 2 else part for at, part in enumerate(found) if at % 2 or part]
        if None not in made:
            return cast(Pieces, tuple(made))
    try:
        return tuple(_lexed(text))
    except (TemplateSyntaxError, RecursionError) as error:
        says = shortened(str(getattr(error, "message", "") or "it is nested too deeply"), 160)
        says = says[:1].lower() + says[1:]
    except ValueError as error:
        return (Expression(text, mistakes=(str(error),)),)
    says = f'these braces are not a valid template: {says}; to write literal braces: {{{{ "{{{{" }}}}'
    return (Expression(text, mistakes=(says,)),)


def _lexed(text: str) -> Iterator[str | Expression]:
    """The pieces of a text, split by Jinja2's lexer."""
    inner: list[str] | None = None
    for _, kind, value in SANDBOX.lex(text):
        if kind == "variable_begin":
            inner = []
        elif kind == "variable_end" and inner is not None:
            yield expression("".join(inner))
            inner = None
        elif inner is not None:
            inner.append(value)
        elif kind == "data":
            yield value
        else:
            sign, word = ("{#", "comment") if "comment" in kind else ("{%", "statement")
            write = f'to write it literally: {{{{ "{sign}" }}}}'
            raise ValueError(f"'{sign}' begins a {word}, which a plan does not support; {write}")
    if inner is not None:
        raise TemplateSyntaxError("'{{' is not followed by '}}'", 1)


def references(value: Any, *, names: Collection[str] = ITEM_NAMES) -> set[str]:
    """The ids of the nodes that a value's templates use. `names` are the other names of a fan-out."""
    found = (path for _, text in texts(value, "") for path in paths_in(pieces(text)))
    return {path.root for path in found if is_node(path, names)}


def is_node(path: TemplatePath, names: Collection[str] = ITEM_NAMES) -> bool:
    return path.node or not (path.root in RESERVED or path.root in names)


def paths_in(found: Pieces) -> Iterator[TemplatePath]:
    """Every path that a text's templates look up."""
    for piece in found:
        if isinstance(piece, Expression):
            yield from piece.paths


def mistakes_in(found: Pieces, nodes: Collection[str], names: Collection[str], suggest: Names) -> list[str]:
    """The mistakes of one text.

    `nodes` are the ids that may be named, `names` the item's name and `index` inside a fan-out.
    """
    made: dict[str, None] = {}
    for piece in found:
        if isinstance(piece, Expression):
            made.update(dict.fromkeys(piece.mistakes))
            wrong = [path_mistake(path, nodes, names, suggest) for path in piece.paths]
            made.update((f"{piece}: {said}", None) for said in wrong if said)
    return list(made)


def path_mistake(path: TemplatePath, nodes: Collection[str], names: Collection[str], suggest: Names) -> str:
    """The mistake in a path, "" if there is none."""
    if not path.node:
        if path.root in names or path.root in ("state", "inputs"):
            return ""
        if path.root in ITEM_NAMES:
            return f"{path.root!r} exists only in the input of a node with 'map'"
    if path.root not in nodes:
        return f"unknown node {quoted(path.root)}{suggest.suggestion(path.root)}"
    if not path.steps:
        return f"write {path}.output, or another of {', '.join(NODE_FIELDS)}"
    if path.steps[0] not in NODE_FIELDS:
        return f"a node has no field {quoted(path.steps[0])}{suggestion(str(path.steps[0]), NODE_FIELDS)}"
    return ""


def render(value: Any, view: TemplateView, *, place: str = "input") -> Rendered:
    """A value with every template in it filled in. Raises TemplateError, which names the place.

    Mappings and lists are copied, keys stay as they are. A rendered value is not rendered again.
    """
    rendering = Rendering(view)
    with setting(RENDERING, rendering):
        return Rendered(_filled(value, place, rendering), tuple(rendering.warnings))


def _filled(value: Any, place: str, rendering: Rendering) -> Any:
    if isinstance(value, str):
        return _filled_text(value, place, rendering) if MARKS.search(value) else value
    if isinstance(value, Mapping):
        fields = cast("Mapping[Any, Any]", value)
        return {key: _filled(part, inside(place, key), rendering) for key, part in fields.items()}
    if isinstance(value, list | tuple):
        items = cast("list[Any]", value)
        return [_filled(part, f"{place}[{n}]", rendering) for n, part in enumerate(items)]
    return value


def _filled_text(text: str, place: str, rendering: Rendering) -> Any:
    found = pieces(text)
    size, parts = 0, list[str]()
    try:
        if len(found) == 1 and isinstance(found[0], Expression):
            return found[0].value(rendering, place)
        for piece in found:
            parts.append(piece if isinstance(piece, str) else rendering.text(piece.value(rendering, place)))
            size += len(parts[-1])
            if size > TEXT_LIMIT:
                break
        return within("".join(parts))
    except TemplateError as error:
        raise TemplateError(f"{place}: {error}") from None
