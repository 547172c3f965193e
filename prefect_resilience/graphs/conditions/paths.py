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
_STEP = Regex(
    r"""\[("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')\]"""  # a key in quotes
    r"""|\[(0|-?[1-9][0-9]{0,17})\]"""  # an index
    r"""|(\.?)([^.\[\]"'\s](?:[^.\[\]"']*[^.\[\]"'\s])?)""",  # a name
    re.DOTALL,
)
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
        step = _STEP.match(path, at)
        part = None if step is None else _part(step, first=not parts)
        if step is None or part is None:
            raise PathError(
                f"{shown_path(path)} cannot be read at column {at + 1}: write a path like a.b[0].c, another "
                f"key in quotes as in a['x.y'], or a $ path such as $.items[*].id",
                at + 1,
            )
        parts.append(part)
        at = step.end()
    return tuple(parts)


def _part(step: re.Match[str], *, first: bool) -> Part | None:
    quoted, index, dot, name = step.groups()
    if quoted is not None:
        return _unquote(quoted)
    if index is not None:
        return Part(index, int(index))
    if bool(dot) is first or not name.isprintable() or name == "*":
        return None
    return Part(name, int(name) if _INDEX.fullmatch(name) else None)


def _unquote(quoted: str) -> Part | None:
    inner = quoted[1:-1]
    if quoted[0] == "'":
        # A piece of a text in single quotes, as written in double quotes.
        double = {"\\'": "'", '"': '\\"'}
        inner = re.sub(r'\\(.)|(")', lambda found: double.get(found[0], found[0]), inner)
    try:
        return Part(cast(str, json.loads(f'"{inner}"', strict=False)))
    except json.JSONDecodeError:
        return None


def _as_text(path: str) -> None:
    if len(path) > LONGEST:
        raise PathError(f"a path may have at most {LONGEST} characters, not {len(path)}")
    if not can_be_written(path):
        raise PathError(f"{shown_path(path)} contains a lone surrogate (half a character)")


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
