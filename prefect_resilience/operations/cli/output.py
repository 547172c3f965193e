"""Where things are printed: what was asked for on stdout, everything else on stderr."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from pydantic import BaseModel
from rich.console import Console, RenderableType

from prefect_resilience.errors.exceptions import ConfigurationError

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


_UNITS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_SPAN = re.compile(r"(?:\d+(?:\.\d+)?[dhms])+")
_PART = re.compile(r"(\d+(?:\.\d+)?)([dhms])")
LONGEST = timedelta(days=3650)


def until(text: str, now: datetime) -> datetime | timedelta:
    """What `--until` means: a span from now ("10m", "1h30m") or a time ("2026-11-20T18:00").

    A time without an offset is in the zone of `now`. Raises ConfigurationError for what is neither or over.
    """
    written = text.strip()
    if _SPAN.fullmatch(written.lower()):
        seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(written.lower()))
        if not 0 < seconds <= LONGEST.total_seconds():
            raise ConfigurationError(f"--until {text} must be more than no time and at most ten years")
        return timedelta(seconds=seconds)
    try:
        # Python 3.10 does not know Z.
        moment = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", written))
    except ValueError:
        raise ConfigurationError(
            f"--until {text!r} is no time: write a span as in 10m or 1h30m, or a time as in "
            f"{now + timedelta(hours=1):%Y-%m-%dT%H:%M}"
        ) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=now.tzinfo)
    if moment <= now:
        raise ConfigurationError(f"--until {text} is over: name a time to come, or leave it out")
    return moment


def span(seconds: float) -> str:
    """A duration in its two greatest units: "28 s", "1 min 30 s", "2 h 5 min", "3 d 4 h"."""
    whole = max(0, round(seconds))
    parts: list[str] = []
    for name, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        number, whole = divmod(whole, size)
        if number:
            parts.append(f"{number} {name}")
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


def local(time: float, now: float) -> str:
    """A time of the store in the zone of this host, with its age: "2026-11-20 14:37:07 (5 min ago)"."""
    away = span(abs(time - now))
    told = "now" if away == "0 s" else f"{away} ago" if time < now else f"in {away}"
    return f"{datetime.fromtimestamp(time).astimezone():%Y-%m-%d %H:%M:%S %Z} ({told})"
