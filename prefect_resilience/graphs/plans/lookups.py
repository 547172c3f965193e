"""The values of a template's paths: nodes, state, inputs and items, as plain data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any, NamedTuple, cast

from jinja2 import StrictUndefined, Undefined
from pydantic import BaseModel

from prefect_resilience.base.plain import plain_or_cut, shortly, unfold
from prefect_resilience.errors.exceptions import ResilienceError
from prefect_resilience.graphs.conditions.paths import kind_of
from prefect_resilience.graphs.plans.reading.mistakes import Names, shorten

TEXT_LIMIT = 1_000_000
"""Characters that one rendered text may have."""
TOO_LONG = f"the result has more than {TEXT_LIMIT:,} characters"

DATA_LIMIT = 1_000_000
"""The most parts of a value that is compared, counted or written as JSON."""

NODE_FIELDS = ("error", "output", "status")
ERRORS = ("_last_error", "_plan_error")
"""Keys of the state that exist only after a failure."""


class TemplateError(ResilienceError, ValueError):
    """A template that cannot be rendered with these values."""


class TemplatePath(NamedTuple):
    """`root.step.step`. `node`: the root was written as `nodes["root"]`, so it can only be a node."""

    root: str
    steps: tuple[str | int, ...] = ()
    node: bool = False

    def __str__(self) -> str:
        text = f"nodes[{self.root!r}]" if self.node else self.root
        for step in self.steps:
            text += f".{step}" if isinstance(step, str) and step.isidentifier() else f"[{step!r}]"
        return text


def absent() -> Undefined:
    """The output of a skipped or failed node, or an error that does not exist: empty and false."""
    return Undefined(hint="its node has no output")


@dataclass
class Rendering:
    """The values that the templates of one node can use.

    nodes: the results of the nodes that have ended, by id.
    state: with `_last_error` and `_plan_error` as JSON, if they exist.
    names: in a fan-out the item, under the name that the plan gives it, and `index`.
    """

    nodes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    state: Mapping[str, Any] = field(default_factory=dict[str, Any])
    inputs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    names: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def value(self, path: TemplatePath) -> Any:
        """The object at the path, or an `Undefined`; it is strict if the object exists without this part."""
        first = path.steps[0] if path.steps else None
        if not path.node and (path.root in self.names or path.root in ("state", "inputs")):
            base: Any = {"state": self.state, "inputs": self.inputs, **self.names}[path.root]
            if path.root == "state" and first in ERRORS and not base.get(first):
                return absent()
            return _walk(base, path, 0)
        ended = self.nodes.get(path.root)
        if ended is None or first not in NODE_FIELDS or (first == "output" and ended.status != "succeeded"):
            return absent()
        base = getattr(ended, str(first))
        return absent() if base is None and first == "error" else _walk(base, path, 1)


def as_plain(value: Any) -> Any:
    """A value as plain data."""
    if isinstance(value, str | int | float | bool | Undefined | None):
        return value
    copy, cut = plain_or_cut(value, depth=100, items=DATA_LIMIT)
    if cut:
        raise TemplateError(
            f"a value is too large or too deep for a template (more than {DATA_LIMIT:,} parts or 100 "
            f"levels): let the action return only the part that is needed"
        )
    return copy


_NOTHING = object()


def _walk(base: Any, path: TemplatePath, start: int) -> Any:
    for at in range(start, len(path.steps)):
        base = step_into(base, path.steps[at], path._replace(steps=path.steps[:at]))
    return base


def step_into(base: Any, key: str | int, path: TemplatePath | None = None) -> Any:
    """A field of a model or mapping, or an item of a list; data only, never an attribute of an object."""
    if isinstance(base, Undefined):
        return base
    if isinstance(base, BaseModel) and isinstance(key, str) and key in type(base).model_fields:
        return getattr(base, key)
    level = cast("Any", base) if isinstance(base, dict | list) else unfold(base)
    value: Any = _NOTHING
    if isinstance(level, dict):
        fields = cast("dict[Any, Any]", level)
        value = fields.get(key, fields.get(str(key), _NOTHING))
    elif isinstance(level, list):
        items = cast("list[Any]", level)
        index = int(key) if isinstance(key, int) or (key.isdecimal() and len(key) < 10) else len(items)
        value = items[index] if -len(items) <= index < len(items) else _NOTHING
    if value is _NOTHING:
        return StrictUndefined(hint=f"{shorten(str(path or 'its value'), 200)} {_lacks(level, key)}")
    return value


def _lacks(level: Any, key: str | int) -> str:
    if isinstance(level, dict):
        names = Names(str(name) for name in cast("dict[Any, Any]", level))
        return f"has no {shortly(key)}{names.suggestion(str(key))}"
    return f"is {kind_of(level)}, and has no {shortly(key)}"


def within(text: str) -> str:
    """The text. Raises TemplateError if it is too long."""
    if len(text) > TEXT_LIMIT:
        raise TemplateError(TOO_LONG)
    return text


def join_text(values: Any, between: Any = "") -> str:
    """A list of plain data as one text."""
    if not isinstance(values, list | Undefined):
        raise TemplateError(f"join needs a list, not a {type(values).__name__}")
    parts, between = [as_text(value) for value in cast("list[Any]", values)], as_text(between)
    if sum(map(len, parts)) + len(between) * (len(parts) - 1) > TEXT_LIMIT:
        raise TemplateError(TOO_LONG)
    return between.join(parts)


def as_text(value: Any) -> str:
    """Plain data as text: empty for null and missing values, JSON for lists and objects."""
    if isinstance(value, str | Undefined):
        return within(str(value))
    if isinstance(value, date):
        return value.isoformat()
    return "" if value is None else as_json(value)


def as_json(value: Any) -> str:
    """Plain data as JSON; times as ISO texts, missing values as null."""
    try:
        return within(json.dumps(value, ensure_ascii=False, default=_as_json_scalar))
    except TemplateError:
        raise
    except ValueError as error:
        raise TemplateError(f"a value cannot be written as text: {error}") from None


def _as_json_scalar(value: Any) -> str | None:
    return value.isoformat() if isinstance(value, date) else str(value) or None
