"""Decompose: how work that is too big is split and merged, to which depth, and the ready-made splitters."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import Discriminator, Field, field_validator, model_validator

from prefect_resilience.base.policy import (
    Policy,
    check_parameters,
    names_without_default,
    nearest,
    refuse_async,
)
from prefect_resilience.base.text import Regex
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.guards.fallbacks import arguments_by_name, is_async

Unit = Literal["paragraph", "sentence", "word", "character"]
FINER: dict[str, Unit] = {"paragraph": "sentence", "sentence": "word", "word": "character"}
"""The next smaller unit, for a text with only one unit."""

_BOUNDARY = {
    "paragraph": Regex(r"\r?\n[ \t]*\r?\n\s*"),
    "sentence": Regex(r"[.!?…]+[\"'”’)\]]*\s+|[。！？]+|\n+"),
    "word": Regex(r"\s+"),
}


class Split(Policy):
    """How the value of one parameter is split into several."""

    parameter: str = Field(min_length=1)
    parts: int | None = Field(default=None, ge=2, le=1_000)
    size: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _one_measure(self) -> Self:
        if self.parts is not None and self.size is not None:
            raise ValueError(f"{type(self).__name__} has both parts and size: write one of them")
        return self

    @abstractmethod
    def of(self, value: Any) -> list[Any]:
        """The parts of a value; only the value itself if it cannot be made smaller."""


class ListSplit(Split):
    """Splits a list or another value that can be sliced; see `split_list`."""

    kind: Literal["list"] = "list"

    def of(self, value: Any) -> list[Any]:
        count, cut = _slices(value)
        if self.size is not None:
            ends = [*range(self.size, count, self.size), count]
        else:
            parts = min(self.parts or 2, count)
            ends = [count * number // parts for number in range(1, parts + 1)]
        if len(ends) < 2:
            return [value]
        return [cut(start, end) for start, end in zip([0, *ends], ends, strict=False)]


class TextSplit(Split):
    """Splits a text; see `split_text`."""

    kind: Literal["text"] = "text"
    by: Unit = "paragraph"
    overlap: int = Field(default=0, ge=0)

    def of(self, value: Any) -> list[Any]:
        if not isinstance(value, str):
            raise TypeError(
                f"split_text({self.parameter!r}) needs a text, not a {type(value).__name__}: "
                f"use split_list, or a function"
            )
        units = units_of(value, self.by)
        by = self.by
        while len(units) < 2 and by != "character":
            by = FINER[by]
            units = units_of(value, by)
        if self.size is not None:
            units, ends = _fill(units, by, self.size)
        else:
            ends = _even(units, self.parts or 2)
        if len(ends) < 2:
            return [value]
        starts = [0, *ends[:-1]]
        return [
            "".join(units[max(0, _back(s, e, self.overlap)) : e]) for s, e in zip(starts, ends, strict=True)
        ]


def split_list(parameter: str, parts: int | None = None, *, size: int | None = None) -> ListSplit:
    """Split the value of the parameter: a list, tuple, mapping, array, or data frame.

    parts: the number of pieces; their lengths differ by at most one item (2 if neither is given).
    size: instead of `parts`, the maximum number of items in a piece.

    Example:
        >>> split_list("items", size=2).of([1, 2, 3])
        [[1, 2], [3]]
    """
    return ListSplit(parameter=parameter, parts=parts, size=size)


def split_text(
    parameter: str,
    parts: int | None = None,
    *,
    size: int | None = None,
    by: Unit = "paragraph",
    overlap: int = 0,
) -> TextSplit:
    """Split the text in the parameter at the boundaries of paragraphs, sentences or words.

    parts: the number of pieces, which have about the same length (2 if neither is given).
    size: instead of `parts`, the maximum number of characters in a piece, not counting the overlap.
    by: "paragraph", "sentence", "word" or "character"; a text with only one such unit is split by the next
        smaller unit.
    overlap: how many units at the end of a piece are repeated at the beginning of the next one.

    Without overlap, the joined pieces are exactly the text.

    Example:
        >>> split_text("document", parts=2, by="word").of("one two three four")
        ['one two ', 'three four']
    """
    return TextSplit(parameter=parameter, parts=parts, size=size, by=by, overlap=overlap)


def _slices(value: Any) -> tuple[int, Callable[[int, int], Any]]:
    """How many items there are, and how to take some of them."""
    if isinstance(value, dict):
        items = list(cast("dict[Any, Any]", value).items())
        return len(items), lambda start, end: dict(items[start:end])
    by_place = getattr(value, "iloc", value)  # a plain slice of a data frame may select by label
    if isinstance(value, str | bytes) or not (hasattr(value, "__len__") and hasattr(by_place, "__getitem__")):
        raise TypeError(
            f"split_list needs a value that has a length and can be sliced, not a {type(value).__name__}"
        )
    return len(value), lambda start, end: by_place[start:end]


def units_of(text: str, by: Unit) -> list[str]:
    """The text in units, each with the whitespace after it; joined, they are the text."""
    if by == "character":
        return list(text)
    ends = [match.end() for match in _BOUNDARY[by].finditer(text)]
    if not ends or ends[-1] < len(text):
        ends.append(len(text))
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False) if end > start]


def _even(units: Sequence[str], parts: int) -> list[int]:
    """Where to cut between units so that the pieces are of about the same length."""
    sums = list(accumulate(map(len, units)))
    ends: list[int] = []
    for number in range(1, min(parts, len(units))):
        goal = sums[-1] * number / parts
        after = bisect_left(sums, goal)
        closer = after if after == 0 or sums[after] - goal <= goal - sums[after - 1] else after - 1
        least, most = (ends[-1] if ends else 0) + 1, len(units) - (min(parts, len(units)) - number)
        ends.append(min(max(closer + 1, least), most))
    return [*ends, len(units)] if units else []


def _fill(units: Sequence[str], by: Unit, size: int) -> tuple[list[str], list[int]]:
    """Units of at most `size` characters, split into smaller ones if needed, and the places of the cuts."""
    small = list(_small(units, by, size))
    ends: list[int] = []
    length = 0
    for number, unit in enumerate(small):
        if length and length + len(unit) > size:
            ends.append(number)
            length = 0
        length += len(unit)
    return small, [*ends, len(small)] if small else []


def _small(units: Sequence[str], by: Unit, size: int) -> Iterator[str]:
    """The units. In place of one that is too long, its parts in the next smaller unit."""
    for unit in units:
        if len(unit) <= size:
            yield unit
        else:
            yield from _small(units_of(unit, FINER[by]), FINER[by], size)


def _back(start: int, end: int, overlap: int) -> int:
    """The start of a piece with its overlap; the overlap is never longer than the piece itself."""
    return start - min(overlap, max(end - start - 1, 0)) if start else 0


def concat(results: Sequence[Any]) -> Any:
    """Merge the results: lists and tuples into one list; mappings, sets or texts into one of their kind.

    For a key in several mappings the last one wins. Raises TypeError for other types, and for a mix of kinds.

    Example:
        >>> concat([[1], [2, 3]])
        [1, 2, 3]
    """
    first: Any = results[0]
    for kind, merged in _MERGED:
        if isinstance(first, kind):
            if all(isinstance(result, kind) for result in results):
                return merged(results)
            break
    kinds = sorted({type(result).__name__ for result in results})
    raise TypeError(
        f"concat cannot merge {', '.join(kinds)}: write merge= as a function of the list of results"
    )


_MERGED: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (str, "".join),
    ((list, tuple), lambda results: [item for result in results for item in result]),
    (Mapping, lambda results: {key: value for result in results for key, value in result.items()}),
    ((set, frozenset), lambda results: set[Any]().union(*results)),
)


def join(separator: str = "\n\n") -> Any:
    """A merger of texts: one after the other, with `separator` between them.

    Example:
        >>> join(", ")(["a", "b"])
        'a, b'
    """
    return separator.join


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

    by_position: ClassVar[tuple[str, ...]] = ("split", "merge", "max_depth")

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

    if TYPE_CHECKING:

        def __init__(
            self,
            split: Splitter,
            merge: Merger = "concat",
            max_depth: int = 3,
            *,
            parallel: int | None = None,
        ) -> None: ...

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
        if isinstance(self.split, Split):
            check_parameters("decompose= splits", [self.split.parameter], fn)
        else:
            _check("split", cast("Any", self.split), fn, isasync, skip=0)
        if not isinstance(self.merge, str):
            _check("merge", self.merge, fn, isasync, skip=1)


def _check(
    role: Literal["split", "merge"],
    target: Callable[..., Any],
    fn: Callable[..., Any],
    isasync: bool,
    *,
    skip: int,
) -> None:
    if is_async(target) and not isasync:
        refuse_async(f"decompose={role}=", fn)
    parameters = list(_parameters(target).values())
    if len([parameter for parameter in parameters if parameter.kind is not parameter.KEYWORD_ONLY]) < skip:
        raise ConfigurationError("decompose=merge= takes no arguments: write def merge(results): ...")
    names = names_without_default(parameters[skip:])
    check_parameters(f"decompose={role}= needs the parameter", names, fn, OFFERED)


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
