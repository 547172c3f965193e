"""Where things are printed: what was asked for on stdout, everything else, such as questions, on stderr."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from pydantic_core import to_jsonable_python
from rich.console import Console, RenderableType
from rich.prompt import Confirm

from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.operations.cli.look import printable

WIDTH_OF_FILES = 120
ASKED_ABOUT = 20
"""So many things are shown before a question about all of them."""


class PipeConsole(Console):
    """A console that leaves a closed pipe, as in `| head`, to `main`."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def set_up() -> None:
    """Print what the terminal's encoding has no letters for as `?` rather than fail over it."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


def stdout() -> Console:
    """The console for tables. What is not a terminal gets lines wide enough to be searched."""
    fixed = None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDTH_OF_FILES
    return PipeConsole(width=fixed, highlight=False, markup=False)


def stderr() -> Console:
    """The console for questions and errors."""
    return Console(stderr=True, highlight=False, markup=False)


def show(*parts: RenderableType) -> None:
    """Print tables and sentences on stdout."""
    console = stdout()
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str))


def say(sentence: str) -> None:
    """Print a sentence on stderr, on one line however narrow the terminal is."""
    stderr().print(printable(sentence), soft_wrap=True)


def as_json(value: Any, indent: int | None = 2) -> None:
    """Print models or plain data as JSON: in ASCII, so that it is right in every encoding."""
    data = to_jsonable_python(value)
    sys.stdout.write(json.dumps(data, indent=indent) + "\n")
    sys.stdout.flush()


def answer(value: Any, *parts: RenderableType, json: bool) -> int:
    """Print the answer of a command as JSON or as text; exit code 0."""
    if json:
        as_json(value)
    else:
        show(*parts)
    return 0


def agreed(question: str, would: str, preview: RenderableType | None = None, number: int = 0) -> bool:
    """Whether a person says yes; ConfigurationError where there is nobody to answer.

    `would` completes "this would ...". `preview` is shown first: of `number` things the first ASKED_ABOUT.
    """
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigurationError(
            f"this would {would}, and nobody can be asked here: add --yes if it is meant"
        )
    console = stderr()
    if preview is not None:
        console.print(preview)
    if number > ASKED_ABOUT:
        console.print(f"  and {number - ASKED_ABOUT} more")
    try:
        said_yes = Confirm.ask(question, console=console)
    except (EOFError, KeyboardInterrupt):
        console.print()
        said_yes = False
    if not said_yes:
        say("Nothing was changed.")
    return said_yes
