"""What is wrong with a plan: every mistake, each with its place."""

from __future__ import annotations

import difflib
import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from prefect_resilience.errors.exceptions import ConfigurationError

MOST_MISTAKES = 10_000
"""A plan is read no further once it has this many mistakes."""

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
    """A plan that was refused whole. `mistakes` has all of them, up to `MOST_MISTAKES`.

    The text lists the first fifty. `source` is the file's name, or "the plan".
    """

    def __init__(self, mistakes: Iterable[Mistake], source: str = "the plan") -> None:
        self.mistakes: tuple[Mistake, ...] = tuple(mistakes)
        self.source = source
        super().__init__(_listed(self.mistakes, source))

    def __reduce__(self) -> tuple[type[PlanError], tuple[tuple[Mistake, ...], str]]:
        return type(self), (self.mistakes, self.source)


def _listed(mistakes: tuple[Mistake, ...], source: str) -> str:
    count = len(mistakes)
    several = "1 mistake" if count == 1 else f"{count:,} mistakes"
    if count >= MOST_MISTAKES:
        several = f"at least {several}"
    lines = [shortened(str(mistake), SHOWN_LENGTH) for mistake in mistakes[:SHOWN]]
    if count > SHOWN:
        lines.append(f"and {count - SHOWN:,} more")
    return "\n".join([f"{source} has {several}:", *lines])


def shortened(text: str, length: int = 80) -> str:
    """The text, cut to `length`, with what cannot be printed or encoded escaped."""
    if len(text) > length:
        text = text[: length - 1] + "…"
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


def quoted(value: object, length: int = 60) -> str:
    """A value as a mistake shows it: short, and never more work than its length."""
    if isinstance(value, str):
        short = shortened(value, length)
        return repr(value) if short == value else f"'{short}'"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    if value is None or value is True or value is False:
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int) and value.bit_length() > 200:
        return "a very long number"
    if isinstance(value, int | float):
        return repr(value)
    return f"a {type(value).__name__}"


LONGEST = 100
FEW = 500
NEIGHBOURS = 20
MOST_LISTED = 12
COMPARISONS = 8_000
"""Names that one `Names` compares closely, over all that it is asked; then only spelling is looked at."""


def suggestion(wrong: Any, right: Sequence[str]) -> str:
    """`; did you mean 'x'?`, or what may be written instead, to end a sentence with."""
    return Names(right).suggestion(wrong)


class Names:
    """Right names, asked for the one that is nearest to a wrong one."""

    def __init__(self, right: Iterable[str]) -> None:
        self._right = [name for name in right if len(name) <= LONGEST]
        self._left = COMPARISONS
        self._sorted: list[tuple[str, str]] = []
        self._reversed: list[tuple[str, str]] = []
        self._plain: dict[str, str] = {}

    def suggestion(self, wrong: Any, *, listed: bool = True) -> str:
        """`; did you mean 'x'?`; else the names, if they are few and `listed`."""
        near = self.nearest(wrong) if isinstance(wrong, str) else None
        if near is not None:
            return f"; did you mean {quoted(near)}?"
        if listed and 0 < len(self._right) <= MOST_LISTED:
            return f"; write one of {', '.join(shortened(name) for name in sorted(self._right))}"
        return ""

    def nearest(self, wrong: str) -> str | None:
        """The right name that is most like it, None if none is."""
        if not wrong or len(wrong) > LONGEST:
            return None
        if not self._plain:
            self._index()
        spelled = self._plain.get(_spelling(wrong))
        if spelled is not None:
            return spelled
        near = self._right if len(self._right) <= FEW else self._neighbours(wrong)
        if self._left < len(near):
            return None
        self._left -= len(near)
        close = difflib.get_close_matches(wrong, near, n=1)
        return close[0] if close else None

    def _index(self) -> None:
        self._plain = {_spelling(name): name for name in reversed(self._right)}
        if len(self._right) > FEW:
            self._sorted = sorted((name, name) for name in self._right)
            self._reversed = sorted((name[::-1], name) for name in self._right)

    def _neighbours(self, wrong: str) -> list[str]:
        """Names that begin or end most like it."""
        near: dict[str, None] = {}
        for names, key in ((self._sorted, wrong), (self._reversed, wrong[::-1])):
            at = bisect_left(names, (key, ""))
            near.update((name, None) for _, name in names[max(0, at - NEIGHBOURS) : at + NEIGHBOURS])
        return list(near)


def _spelling(name: str) -> str:
    """A name without what is often mistaken: capitals, spaces, - and _."""
    return re.sub(r"[\s_-]+", "", name.casefold()) or name
