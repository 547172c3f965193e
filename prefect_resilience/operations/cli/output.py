"""Where things are printed: what was asked for on stdout, everything else on stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel
from rich.console import Console, RenderableType

WIDTH_OF_FILES = 120


class Paper(Console):
    """A console that leaves a reader who has seen enough, as in `| head`, to `main`."""

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
    return Paper(width=fixed, highlight=False, markup=False)


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


def as_json(value: BaseModel | Iterable[BaseModel], indent: int | None = 2) -> None:
    """Print a model, or a list of them, as JSON: in ASCII, so that it is right in every encoding."""
    data: Any = (
        value.model_dump(mode="json")
        if isinstance(value, BaseModel)
        else [item.model_dump(mode="json") for item in value]
    )
    sys.stdout.write(json.dumps(data, indent=indent) + "\n")
    sys.stdout.flush()


def printable(text: str) -> str:
    """`text` on one line and without control characters: names and errors come from services."""
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in _folded(text)
    )


def _folded(text: str) -> str:
    return " ".join(text.split())
