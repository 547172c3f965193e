"""What the names in a template mean: nodes, state, inputs and items, looked at as plain data."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any, NamedTuple, Protocol, cast

from pydantic import BaseModel

from prefect_resilience.base.plain import plain_or_cut, unfolded
from prefect_resilience.base.policy import nearest
from prefect_resilience.errors.exceptions import ResilienceError
from prefect_resilience.graphs.plans.reading.mistakes import quoted, shortened

TEXT_LIMIT = 1_000_000
"""Characters that one rendered text may have."""

DATA_LIMIT = 1_000_000
"""Parts that a value may have which is compared, counted or written as JSON."""

MOST_SUGGESTIONS = 20
"""How many missing fields of one rendering are compared with those that there are."""

NODE_FIELDS = ("error", "output", "status")


class TemplateError(ResilienceError, ValueError):
    """A template that cannot be rendered with these values; the message says which, where and why."""


class Outcome(Protocol):
    """How a node ended, as templates see it: a `NodeResult` is one."""

    @property
    def status(self) -> str: ...
    @property
    def output(self) -> Any: ...
    @property
    def error(self) -> Any: ...


ERRORS = ("_last_error", "_plan_error")
"""Parts of the state that are there only after a failure."""


@dataclass(frozen=True)
class View:
    """What the templates of one node may see.

    nodes: what has ended so far, by id; a node that is not here counts as one that gave nothing.
    state: with `_last_error` and `_plan_error` as JSON, where there is one.
    names: in a fan-out the item, under the name that the plan gives it, and `index`.
    """

    nodes: Mapping[str, Outcome] = field(default_factory=dict[str, Outcome])
    state: Mapping[str, Any] = field(default_factory=dict[str, Any])
    inputs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    names: Mapping[str, Any] = field(default_factory=dict[str, Any])


class Path(NamedTuple):
    """`root.step.step`. `node`: the root was written as `nodes["root"]`, so it can be nothing else."""

    root: str
    steps: tuple[str | int, ...]
    node: bool = False

    def __str__(self) -> str:
        said = f"nodes[{self.root!r}]" if self.node else self.root
        for step in self.steps:
            said += f".{step}" if isinstance(step, str) and step.isidentifier() else f"[{step!r}]"
        return said


class Missing:
    """What a path leads to that leads nowhere: empty and false.

    Using it leaves a warning, unless nothing was to be expected: then `says` is None.
    """

    def __init__(self, scope: Scope | None = None, says: Callable[[], str] | None = None) -> None:
        self._scope = scope
        self._says = says

    def use(self) -> None:
        if self._says is not None and self._scope is not None:
            self._scope.warnings[self._says()] = None

    def __str__(self) -> str:
        return self._says() if self._says else "its node gave no value"

    def __bool__(self) -> bool:
        self.use()
        return False

    def __len__(self) -> int:
        self.use()
        return 0

    def __iter__(self) -> Iterator[Any]:
        self.use()
        return iter(())

    def __eq__(self, other: object) -> bool:
        self.use()
        return False

    def __hash__(self) -> int:
        return id(self)


class Scope:
    """One rendering: what can be seen, the warnings so far, and what was made plain already."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.warnings: dict[str, None] = {}
        self._suggested = 0
        self._plain: dict[int, tuple[Any, Any]] = {}

    def value(self, path: Path) -> Any:
        """Where the path leads: the object itself, or `Missing`."""
        view = self.view
        if path.node or not (path.root in view.names or path.root in ("state", "inputs")):
            return self._of_node(path)
        base: Any = {"state": view.state, "inputs": view.inputs, **view.names}[path.root]
        if path.root == "state" and path.steps and path.steps[0] in ERRORS and not base.get(path.steps[0]):
            return Missing()
        return self._walk(base, path, 0)

    def _of_node(self, path: Path) -> Any:
        outcome = self.view.nodes.get(path.root)
        wanted = path.steps[0] if path.steps else None
        if outcome is None or (wanted == "output" and outcome.status != "succeeded"):
            return Missing()
        if wanted == "status":
            return self._walk(outcome.status, path, 1)
        base = outcome.output if wanted == "output" else outcome.error
        if wanted == "error" and base is None:
            return Missing()
        return self._walk(base, path, 1)

    def _walk(self, base: Any, path: Path, done: int) -> Any:
        for at in range(done, len(path.steps)):
            found = _found(base, path.steps[at])
            if found is _NOTHING:
                said = path._replace(steps=path.steps[:at])
                return self.missing(shortened(str(said), 200), base, path.steps[at])
            base = found
        return base

    def step(self, base: Any, key: str | int) -> Any:
        """One field or item of what an expression made."""
        if isinstance(base, Missing):
            return base
        found = _found(base, key)
        return self.missing("its value", base, key) if found is _NOTHING else found

    def missing(self, said: str, base: Any, key: str | int) -> Missing:
        def says() -> str:
            self._suggested += 1
            return f"{said} {_has_not(_level(base), key, suggest=self._suggested <= MOST_SUGGESTIONS)}"

        return Missing(self, says)

    def plain(self, value: Any) -> Any:
        """A value as plain data, to be compared, counted or written; each object is converted once."""
        if isinstance(value, str | int | float | bool | Missing | None):
            return value
        if id(value) not in self._plain:
            made, cut = plain_or_cut(value, depth=100, items=DATA_LIMIT)
            if cut:
                raise TemplateError(
                    f"a value is too large or too deep for a template (more than {DATA_LIMIT:,} parts or 100 "
                    f"levels): have the action give the part that is needed"
                )
            self._plain[id(value)] = (value, made)
        return self._plain[id(value)][1]

    def text(self, value: Any) -> str:
        """A value inside a text: nothing for null and what is missing, JSON for lists and objects."""
        if isinstance(value, Missing):
            value.use()
            return ""
        value = self.plain(value)
        if value is None:
            return ""
        return within(value if isinstance(value, str) else self.json(value))

    def json(self, value: Any) -> str:
        """A value as JSON; times as ISO texts."""
        if isinstance(value, Missing):
            value.use()
            value = None
        value = self.plain(value)
        if isinstance(value, date):
            return value.isoformat()
        try:
            return within(json.dumps(value, ensure_ascii=False, default=_as_text))
        except ValueError as error:
            raise TemplateError(f"a value cannot be written as text: {error}") from None


_NOTHING = object()


def _level(base: Any) -> Any:
    return cast("Any", base) if isinstance(base, dict | list) else unfolded(base)


def _found(base: Any, key: str | int) -> Any:
    """A field of a model or mapping, or an item of a list; data only, never an attribute of an object."""
    if isinstance(base, BaseModel) and isinstance(key, str) and key in type(base).model_fields:
        return getattr(base, key)
    level = _level(base)
    if isinstance(level, dict):
        fields = cast("dict[Any, Any]", level)
        return fields[key] if key in fields else fields.get(str(key), _NOTHING)
    if isinstance(level, list):
        items = cast("list[Any]", level)
        index = int(key) if isinstance(key, int) or (key.isdecimal() and len(key) < 10) else None
        if index is not None and -len(items) <= index < len(items):
            return items[index]
    return _NOTHING


def within(text: str) -> str:
    """The text, or the error that it is too long."""
    if len(text) > TEXT_LIMIT:
        raise TemplateError(f"the text has more than {TEXT_LIMIT:,} characters")
    return text


def _as_text(value: Any) -> str:
    return value.isoformat() if isinstance(value, date) else str(value)


def _has_not(level: Any, key: str | int, *, suggest: bool) -> str:
    if isinstance(level, dict) and not suggest:
        return f"has no {quoted(key)}"
    if isinstance(level, dict):
        keys = [str(name) for name in cast("dict[Any, Any]", level)]
        return f"has no {quoted(key)}{_near(str(key), keys)}"
    if isinstance(level, list):
        count = len(cast("list[Any]", level))
        return f"is a list of {count}, and has no {quoted(key)}"
    kind = "null" if level is None else "a text" if isinstance(level, str) else quoted(level)
    return f"is {kind}, and has no {quoted(key)}"


def _near(key: str, keys: list[str]) -> str:
    if not keys:
        return "; it is empty"
    if len(key) > 100:
        return ""
    return shortened(nearest(key, [name for name in keys[:200] if len(name) <= 100]), 200)
