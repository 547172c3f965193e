"""Decompose: how work that is too big is split and merged, and to which depth."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from pydantic import Discriminator, Field, field_validator

from prefect_resilience.base.policy import Policy, nearest
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.guards.decomposition.splitters import ListSplit, Split, TextSplit, concat, join
from prefect_resilience.guards.fallbacks import arguments_by_name, is_async

if TYPE_CHECKING:
    pass

MERGERS: dict[str, Callable[[Any], Any]] = {"concat": concat, "join": join()}
OFFERED = ("error", "depth")
"""Arguments that a split or merge gets beside the task's own ones, if it declares them."""

MOST_PARTS = 1_000
TOGETHER = 4
"""How many parts run at a time by default."""

if TYPE_CHECKING:
    Splitter = Split | Callable[..., Any] | Mapping[str, Any]
    Merger = Callable[..., Any] | str
else:
    _Known = Annotated[ListSplit | TextSplit, Discriminator("kind")]
    Splitter = _Known | Callable[..., Any]
    Merger = Any


class Decompose(Policy):
    """Splits work that is too big. Each part is a run of the same task, and their results are merged.

    split: `split_text("document")`, `split_list("items")`, or a function or task that gets those of the
        task's arguments that it names (and `error`, the ErrorContext, and `depth`) and returns the parts.
        Each part is a mapping of the arguments that are different in it. If the function names a single
        argument, a part may also be the new value of that argument.
    merge: "concat", "join", or a function or task that gets the list of the results first, and those of the
        task's arguments that it names.
    max_depth: how often a part of a part may be split again; the whole has depth 0.
    parallel: how many parts run at a time; by default 4. If a plain task was called in the process's main
        thread, the default is one after the other, since its resources may belong to that thread.

    A split or merge may call the task itself: such a call counts as a part.
    """

    split: Splitter
    merge: Merger = "concat"
    max_depth: int = Field(default=3, ge=1, le=20)
    parallel: int | None = Field(default=None, ge=1, le=1_000)

    @field_validator("merge")
    @classmethod
    def _check_merger(cls, merge: Any) -> Any:
        if isinstance(merge, str) and merge not in MERGERS:
            raise ValueError(f"Decompose(merge={merge!r}): unknown merger{nearest(merge, MERGERS)}")
        if not isinstance(merge, str) and not callable(merge):
            raise ValueError(
                f'Decompose(merge={merge!r}): write "concat", "join", or a function of the results'
            )
        return merge

    @classmethod
    def of(cls, value: Any) -> Decompose:
        """The policy from a value of `decompose=`: a `Decompose`, a splitter, or JSON."""
        if isinstance(value, Decompose):
            return value
        if isinstance(value, Split):
            return cls(split=value)
        if isinstance(value, Mapping):
            return cls(**cast("Mapping[str, Any]", value))
        raise ConfigurationError(
            f'decompose={value!r} is not a decomposition: write Decompose(split_text("document"), merge=...)'
        )

    def __init__(
        self, split: Splitter | None = None, merge: Merger = "concat", max_depth: int = 3, **options: Any
    ) -> None:
        split_option = {} if split is None else {"split": split}
        super().__init__(**split_option, merge=merge, max_depth=max_depth, **options)

    @property
    def merger(self) -> Callable[..., Any]:
        """The function that merges the results of the parts."""
        return MERGERS[self.merge] if isinstance(self.merge, str) else self.merge

    @property
    def parts_named(self) -> str | None:
        """The parameter that gets a part as its new value, if the part is not a mapping."""
        if isinstance(self.split, Split):
            return self.split.parameter
        names = [name for name in _parameters(cast("Any", self.split)) if name not in OFFERED]
        return names[0] if len(names) == 1 else None

    def check_for(self, fn: Callable[..., Any], *, isasync: bool) -> None:
        """Raise ConfigurationError, at decoration, for a split or merge that could not be called later."""
        name = getattr(fn, "__name__", repr(fn))
        accepted = inspect.signature(fn).parameters
        anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values())
        if isinstance(self.split, Split):
            if self.split.parameter not in accepted and not anything:
                raise ConfigurationError(
                    f"decompose= splits the parameter {self.split.parameter!r}, which {name!r} does not have"
                    f"{nearest(self.split.parameter, accepted)}"
                )
        else:
            _check("split", cast("Any", self.split), name, accepted, anything, isasync, skip=0)
        if not isinstance(self.merge, str):
            _check("merge", self.merge, name, accepted, anything, isasync, skip=1)


Role = Literal["split", "merge"]


def _check(
    role: Role,
    target: Callable[..., Any],
    name: str,
    accepted: Mapping[str, Any],
    anything: bool,
    isasync: bool,
    *,
    skip: int,
) -> None:
    if is_async(target) and not isasync:
        raise ConfigurationError(
            f"decompose={role}= is async but {name!r} is not: write the task as `async def`, "
            f"or a plain {role}"
        )
    parameters = list(_parameters(target).values())
    if len([parameter for parameter in parameters if parameter.kind is not parameter.KEYWORD_ONLY]) < skip:
        raise ConfigurationError("decompose=merge= takes no arguments: write def merge(results): ...")
    for own in parameters[skip:]:
        needed = own.default is own.empty and own.kind not in (own.VAR_KEYWORD, own.VAR_POSITIONAL)
        if needed and own.name not in accepted and own.name not in OFFERED and not anything:
            raise ConfigurationError(
                f"decompose={role}= needs the parameter {own.name!r}, which {name!r} does not have"
                f"{nearest(own.name, [*accepted, *OFFERED])}"
            )


def _parameters(target: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(target).parameters
    except (TypeError, ValueError):  # some builtins have none
        return {"results": inspect.Parameter("results", inspect.Parameter.POSITIONAL_ONLY)}


def arguments_for(
    target: Callable[..., Any], offered: Mapping[str, Any], first: tuple[Any, ...] = ()
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments for a split or merge: `first`, and the arguments in `offered` that it names."""
    extra = {key: value for key, value in offered.items() if key not in OFFERED}
    return arguments_by_name(_parameters(target), offered, extra, first)
