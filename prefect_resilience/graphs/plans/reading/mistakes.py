"""The mistakes of a plan, each with a place and a sentence, also the translated ones of pydantic."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, reduce
from itertools import islice
from typing import Any, cast

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from prefect_resilience.base.plain import shortly
from prefect_resilience.base.policy import closest, mend
from prefect_resilience.base.text import plural
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.guards.retries import Backoff, Retry, RetryBudget
from prefect_resilience.guards.retries.policy import BACKOFF_SPELLINGS, CAMEL_CASE, SPELLINGS

MOST_MISTAKES = 1_000
"""Reading stops at this many mistakes."""

SHOWN = 50
SHOWN_LENGTH = 500


@dataclass(frozen=True, slots=True)
class Mistake:
    """One mistake: its place (`tasks[3].condition.operator`; empty for the whole plan) and a sentence."""

    place: str
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}" if self.place else self.message


class PlanError(ConfigurationError):
    """A plan that was rejected. `mistakes` has all of its mistakes, up to `MOST_MISTAKES`.

    The message lists the first fifty. `source` is the file's name, or "the plan".
    """

    def __init__(self, mistakes: Iterable[Mistake], source: str = "the plan") -> None:
        self.mistakes: tuple[Mistake, ...] = tuple(mistakes)
        self.source = source
        count = len(self.mistakes)
        least = "at least " if count >= MOST_MISTAKES else ""
        lines = [f"{source} has {least}{plural(count, 'mistake')}:"]
        lines += [shorten(str(mistake), SHOWN_LENGTH) for mistake in self.mistakes[:SHOWN]]
        if count > SHOWN:
            lines.append(f"and {count - SHOWN:,} more")
        super().__init__("\n".join(lines))


def shorten(text: str, length: int = 80) -> str:
    """The text, cut to `length`; characters that cannot be printed or encoded are escaped."""
    if len(text) > length:
        text = text[: length - 1] + "…"
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


LONGEST = 100
MOST_COMPARED = 500
MOST_LISTED = 12
MOST_SUGGESTED = 100
"""Wrong names that one `Names` compares, because each takes milliseconds."""


class Names:
    """Right names, to suggest one in place of a wrong one. Only the first 500 are compared."""

    def __init__(self, right: Iterable[str]) -> None:
        names = islice(right, MOST_COMPARED)
        self._right = {name.casefold(): name for name in names if len(name) <= LONGEST}
        self._left = MOST_SUGGESTED

    def suggestion(self, wrong: Any) -> str:
        """`; did you mean 'x'?`, or the right names if they are few, as the end of a sentence."""
        if isinstance(wrong, str) and 0 < len(wrong) <= LONGEST and self._left:
            self._left -= 1
            near = closest(wrong.casefold(), [*self._right])
            if near is not None:
                return f"; did you mean {shortly(self._right[near])}?"
        if 0 < len(self._right) <= MOST_LISTED:
            return f"; write one of {', '.join(shorten(name) for name in sorted(self._right.values()))}"
        return ""


Place = tuple[str | int, ...]
Wrong = tuple[Place, str]
"""A mistake in data: its place there, and a sentence."""

MOST_PARTS = 20
"""Steps of a place that are shown."""


def place_text(place: Iterable[str | int]) -> str:
    """A place as text: `tasks[3].input['a key']`."""
    parts = list(place)
    return reduce(inside, parts[:MOST_PARTS], "") + ("…" if len(parts) > MOST_PARTS else "")


def inside(place: str, key: Any) -> str:
    """The place of a field in an object, or of an item in a list."""
    if isinstance(key, int):
        return f"{place}[{key}]"
    if isinstance(key, str) and re.fullmatch(r"[\w-]+", key):
        return f"{place}.{key}" if place else key
    return f"{place}[{shortly(key, 40)}]"


def mistakes_in(wrong: Iterable[Wrong], data: Any) -> list[Mistake]:
    """The mistakes in data, with its author's names in their places."""
    return [Mistake(place_text(_as_written(place, data)), says) for place, says in wrong]


def _as_written(place: Place, data: Any) -> Iterator[str | int]:
    """The place in the names of the author, up to a value that has no parts: a single name needs no list."""
    for part in place:
        if isinstance(data, str | int):
            return
        if isinstance(data, Mapping) and part not in data:
            fields = cast("Mapping[Any, Any]", data)
            part = next((name for name in _OTHER_NAMES.get(str(part), ()) if name in fields), part)
        yield part
        try:
            data = cast("Any", data)[part]
        except (LookupError, TypeError):
            data = None


_OTHER_NAMES = {
    "type": ("kind",),
    "input": ("implementation",),
    "to": ("to_node_id",),
    "as": ("item",),
    "attempts": ("max_retries", "max_attempts"),
    "retry_on": ("retryable_errors",),
}


def sentences_of(error: ValidationError, model: type[BaseModel]) -> list[Wrong]:
    """Every mistake of a model: the place in the model, and a sentence."""
    wrong: dict[Wrong, None] = {}
    names: dict[type[BaseModel], Names] = {}
    for detail in error.errors(include_url=False):
        place = tuple(part for part in detail["loc"] if part != "[key]")
        part = next((PARTS[name] for name in reversed(place[:-1]) if name in PARTS), model)
        wrong[place, _sentence(detail, part, place, names)] = None
    return list(wrong)


def _sentence(
    error: ErrorDetails, model: type[BaseModel], place: Place, names: dict[type[BaseModel], Names]
) -> str:
    match error["type"]:
        case "plan" | "condition":
            return error["msg"]
        case "value_error":
            return str(error.get("ctx", {}).get("error", error["msg"]))
        case "extra_forbidden":
            right = names.setdefault(model, Names(_field_names(model)))
            return f"unknown field{right.suggestion(str(place[-1]))}"
        case "missing":
            field = model.model_fields.get(str(place[-1]))
            meaning = (field.description or "").rstrip(".") if field else ""
            return f"is missing: {meaning[:1].lower()}{meaning[1:]}" if meaning else "is missing"
        case "model_type" | "model_attributes_type":
            return f"write a mapping, not {shortly(error['input'])}"
        case _:
            says, _, _ = shorten(mend(error), 300).partition(", as in ")
            return f"{says}, not {shortly(error['input'])}" if says.startswith("write ") else says


PARTS: dict[str, type[BaseModel]] = {
    "retry_policy": Retry,
    "by_category": Retry,
    "backoff": Backoff,
    "budget": RetryBudget,
}
"""The model of each field, by the field's name. `model.py` adds the models of a plan."""


@cache
def _field_names(model: type[BaseModel]) -> tuple[str, ...]:
    """The accepted names of a model's fields."""
    names = [field.alias or name for name, field in model.model_fields.items()]
    more = ("max_retries", *SPELLINGS, *BACKOFF_SPELLINGS, *CAMEL_CASE) if model is Retry else ()
    return tuple(sorted([*names, *more]))
