"""A bar while a plan runs, on stderr and only in a terminal; log lines appear above it."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from threading import Lock
from typing import IO, cast

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from prefect_resilience.graphs.plans import progress
from prefect_resilience.operations.cli import output

WAITING = "starting"
COLOUR = "#56b4e9"


@contextmanager
def bar() -> Generator[None, None, None]:
    """Show how far the plan is that is run inside this block."""
    console = output.stderr()
    if not (console.is_terminal and console.is_interactive):
        yield
        return
    columns = (
        SpinnerColumn(style=COLOUR),
        BarColumn(complete_style=COLOUR, finished_style=COLOUR, pulse_style=COLOUR),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with (
        Progress(*columns, console=console, transient=True, redirect_stdout=False) as drawn,
        _logs_above(console),
    ):
        row = drawn.add_task(WAITING, total=None)

        def told(now: progress.Progress) -> None:
            # A plan inside a node has a bar of its own in nobody's sight: its node stands for it here.
            if now.depth == 0:
                drawn.update(row, completed=now.ended, total=now.total, description=_described(now))

        with progress.listening(told):
            yield


def _described(now: progress.Progress) -> str:
    at_work = f"{now.running} at work" if now.running else ""
    latest = f"{output.printable(now.latest)} has ended" if now.latest else ""
    return Text(", ".join(filter(None, (at_work, latest)))[:80]).plain


class _Above(io.TextIOBase):
    """A file whose lines appear above the bar, which draws itself again below them."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._begun = ""
        self._lock = Lock()

    def write(self, text: str, /) -> int:
        with self._lock:
            *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            self._console.print(Text.from_ansi(line), soft_wrap=True)
        return len(text)

    def writable(self) -> bool:
        return True


@contextmanager
def _logs_above(console: Console) -> Generator[None, None, None]:
    """Have the consoles of Prefect's log, which write to the terminal by themselves, write above the bar."""
    above = _Above(console)
    terminal = (sys.__stderr__, sys.__stdout__)
    swapped = [(own, own.file) for own in _consoles(_loggers()) if own.file in terminal]
    for own, _ in swapped:
        own.file = cast("IO[str]", above)
    try:
        yield
    finally:
        for own, file in swapped:
            own.file = file


def _loggers() -> Iterable[logging.Logger]:
    known = list(logging.Logger.manager.loggerDict.values())
    return [logging.getLogger(), *(logger for logger in known if isinstance(logger, logging.Logger))]


def _consoles(loggers: Iterable[logging.Logger]) -> Iterable[Console]:
    """The rich consoles that log handlers write to, each once."""
    found = {
        id(console): console
        for logger in loggers
        for handler in logger.handlers
        if isinstance(console := getattr(handler, "console", None), Console)
    }
    return found.values()
