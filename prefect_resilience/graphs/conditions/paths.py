"""Paths into a result: `a.b[0].c`, `results.-1.id`, `a["x.y"]`, or `$...` as in RFC 9535.

A name between dots is a key of a mapping. A whole number is a key of a mapping or an index of a list; a
negative index counts from the end. Paths find parts of mappings and lists, never attributes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, cast

from prefect_resilience.base.plain import can_be_written, unfold
from prefect_resilience.base.policy import closest
from prefect_resilience.base.text import Regex
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact

if TYPE_CHECKING:
    from prefect_resilience.graphs.conditions.compare import EvaluationBounds

LONGEST = 1_000
"""The most characters of a path."""

_INDEX = Regex(r"0|-?[1-9][0-9]{0,17}", re.ASCII)
_NAME = Regex(r"""[^.\[\]"']+""")
_QUOTED = Regex(r"""\[("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')\]""", re.DOTALL)
_BRACKETED = Regex(r"\[([^\[\]]*)\]")
_NOTHING: Final = object()
_MOST_COMPARED = 1_000
_LETTERS_COMPARED = 100


class PathError(ConfigurationError):
    """A path that cannot be read. `column` counts from 1."""

    def __init__(self, message: str, column: int = 1) -> None:
        self.column = column
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Part:
    """One step of a path: the key of a mapping, the index of a list, or both."""

    key: str
    index: int | None = None
    is_key: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Missing:
    """The path does not exist; `why` says where it ends."""

    why: Callable[[], str]


def check_path(path: str) -> None:
    """Raises `PathError` if `path` is invalid."""
    if path.startswith("$"):
        _as_text(path)
        from prefect_resilience.graphs.conditions.jsonpaths import compiled

        compiled(path)
    else:
        parsed(path)


@lru_cache(maxsize=1_000)
def parsed(path: str) -> tuple[Part, ...]:
    """The steps of a dotted path."""
    _as_text(path)
    parts: list[Part] = []
    at = 0
    while at < len(path) or not parts:
        part, at = _part(path, at, first=not parts)
        parts.append(part)
    return tuple(parts)


def _as_text(path: str) -> None:
    if len(path) > LONGEST:
        raise PathError(f"a path may have at most {LONGEST} characters, not {len(path)}")
    if not can_be_written(path):
        raise PathError(f"{shown_path(path)} contains a lone surrogate (half a character)")


def _part(path: str, at: int, *, first: bool) -> tuple[Part, int]:
    """The step that begins at `at`, and where the next one begins."""
    if path.startswith("[", at):
        return _in_brackets(path, at)
    if not first:
        if path[at] != ".":
            raise _wrong(path, at, f"a '.' or '[' is expected before {path[at]!r}")
        at += 1
    name = _NAME.match(path, at)
    if name is None:
        actual = f"not {path[at]!r}" if at < len(path) else "but the path ends"
        raise _wrong(path, at, f"a name is expected here, {actual}: write a path like a.b[0].c, or a $ path")
    text = name[0]
    if text != text.strip() or not text.isprintable():
        why = "has white space at its ends or invisible characters"
        raise _wrong(path, at, f"{shown_path(text)} {why}: remove them, or write it as a key in quotes")
    if text == "*":
        raise _wrong(path, at, "'*' works only in a $ path, such as $.items[*].id")
    return _named(text), name.end()


def _in_brackets(path: str, at: int) -> tuple[Part, int]:
    quoted = _QUOTED.match(path, at)
    if quoted is not None:
        return Part(_unquoted(path, at + 1, quoted[1])), quoted.end()
    inside = _BRACKETED.match(path, at)
    if inside is None:
        raise _wrong(path, at, "this bracket is not closed")
    if not _INDEX.fullmatch(inside[1]):
        why = f"{shown_path(inside[1])} is not an index: write [0], [-1] or a key in quotes"
        raise _wrong(path, at + 1, why)
    return _named(inside[1]), inside.end()


def _named(text: str) -> Part:
    return Part(text, int(text) if _INDEX.fullmatch(text) else None)


def _unquoted(path: str, at: int, quoted: str) -> str:
    inner = quoted[1:-1]
    if quoted[0] == "'":
        # A piece of a text in single quotes, as written in double quotes.
        double = {"\\'": "'", '"': '\\"'}
        inner = re.sub(r'\\(.)|(")', lambda found: double.get(found[0], found[0]), inner)
    try:
        return cast(str, json.loads(f'"{inner}"', strict=False))
    except json.JSONDecodeError:
        raise _wrong(
            path, at, f"{shown_path(quoted)} has an escape sequence that JSON does not have"
        ) from None


def _wrong(path: str, at: int, why: str) -> PathError:
    return PathError(f"{shown_path(path)} cannot be read at column {at + 1}: {why}", at + 1)


def shown_path(path: str) -> str:
    return repr(path if len(path) <= 60 else path[:59] + "…")


def look_up(
    path: str, value: Any, scope: Mapping[str, Any] | None = None, bounds: EvaluationBounds | None = None
) -> Any:
    """The value at `path` in `value`, or a `Missing`.

    A dotted path that begins with a name in `scope` is followed there. A `$` path for a single place returns
    its value, any other `$` path the list of values found. Raises `PathError` for an invalid path, and
    `ConditionError` if following it exceeds `bounds`.
    """
    if path.startswith("$"):
        from prefect_resilience.graphs.conditions.jsonpaths import found

        return found(path, value, bounds)
    parts = parsed(path)
    if scope is not None and parts[0].key in scope:
        return follow(parts, dict(scope))
    return follow(parts, value)


def follow(parts: Sequence[Part], value: Any) -> Any:
    """The value after these steps, or a `Missing`."""
    current = value
    for steps, part in enumerate(parts):
        if type(current) is not dict or part.key not in current:  # else the mapping need not be copied
            current = unfold(current)
        step = _step(current, part)
        if step is _NOTHING:
            return Missing(partial(_why, current, part, parts[:steps]))
        current = step
    return unfold(current)


def _step(here: Any, part: Part) -> Any:
    if isinstance(here, dict):
        return cast("dict[str, Any]", here).get(part.key, _NOTHING) if part.is_key else _NOTHING
    if isinstance(here, list) and part.index is not None:
        items = cast("list[Any]", here)
        return items[part.index] if -len(items) <= part.index < len(items) else _NOTHING
    return _NOTHING


def _why(here: Any, part: Part, before: Sequence[Part]) -> str:
    """Why the step failed, in words."""
    name = shown_path(".".join(step.key for step in before)) if before else "the value"
    key = shown_path(part.key) if part.is_key else part.key
    if isinstance(here, dict) and part.is_key:
        return f"there is no {key} in {name}{_meant(cast('dict[str, Any]', here), part.key)}"
    return f"{name} is {kind_of(here)}, which has no {key}"


def _meant(here: dict[str, Any], key: str) -> str:
    if len(here) > _MOST_COMPARED:
        return ""
    short = [name for name in here if len(name) <= _LETTERS_COMPARED]
    close = closest(key[:_LETTERS_COMPARED], short)
    return f"; did you mean {redact(close)!r}?" if close else ""


def kind_of(value: Any) -> str:
    """The kind of a plain value, in a few words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | dict):
        size = len(cast("list[Any]", value))
        return f"a {'list' if isinstance(value, list) else 'mapping'} of {size:,}"
    if isinstance(value, date):
        return "a time"
    return "a string" if isinstance(value, str) else "a number"
