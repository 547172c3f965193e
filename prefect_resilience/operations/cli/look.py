"""Output of all commands: tables, cards, states, times, JSON and questions.

Answers go to stdout; questions and errors go to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, TextIO, cast

from pydantic_core import to_jsonable_python
from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Column, Table
from rich.text import Text

from prefect_resilience.base.text import lasting, printable, sentence_of
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact, redact_data

# Colours of Okabe and Ito, chosen for the colour-blind.
BLUE, YELLOW, ORANGE, PURPLE, VERMILION = "#56b4e9", "#f0e442", "#e69f00", "#cc79a7", "bold #d55e00"

STATES: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("closed", "done", "replayed", "succeeded", "settled", "created"), ("✓", BLUE)),
    **dict.fromkeys(("open", "failed", "crashed", "wrong", "removed"), ("✗", VERMILION)),
    **dict.fromkeys(("unknown", "compensating", "in_doubt"), ("?", VERMILION)),
    **dict.fromkeys(("intended", "replaying", "half_open", "changed"), ("»", YELLOW)),
    **dict.fromkeys(("waiting", "would_replay"), ("…", ORANGE)),
    **dict.fromkeys(("forced_open", "handled", "note"), ("!", ORANGE)),
    **dict.fromkeys(("disabled", "archived", "abandoned", "skipped", "compensated", "kept"), ("-", PURPLE)),
}
"""The sign and the colour of each state. Every terminal has the signs; the word is always printed as well."""
WORDS = {"told": "needs a person"}
"""Words for states that people do not know by their names."""


def state(name: str, word: str | None = None) -> Text:
    """The state as a word with its sign and colour."""
    sign, colour = STATES.get(name, ("", ""))
    shown = WORDS.get(name, name.replace("_", " ")) if word is None else word
    return Text(f"{sign} {shown}".strip(), style=colour)


@lru_cache(maxsize=4096)
def safe(text: str) -> str:
    """`text` on one line, without control characters and secrets. Cached: redacting is slow."""
    return printable(redact(text))


def clip(text: str, most: int) -> str:
    """The first letters of a text that is too long."""
    return text if len(text) <= most else f"{text[:most]}…"


# -- tables and cards

Columns = Mapping[str, str | Callable[[Any], Any]]
"""The columns of a table by their headings. Each shows a field of the row, or what a function makes of it."""

ID, NARROWEST = 36, 12
"""The width of an id. States, numbers and ids are never folded; texts are, to no less than NARROWEST. Nothing
is cut, so that names can be copied."""
STATE_FIELDS = {"state", "status", "outcome", "action"}


def table(columns: Columns, rows: Iterable[Any]) -> Table:
    """A table with a line for each row, without the columns that are empty in every row."""
    drawn = Table(box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False, header_style="bold")
    rows, lines = list(rows), list[list[Text]]()
    for heading, field in columns.items():
        values = [getattr(row, field) if isinstance(field, str) else field(row) for row in rows]
        cells = [cell(field if isinstance(field, str) else heading, value) for value in values]
        if any(cells):
            widest = max(text.cell_len for text in cells)
            is_number = all(isinstance(value, int | None) for value in values)
            drawn.add_column(
                heading,
                justify="right" if is_number else "left",
                no_wrap=is_number or widest == ID or all(text.style for text in cells),
                overflow="fold",
                min_width=min(widest, NARROWEST),
            )
            lines.append(cells)
    for cells in zip(*lines, strict=True):
        drawn.add_row(*cells)
    return drawn


def card(document: Any) -> Table:
    """A row for each field of a document that has a value, and for each item of a list or mapping in it."""
    drawn = Table.grid(Column(style="bold", no_wrap=True), Column(overflow="fold"), padding=(0, 2))
    fields: dict[str, Any] = to_jsonable_python(document)
    for name, value in fields.items():
        for place, line in enumerate(filter(None, _lines(name, value))):
            drawn.add_row("" if place else name.replace("_", " "), line)
    return drawn


def _lines(name: str, value: Any) -> list[Text]:
    if isinstance(value, dict):
        return [Text(f"{key} = ") + text for key, text in _cells(cast("dict[str, Any]", value))]
    items = cast("list[Any]", value) if isinstance(value, list) else [value]
    return [cell(name, item, in_full=True) for item in items]


def _cells(members: Mapping[str, Any]) -> Iterator[tuple[str, Text]]:
    """The members that have a value."""
    cells = ((name, cell(name, member, in_full=True)) for name, member in members.items())
    return ((name, text) for name, text in cells if text)


def cell(name: str, value: Any, *, in_full: bool = False) -> Text:
    """The value of a field as its kind is shown. Secrets are masked in all but names.

    in_full: a time is shown with its date.
    """
    if isinstance(value, Text):
        return value
    if isinstance(value, Mapping):
        return Text(", ").join(
            Text(f"{key} ") + text for key, text in _cells(cast("Mapping[str, Any]", value))
        )
    if value in (None, "", []):
        return Text()
    if name == "at" or name.endswith("_at"):
        return _time_cell(value, in_full)
    if not isinstance(value, str):
        return Text(f"{value:,.6g}" if isinstance(value, float) else json.dumps(redact_data(value)))
    if name in STATE_FIELDS:
        return state(value)
    if "\n" in value:
        return Text("\n".join(f"{line[: -len(line.lstrip())]}{safe(line)}" for line in value.splitlines()))
    return Text(printable(value) if name in ("name", "key", "id") or name.endswith("_id") else safe(value))


def _time_cell(at: float | str | datetime, in_full: bool) -> Text:
    """A time as "5 min ago" or "in 10 s"; in full as "2026-11-20 14:37:07 CET (5 min ago)"."""
    moment = datetime.fromisoformat(at) if isinstance(at, str) else at
    seconds = moment.timestamp() if isinstance(moment, datetime) else moment
    away = round(seconds - time.time())
    age = f"in {lasting(away)}" if away > 0 else f"{lasting(-away)} ago" if away else "now"
    if not seconds or not in_full:
        return Text(age if seconds else "")
    return Text(f"{datetime.fromtimestamp(seconds).astimezone():%Y-%m-%d %H:%M:%S %Z} ({age})")


def finding(level: str, where: str, says: str, mend: str, of: str = "") -> Table:
    """A finding with its sign: the place, the problem, and how to fix it. `of` is the name of its check."""
    drawn = Table.grid(Column(no_wrap=True), Column(overflow="fold"), padding=(0, 1))
    drawn.add_row(state(level, ""), Text(f"{of}: " if of else "").append(printable(where), style="bold"))
    drawn.add_row("", Text(printable(says)))
    drawn.add_row("", Text(f"→ {printable(mend)}", style="dim"))
    return drawn


WIDTH_OF_FILES = 120
ASKED_ABOUT = 20
"""Items shown before a question about all of them."""


class PipeConsole(Console):
    """A console that raises BrokenPipeError for a closed pipe, as in `| head`; `main` handles it."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def prepare() -> None:
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


def confirm(deed: str, columns: Columns | None = None, items: Sequence[Any] = (), number: int = 0) -> None:
    """Ask a person about a deed, as in "purge 30 letters", and show the first of the `number` items before.

    Raises ConfigurationError if the answer is no, or if there is no terminal.
    """
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigurationError(
            f"this would {deed}, and there is no terminal to ask for confirmation: add --yes to confirm"
        )
    console = stderr()
    if columns is not None:
        console.print(table(columns, items[:ASKED_ABOUT]))
    if number > ASKED_ABOUT:
        console.print(f"  and {number - ASKED_ABOUT:,} more")
    from rich.prompt import Confirm

    try:
        is_confirmed = Confirm.ask(f"{sentence_of(deed)}?", console=console)
    except (EOFError, KeyboardInterrupt):
        console.print()
        is_confirmed = False
    if not is_confirmed:
        raise ConfigurationError("nothing was changed: the answer was no")
