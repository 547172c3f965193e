"""Output of all commands: tables, cards, states, times, JSON and questions.

Answers go to stdout; questions and errors go to stderr.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO, TypeVar

from pydantic_core import to_jsonable_python
from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.prompt import Confirm
from rich.table import Column, Table
from rich.text import Text

from prefect_resilience.base.text import lasting
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact

T = TypeVar("T")
Cell = Text | str

# Colours of Okabe and Ito, chosen for the colour-blind.
BLUE, YELLOW, ORANGE, PURPLE, VERMILION = "#56b4e9", "#f0e442", "#e69f00", "#cc79a7", "bold #d55e00"

_STATES_BY_LOOK: dict[tuple[str, str], tuple[str, ...]] = {
    ("✓", BLUE): ("closed", "done", "replayed", "succeeded"),
    ("=", BLUE): ("settled",),
    ("", BLUE): ("created",),
    ("✗", VERMILION): ("open", "failed", "crashed", "wrong"),
    ("!", VERMILION): ("forced_open",),
    ("?", VERMILION): ("unknown", "compensating", "in_doubt"),
    ("", VERMILION): ("removed",),
    ("?", YELLOW): ("half_open",),
    ("»", YELLOW): ("intended", "replaying"),
    ("!", YELLOW): ("note",),
    ("", YELLOW): ("changed",),
    ("…", ORANGE): ("waiting", "would_replay"),
    ("!", ORANGE): ("handled",),
    ("-", PURPLE): ("disabled", "archived", "abandoned", "skipped"),
    ("↩", PURPLE): ("compensated",),
    ("", PURPLE): ("kept",),
}
STATES: dict[str, tuple[str, str]] = {name: look for look, names in _STATES_BY_LOOK.items() for name in names}
"""The sign and the colour of each state. Every terminal has the signs; the word is always printed as well."""


def state(name: str, word: str | None = None) -> Text:
    """The state as a word with its sign and colour."""
    sign, colour = STATES.get(name, ("", ""))
    shown = name.replace("_", " ") if word is None else word
    return Text(f"{sign} {shown}".strip(), style=colour)


def printable(text: str) -> str:
    """`text` on one line without control characters. Names and errors may come from services."""
    folded = " ".join(text.split())
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in folded)


def safe(text: str) -> str:
    """`text` on one line, without control characters and secrets."""
    return printable(redact(text))


# -- tables and cards


WORD, NUMBER, TEXT, FIGURES = "word", "number", "text", "figures"
"""Kinds of columns: words and numbers are never wrapped, texts and figures are folded. Nothing is cut, so
that names can be copied. A number in place of a kind is the minimum width of a text."""

Columns = Mapping[str, tuple[str | int, Callable[[T], Cell]]]
"""The columns of a table of rows by their headings: the kind of each, and what it shows of a row."""


def table(columns: Columns[T], rows: Iterable[T], *, head: bool = True) -> Table:
    """A table with a line for each row. Cells are printed without control characters."""
    drawn = Table(
        box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False, header_style="bold", show_header=head
    )
    for heading, (kind, _) in columns.items():
        drawn.add_column(
            heading,
            justify="right" if kind in (NUMBER, FIGURES) else "left",
            no_wrap=kind in (WORD, NUMBER),
            overflow="fold",
            min_width=kind if isinstance(kind, int) else None,
        )
    for row in rows:
        drawn.add_row(*(_cell(cell(row)) for _, cell in columns.values()))
    return drawn


def card(rows: Iterable[tuple[str, Cell]]) -> Table:
    """A card: a row for each label and its text."""
    drawn = Table.grid(Column(style="bold", no_wrap=True), Column(overflow="fold"), padding=(0, 2))
    for label, value in rows:
        drawn.add_row(label, _cell(value))
    return drawn


def finding(level: str, where: str, says: str, mend: str, of: str = "") -> Table:
    """A finding with its sign: the place, the problem, and how to fix it. `of` is the name of its check."""
    drawn = Table.grid(Column(no_wrap=True), Column(overflow="fold"), padding=(0, 1))
    drawn.add_row(state(level, ""), Text(f"{of}: " if of else "").append(printable(where), style="bold"))
    drawn.add_row("", Text(printable(says)))
    drawn.add_row("", Text(f"→ {printable(mend)}", style="dim"))
    return drawn


def sentence_list(title: str, sentences: Iterable[str]) -> Iterator[RenderableType]:
    """A list of sentences below a title; nothing if there are none."""
    for place, sentence in enumerate(sentences):
        if not place:
            yield Text(title, style="bold")
        yield Text(f"  {printable(sentence)}")


def _cell(value: Cell) -> Text:
    return value if isinstance(value, Text) else Text(printable(value))


# -- times and durations


def clock(time: float) -> str:
    """A time in this host's zone: "2026-11-20 14:37:07 CET"."""
    return f"{datetime.fromtimestamp(time).astimezone():%Y-%m-%d %H:%M:%S %Z}"


def local(time: float, now: float) -> str:
    """A time in this host's zone with its age: "2026-11-20 14:37:07 CET (5 min ago)"."""
    away = lasting(round(abs(time - now)))
    age = "now" if round(abs(time - now)) == 0 else f"{away} ago" if time < now else f"in {away}"
    return f"{clock(time)} ({age})"


WIDTH_OF_FILES = 120
ASKED_ABOUT = 20
"""Items shown before a question about all of them."""


class PipeConsole(Console):
    """A console that raises BrokenPipeError for a closed pipe, as in `| head`; `main` handles it."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def set_up() -> None:
    """Print `?` for characters that the terminal's encoding does not have. A stream that the caller closed
    is like /dev/null."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - it is open until the process ends
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


def discard(stream: TextIO) -> None:
    """Write nothing more to a stream that fails, so that Python does not flush into it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def stdout() -> Console:
    """The console for tables. Output to a file or a pipe has wide lines, so that they can be searched."""
    fixed = None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDTH_OF_FILES
    return PipeConsole(width=fixed, highlight=False, markup=False)


def stderr() -> Console:
    """The console for questions and errors."""
    return PipeConsole(stderr=True, highlight=False, markup=False)


def show(*parts: RenderableType) -> None:
    """Print tables and sentences on stdout."""
    console = stdout()
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str))


def say(sentence: str) -> None:
    """Print a sentence on stderr without wrapping it. If that fails, the exit code has to be enough."""
    try:
        stderr().print(printable(sentence), soft_wrap=True)
    except OSError:
        discard(sys.stderr)


def as_json(value: Any, indent: int | None = 2) -> None:
    """Print models or plain data as JSON, in ASCII, which every encoding has."""
    data = to_jsonable_python(value)
    sys.stdout.write(json.dumps(data, indent=indent) + "\n")
    sys.stdout.flush()


def write_file(path: Path, text: str) -> None:
    """Write a text file and say so. Raises ConfigurationError if that fails."""
    try:
        path.write_text(f"{text.removesuffix(chr(10))}\n", encoding="utf-8")
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise ConfigurationError(f"{path} cannot be written: {why}") from None
    say(f"Wrote {path}")


def answer(value: Any, *parts: RenderableType, json: bool) -> int:
    """Print the answer of a command as JSON or as text and return exit code 0."""
    if json:
        as_json(value)
    else:
        show(*parts)
    return 0


def is_confirmed(question: str, would: str, preview: RenderableType | None = None, number: int = 0) -> bool:
    """Ask a person; True for yes. Raises ConfigurationError if there is no terminal.

    `would` completes "this would ...". `preview` is printed first: the first ASKED_ABOUT of `number` items.
    """
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigurationError(
            f"this would {would}, and there is no terminal to ask for confirmation: add --yes to confirm"
        )
    console = stderr()
    if preview is not None:
        console.print(preview)
    if number > ASKED_ABOUT:
        console.print(f"  and {number - ASKED_ABOUT} more")
    try:
        if Confirm.ask(question, console=console):
            return True
    except (EOFError, KeyboardInterrupt):
        console.print()
    say("Nothing was changed.")
    return False
