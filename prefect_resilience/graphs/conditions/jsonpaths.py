"""`$` paths, RFC 9535, through python-jsonpath: bounded in nodes, depth and time, and strict like conditions.

Imported lazily, because the library is slow to load.
"""

from __future__ import annotations

import operator as python
import re
from collections.abc import Iterable
from contextlib import suppress
from contextvars import ContextVar
from datetime import date
from functools import lru_cache
from typing import Any, cast

# From its modules and not from the package: jsonpath-python (of mistralai) overwrites jsonpath/__init__.py.
from jsonpath.env import JSONPathEnvironment
from jsonpath.exceptions import JSONPathError
from jsonpath.filter import (
    UNDEFINED,
    BaseExpression,
    IntegerLiteral,
    RelativeFilterQuery,
    RootFilterQuery,
    StringLiteral,
)
from jsonpath.function_extensions import Match, Search
from jsonpath.match import JSONPathMatch, NodeList
from jsonpath.parse import Parser
from jsonpath.path import JSONPath
from jsonpath.segments import JSONPathSegment
from jsonpath.selectors import NameSelector
from jsonpath.stream import TokenStream
from jsonpath.token import Token

from prefect_resilience.base.plain import plain_or_cut
from prefect_resilience.base.process import setting
from prefect_resilience.graphs.conditions.compare import (
    ConditionError,
    EvaluationBounds,
    PatternMistake,
    compiled_pattern,
    equal,
    matches,
    ordered,
)
from prefect_resilience.graphs.conditions.paths import Missing, Part, PathError, follow, shown_path

DEEPEST = 100
MOST_NODES = 100_000

_bounds: ContextVar[EvaluationBounds] = ContextVar("bounds of the $ path that is being followed")
_ORDERS = {"<": python.lt, ">": python.gt}
_PIECE = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\.", re.DOTALL)


class _Node(JSONPathMatch):
    """A node that counts a step when it is created, and stores neither its place nor its children."""

    __slots__ = ()

    def new_child(self, obj: object, key: int | str) -> _Node:
        _bounds.get().step()
        return _node(obj, self.root)

    def add_child(self, *children: JSONPathMatch) -> None:
        pass


def _node(value: Any, root: Any) -> _Node:
    return _Node(filter_context={}, obj=value, parent=None, path="", parts=(), root=root)


class _Current(RelativeFilterQuery):
    """`@`. It keeps `$`, which the library loses here. A single `@` always exists, whatever its value is."""

    def evaluate(self, context: Any) -> object:
        return _followed(self.path, context.current, context.root)


class _Root(RootFilterQuery):
    def evaluate(self, context: Any) -> object:
        return _followed(self.path, context.root, context.root)


def _followed(query: JSONPath, value: Any, root: Any) -> NodeList:
    _bounds.get().step()
    nodes: Iterable[JSONPathMatch] = [_node(value, root)]
    for segment in query.segments:
        nodes = segment.resolve(nodes)
    return NodeList(nodes)


class _Parser(Parser):
    def parse_integer_literal(self, stream: TokenStream) -> BaseExpression:
        """An exact integer; the library converts it through a float."""
        digits = stream.current().value
        literal = super().parse_integer_literal(stream)
        return literal if "e" in digits.lower() else IntegerLiteral(value=int(digits))

    def parse_absolute_query(self, stream: TokenStream) -> BaseExpression:
        return _Root(cast("RootFilterQuery", super().parse_absolute_query(stream)).path)

    def parse_relative_query(self, stream: TokenStream) -> BaseExpression:
        return _Current(cast("RelativeFilterQuery", super().parse_relative_query(stream)).path)


class _Match(Match):
    whole = True

    def __call__(self, value: object, pattern: object) -> bool:
        if not isinstance(value, str) or not isinstance(pattern, str):
            return False
        try:
            return matches(_as_regex(pattern), value, _bounds.get(), whole=self.whole)
        except PatternMistake:  # RFC 9535: false for an invalid pattern in the value
            return False


class _Search(_Match, Search):
    whole = False


class _Environment(JSONPathEnvironment):
    parser_class = _Parser
    max_recursion_depth = DEEPEST + 10

    def setup_function_extensions(self) -> None:
        super().setup_function_extensions()
        self.function_extensions.update(match=_Match(), search=_Search())

    def check_well_typedness(self, token: Token, func: Any, args: list[BaseExpression]) -> None:
        super().check_well_typedness(token, func, args)
        if isinstance(func, _Match) and isinstance(args[1], StringLiteral):
            compiled_pattern(_as_regex(args[1].value))

    def compare(self, left: object, operator: str, right: object) -> bool:
        if operator in ("&&", "||"):
            return super().compare(left, operator, right)
        value, other = _side(left), _side(right)
        if operator in ("==", "!="):
            return self._same(value, other) is (operator == "==")
        holds = ordered(value, other, _ORDERS[operator[0]], instants=False)
        return holds or ("=" in operator and self._same(value, other))

    def _same(self, one: object, other: object) -> bool:
        if one is UNDEFINED or other is UNDEFINED:
            return one is other
        return equal(one, other, _bounds.get(), instants=False)


def _side(side: object) -> object:
    """One side of a comparison: undefined, or a JSON value."""
    if isinstance(side, NodeList):
        return UNDEFINED
    return side.isoformat() if isinstance(side, date) else side


def _as_regex(pattern: str) -> str:
    """An I-Regexp as a regular expression: its dot matches any character except line ends."""
    return _PIECE.sub(lambda found: r"[^\r\n]" if found[0] == "." else found[0], pattern)


_environment = _Environment(strict=True)


@lru_cache(maxsize=500)
def compiled(path: str) -> JSONPath:
    """The compiled `$` path. Raises `PathError`."""
    try:
        return cast("JSONPath", _environment.compile(path))
    except JSONPathError as error:
        at = 1
        why = "it is nested too deeply"
        if error.token is not None:
            at = (error.token.index if error.token.index >= 0 else len(path)) + 1
            why = str(error.message)
        mistake = PathError(f"{shown_path(path)} cannot be read at column {at}: {why}; see RFC 9535", at)
    except (PatternMistake, RecursionError, ValueError, OverflowError) as error:
        mistake = PathError(f"{shown_path(path)} cannot be read: {error}")
    # Raised outside the handlers: Dask pickles an error's context too, and a very deep one cannot be pickled.
    raise mistake


def found(path: str, value: Any, bounds: EvaluationBounds | None = None) -> Any:
    """The value of a singular query, else the list of all values found; or a `Missing`."""
    query = compiled(path)
    if query.singular_query():
        return follow([_part(segment) for segment in query.segments], value)
    data, cut = plain_or_cut(value, depth=DEEPEST, items=MOST_NODES)
    if cut:
        raise ConditionError(
            f"{shown_path(path)} cannot be followed in a value of more than {DEEPEST} levels "
            f"or {MOST_NODES:,} parts",
            path,
        )
    values = _all(query, data, bounds or EvaluationBounds(), path)
    return values or Missing(lambda: f"{shown_path(path)} finds nothing")


def _part(segment: JSONPathSegment) -> Part:
    """A step of a singular query: a name is only a key, a number only an index."""
    selector = cast("Any", segment.selectors[0])
    if isinstance(selector, NameSelector):
        return Part(selector.name)
    return Part(f"[{selector.index}]", selector.index, is_key=False)


def _all(query: JSONPath, data: Any, bounds: EvaluationBounds, path: str) -> list[Any]:
    with setting(_bounds, bounds), suppress(JSONPathError, RecursionError):
        return _followed(query, data, data).values()
    raise ConditionError(f"{shown_path(path)} cannot be followed: it or the value is nested too deeply", path)
