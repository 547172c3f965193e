"""`circuits watch`: the fleet again and again, through a store's outage, until it is enough."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from datetime import datetime

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from prefect_resilience.errors.exceptions import StoreUnavailable
from prefect_resilience.operations.cli import output, tables
from prefect_resilience.operations.cli.fleet import Fleet, read_fleet


def watch_json(url: str, interval: float, count: int | None) -> int:
    """A line of JSON for each time the store answered; what it did not answer is said on stderr."""
    answered = True
    for _ in _ticks(interval, count):
        fleet, trouble = _look(url)
        if fleet is not None:
            output.as_json(fleet.circuits, indent=None)
        # An outage is said once, not at every tick.
        if answered and trouble:
            output.say(trouble)
        elif not answered and not trouble:
            output.say("The store answers again.")
        answered = not trouble
    return 0 if answered else 1


def watch_table(url: str, interval: float, count: int | None) -> int:
    """The table, drawn over itself on a terminal, printed again elsewhere."""
    last: tuple[Fleet, datetime] | None = None
    trouble = ""
    with _canvas() as draw:
        for _ in _ticks(interval, count):
            fleet, trouble = _look(url)
            if fleet is not None:
                last = fleet, datetime.now()
            draw(_picture(last, trouble, interval))
    return 1 if trouble else 0


def _look(url: str) -> tuple[Fleet | None, str]:
    """What the store says, and a sentence when it says nothing."""
    try:
        return read_fleet(url), ""
    except StoreUnavailable as error:
        sentence = str(error)
        return None, sentence[:1].upper() + sentence[1:]


def _ticks(interval: float, count: int | None) -> Iterator[int]:
    """`count` times, or for ever."""
    tick = 0
    while count is None or tick < count:
        if tick:
            time.sleep(interval)
        yield tick
        tick += 1


@contextmanager
def _canvas() -> Generator[Callable[[RenderableType], None], None, None]:
    console = output.stdout()
    if not console.is_terminal:
        yield console.print
        return
    with Live(console=console, auto_refresh=False) as live:
        yield lambda picture: live.update(picture, refresh=True)


def _picture(last: tuple[Fleet, datetime] | None, trouble: str, interval: float) -> RenderableType:
    parts: list[RenderableType] = []
    if trouble:
        parts.append(Text(trouble, style=tables.COLOURS["open"]))
    if last is not None:
        fleet, at = last
        told = "as it was at" if trouble else f"every {interval:g} s, Ctrl-C ends it;"
        parts.append(Text(f"{tables.summary(fleet)}; {told} {at:%H:%M:%S}"))
        if fleet.circuits:
            parts.append(tables.circuits_table(fleet))
    return Group(*parts)
