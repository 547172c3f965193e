"""How all commands look: tables, cards, states with their signs and colours, times and durations."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from rich.box import SIMPLE_HEAD
from rich.console import JustifyMethod
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, TextColumn
from rich.table import Column, Table
from rich.text import Text

from prefect_resilience.errors.secrets.redact import redact

Cell = Text | str

# Colours of Okabe and Ito, who chose them for the colour-blind.
BLUE, YELLOW, ORANGE, PURPLE, VERMILION = "#56b4e9", "#f0e442", "#e69f00", "#cc79a7", "bold #d55e00"

STATES = {
    # circuits
    "closed": ("✓", BLUE),
    "open": ("✗", VERMILION),
    "half_open": ("?", YELLOW),
    "forced_open": ("!", VERMILION),
    "disabled": ("-", PURPLE),
    # effects and batches
    "intended": ("»", YELLOW),
    "unknown": ("?", VERMILION),
    "failed": ("✗", VERMILION),
    "crashed": ("✗", VERMILION),
    "done": ("✓", BLUE),
    "compensating": ("?", VERMILION),
    "compensated": ("↩", PURPLE),
    "archived": ("-", PURPLE),
    "abandoned": ("-", PURPLE),
    # dead letters and their replays
    "waiting": ("…", ORANGE),
    "replaying": ("»", YELLOW),
    "in_doubt": ("?", VERMILION),
    "replayed": ("✓", BLUE),
    "settled": ("=", BLUE),
    "would_replay": ("…", ORANGE),
    # nodes of a plan
    "succeeded": ("✓", BLUE),
    "handled": ("!", ORANGE),
    "skipped": ("-", PURPLE),
    # what `install` changed
    "created": ("", BLUE),
    "changed": ("", YELLOW),
    "removed": ("", VERMILION),
    "kept": ("", PURPLE),
    # what `doctor` found
    "note": ("!", YELLOW),
    "wrong": ("✗", VERMILION),
}
"""The sign and the colour of each state: signs that every terminal has, beside a word that says the same."""


def state(name: str, word: str | None = None) -> Text:
    """The state in a word, with its sign and colour."""
    sign, colour = STATES.get(name, ("", ""))
    shown = name.replace("_", " ") if word is None else word
    return Text(f"{sign} {shown}".strip(), style=colour)


def printable(text: str) -> str:
    """`text` on one line and without control characters: names and errors come from services."""
    folded = " ".join(text.split())
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in folded)


def safe(text: str) -> str:
    """`text` on one line, without control characters and secrets."""
    return printable(redact(text))


# -- tables and cards


def word(heading: str) -> Column:
    """A column of short words, which are never wrapped."""
    return Column(heading, no_wrap=True)


def number(heading: str) -> Column:
    """A column of figures."""
    return Column(heading, no_wrap=True, justify="right")


def text(heading: str, min_width: int | None = None, justify: JustifyMethod = "left") -> Column:
    """A column of texts. They are folded where they must be, never cut: a name is there to be copied."""
    return Column(heading, overflow="fold", min_width=min_width, justify=justify)


def table(columns: Iterable[Column], rows: Iterable[Iterable[Cell]], *, head: bool = True) -> Table:
    """A table; its cells are printed without control characters."""
    made = Table(
        *columns,
        box=SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
        header_style="bold",
        show_header=head,
    )
    for row in rows:
        made.add_row(*map(_cell, row))
    return made


def card(rows: Iterable[tuple[str, Cell]]) -> Table:
    """Labels and texts beside each other."""
    made = Table.grid(
        Column(style="bold", no_wrap=True),
        Column(overflow="fold"),
        padding=(0, 2),
    )
    for label, value in rows:
        made.add_row(label, _cell(value))
    return made


def _cell(value: Cell) -> Text:
    return value if isinstance(value, Text) else Text(printable(value))


def bar_columns() -> tuple[ProgressColumn, ...]:
    """A progress bar with its numbers and a description."""
    return (
        BarColumn(complete_style=BLUE, finished_style=BLUE, pulse_style=BLUE),
        MofNCompleteColumn(),
        TextColumn("{task.description}", markup=False),
    )


# -- times and durations


def span(seconds: float) -> str:
    """A duration in its two greatest units: "28 s", "1 min 30 s", "2 h 5 min", "3 d 4 h"."""
    whole = max(0, round(seconds))
    parts: list[str] = []
    for name, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, whole = divmod(whole, size)
        if count:
            parts.append(f"{count} {name}")
        elif parts:
            break
    return " ".join(parts[:2]) or "0 s"


def rough(seconds: float) -> str:
    """A duration in its greatest unit, for tables: "28 s", "90 s", "5 min", "3 h", "12 d"."""
    whole = max(0, round(seconds))
    for name, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if whole >= 2 * size:
            return f"{whole // size} {name}"
    return f"{whole} s"


def clock(time: float) -> str:
    """A time in the zone of this host: "2026-11-20 14:37:07"."""
    return f"{datetime.fromtimestamp(time).astimezone():%Y-%m-%d %H:%M:%S}"


def local(time: float, now: float) -> str:
    """A time in the zone of this host, with its age: "2026-11-20 14:37:07 CET (5 min ago)"."""
    away = span(abs(time - now))
    age = "now" if away == "0 s" else f"{away} ago" if time < now else f"in {away}"
    return f"{datetime.fromtimestamp(time).astimezone():%Y-%m-%d %H:%M:%S %Z} ({age})"
