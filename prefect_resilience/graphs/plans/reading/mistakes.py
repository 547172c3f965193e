"""What is wrong with a plan: every mistake, each with its place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

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
