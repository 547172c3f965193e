"""The table of what errors carry and say: `table.txt`, read at the first error."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TypeVar, cast

from prefect_resilience.base.text import Regex
from prefect_resilience.errors.taxonomy import ErrorCategory, Opinion, Words, category_of


@dataclass
class Codes:
    """Codes with their categories, and where an error of the library has its code."""

    places: list[str] = field(default_factory=list[str])
    patterns: list[Regex] = field(default_factory=list[Regex])
    categories: dict[str, ErrorCategory] = field(default_factory=dict[str, ErrorCategory])


class WordRows(list[Words]):
    """Words in the text, with their categories."""


S = TypeVar("S")
Step = Codes | WordRows | str | Opinion | None
"""Codes, words, another reader, the last word, or None: the class tells nothing."""


@dataclass
class TableBlock:
    """What the table says of a library, in the order in which it is tried."""

    steps: list[Step] = field(default_factory=list[Step])
    details: list[tuple[str, str, bool]] = field(default_factory=list[tuple[str, str, bool]])
    shows_codes: bool = False

    @property
    def codes(self) -> Codes:
        return self.last(Codes)

    def last(self, kind: type[S]) -> S:
        """The last step, or a new one if that is of another kind."""
        if not self.steps or not isinstance(self.steps[-1], kind):
            self.steps.append(cast("Step", kind()))
        return cast("S", self.steps[-1])

    def add(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == "at":
            self.codes.places += rest.split()
        elif word == "in":
            self.codes.patterns.append(Regex(rest))
        elif word in ("keep", "cut"):
            pairs = (name.partition("=") for name in rest.split())
            self.details += [(name, attribute or name, word == "cut") for name, _, attribute in pairs]
        elif word == "also":
            self.steps += rest.split()
        elif word == "else":
            category, _, code = rest.partition(" ")
            self.steps.append(None if category == "-" else Opinion(ErrorCategory(category), code or None))
        elif word == "show":
            self.shows_codes = True
        elif word == "~":
            category, code, pattern = rest.split(" ", 2)
            self.last(WordRows).append((pattern, ErrorCategory(category), None if code == "-" else code))
        else:
            self.codes.categories |= dict.fromkeys(rest.split(), ErrorCategory(word))


def read_table(text: str) -> dict[str, TableBlock]:
    """The blocks of a table, by each name in their heads; an unknown category raises ValueError."""
    blocks: dict[str, TableBlock] = {}
    block = TableBlock()
    for line in re.sub(r"\n  +", " ", text).splitlines():
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            block = TableBlock()
            blocks |= dict.fromkeys(line.strip("[]").split(), block)
        elif line.startswith("codes "):
            block.codes.categories |= blocks[line.removeprefix("codes ")].codes.categories
        else:
            block.add(line)
    return blocks


@cache
def blocks() -> dict[str, TableBlock]:
    """The package's own table: the libraries by the names of their classes, and the codes of standards."""
    return read_table(Path(__file__).with_name("table.txt").read_text("utf-8"))


@cache
def codes_of(name: str) -> dict[str, ErrorCategory]:
    """The codes of a standard in the table."""
    return blocks()[name].codes.categories


@cache
def places_of(name: str) -> list[str]:
    """The places of a block of the table."""
    return blocks()[name].codes.places


def pattern_of(name: str) -> Regex:
    """The expression of a block of the table."""
    return blocks()[name].codes.patterns[0]


def words_of(name: str) -> list[Words]:
    """The words of the table with this name."""
    return blocks()[name].last(WordRows)


@cache
def _sign(name: str) -> tuple[re.Pattern[str], Opinion]:
    rows = words_of(f"says.{name}")
    return re.compile("|".join(words for words, _, _ in rows)), Opinion(*rows[0][1:])


def says(name: str, text: str) -> Opinion | None:
    """The opinion of the table's words `says.…` on a text: that it says so."""
    pattern, opinion = _sign(name)
    return opinion if pattern.search(text.lower()) else None


def too_big(text: str) -> Opinion | None:
    """A message over a size limit, or a prompt over the model's."""
    return says("large", text) or says("overflow", text)


def status_category(status: int) -> ErrorCategory | None:
    """The category of an HTTP status, None below 300 (no error)."""
    return category_of(codes_of("http"), status)


def status_in(pattern: str, text: str) -> Opinion | None:
    """An opinion from the HTTP status that a pattern of the table finds in a text."""
    matches = pattern_of(pattern).finditer(text)
    status = next((int(next(filter(None, match.groups()))) for match in matches), None)
    category = status_category(status) if status else None
    return Opinion(category, str(status), details={"status": status}) if category else None
