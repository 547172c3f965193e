"""Circuits as tables. A state is told by a word and a sign; its colour can be told apart by everybody."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from prefect_resilience.errors.exceptions import StoreUnavailable
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.circuits import CircuitSnapshot
from prefect_resilience.operations.cli import output
from prefect_resilience.operations.cli.fleet import Fleet, read_fleet
from prefect_resilience.operations.cli.output import printable
from prefect_resilience.operations.flows import CircuitChange

# Signs that every terminal has; colours of Okabe and Ito, who chose them for the colour-blind.
SIGNS = {"closed": "✓", "open": "✗", "half_open": "?", "forced_open": "!", "disabled": "-"}
COLOURS = {
    "closed": "#56b4e9",
    "open": "bold #d55e00",
    "half_open": "#f0e442",
    "forced_open": "bold #d55e00",
    "disabled": "#cc79a7",
}
MEANINGS = {
    "closed": "calls go through",
    "open": "calls are refused until a probe may try",
    "half_open": "probes decide whether it closes",
    "forced_open": "calls are refused, by hand",
    "disabled": "every call goes through, and nothing is counted, by hand",
}
NARROWEST = 16
HEADINGS = ("state", "circuit", "failed", "in a row", "opened", "retry in", "probes")


def circuits_table(fleet: Fleet) -> RenderableType:
    """The fleet, a row each, and below it why those are not closed that are not."""
    rows = [_cells(circuit, fleet.now) for circuit in fleet.circuits]
    longest = max((cell_len(row[1].plain) for row in rows), default=0)
    table = _table()
    table.add_column("state", no_wrap=True)
    # Folded where it must be, never cut: a name is there to be copied.
    table.add_column("circuit", overflow="fold", min_width=min(longest, NARROWEST))
    # What no circuit has takes no room from the names.
    kept = [place for place in range(2, len(HEADINGS)) if any(row[place] for row in rows)]
    for place in kept:
        table.add_column(HEADINGS[place], justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row[0], row[1], *(row[place] for place in kept))
    return Group(table, *_reasons(fleet.circuits))


def _cells(circuit: CircuitSnapshot, now: float) -> list[Text]:
    opened, retry = circuit.opened_at, circuit.retry_at
    return [
        state_text(circuit.state),
        Text(printable(circuit.name)),
        Text(f"{circuit.window_failures}/{circuit.window_calls}"),
        Text(str(circuit.consecutive_failures)),
        Text("" if opened is None else f"{output.rough(now - opened)} ago"),
        Text("" if retry is None else output.rough(retry - now)),
        Text(str(circuit.probes_in_flight or "")),
    ]


def _reasons(circuits: Iterable[CircuitSnapshot]) -> Iterator[RenderableType]:
    for circuit in circuits:
        if circuit.state != "closed" and (reason := why(circuit)):
            line = Text("  ").append(printable(circuit.name), style="bold").append(f": {reason}")
            line.no_wrap, line.overflow = True, "ellipsis"
            yield line


def why(circuit: CircuitSnapshot) -> str:
    """The reason of its state and the last error, as far as there are any."""
    told = [circuit.reason, circuit.last_error]
    return "; ".join(printable(redact(text)) for text in told if text)


def state_text(state: str) -> Text:
    """The state in a word, with its sign and colour."""
    return Text(f"{SIGNS.get(state, ' ')} {state.replace('_', ' ')}", style=COLOURS.get(state, ""))


def summary(fleet: Fleet) -> str:
    """How many there are and how many refuse calls, in a line."""
    total = len(fleet.circuits)
    refusing = sum(circuit.state in {"open", "forced_open"} for circuit in fleet.circuits)
    circuits = "1 circuit" if total == 1 else f"{total} circuits"
    return f"{circuits}, {refusing or 'none'} open, in {fleet.url}"


def circuit_card(circuit: CircuitSnapshot, now: float) -> Table:
    """Everything that is known of one circuit."""
    card = Table.grid(padding=(0, 2))
    card.add_column(style="bold", no_wrap=True)
    card.add_column(overflow="fold")
    for label, text in _told(circuit, now):
        card.add_row(label, text)
    return card


def _told(circuit: CircuitSnapshot, now: float) -> Iterator[tuple[str, RenderableType]]:
    yield "circuit", Text(printable(circuit.name))
    yield "state", state_text(circuit.state).append(f"  {MEANINGS[circuit.state]}", style="not bold default")
    for label, text in (("reason", circuit.reason), ("last error", circuit.last_error)):
        yield label, Text(printable(redact(text)) if text else "none")
    for label, moment in (("opened", circuit.opened_at), ("retry", circuit.retry_at)):
        yield label, "-" if moment is None else output.local(moment, now)
    failed, slow = circuit.window_failures, circuit.window_slow
    yield "window", f"{circuit.window_calls} calls, {failed} failed, {slow} slow"
    yield "in a row", f"{circuit.consecutive_failures} failures"
    if circuit.usual_failure_rate is not None:
        yield "usually", f"{circuit.usual_failure_rate:.1%} of the calls fail"
    yield "re-openings", f"{circuit.reopenings} since the last full recovery"
    yield "probes", f"{circuit.probes_in_flight} in flight"
    yield "generation", str(circuit.generation)
    yield "changed", output.local(circuit.updated_at, now) if circuit.updated_at else "never"


def changes_table(changes: Iterable[CircuitChange], now: float) -> Table:
    """What was before and what is after, a row for each circuit that was acted upon."""
    table = _table()
    table.add_column("circuit", overflow="fold", min_width=12)
    table.add_column("before", no_wrap=True)
    table.add_column("after", no_wrap=True)
    table.add_column("until", no_wrap=True)
    table.add_column("why", overflow="fold")
    for change in changes:
        before, after = change.before, change.after
        table.add_row(
            Text(printable(change.name)),
            state_text(before.state) if before else "did not exist",
            state_text(after.state),
            "" if after.retry_at is None else _clock(after.retry_at, now),
            Text(why(after)),
        )
    return table


def _clock(time: float, now: float) -> str:
    """The time of day where that says enough, else the whole date."""
    there = datetime.fromtimestamp(time).astimezone()
    near = there.date() == datetime.fromtimestamp(now).astimezone().date()
    return f"{there:%H:%M:%S}" if near else f"{there:%Y-%m-%d %H:%M}"


def _table() -> Table:
    return Table(box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False, header_style="bold")


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
        parts.append(Text(trouble, style=COLOURS["open"]))
    if last is not None:
        fleet, at = last
        told = "as it was at" if trouble else f"every {interval:g} s, Ctrl-C ends it;"
        parts.append(Text(f"{summary(fleet)}; {told} {at:%H:%M:%S}"))
        if fleet.circuits:
            parts.append(circuits_table(fleet))
    return Group(*parts)
