"""Circuits as tables. A state is told by a word and a sign; its colour can be told apart by everybody."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from prefect_resilience.circuits import CircuitSnapshot
from prefect_resilience.cli import times
from prefect_resilience.cli.fleet import Fleet
from prefect_resilience.cli.output import printable
from prefect_resilience.errors.redact import redact
from prefect_resilience.operations import CircuitChange

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
WIDE = 110
"""Columns from which the reasons have a column of their own; below, they are listed under the table."""


def circuits_table(fleet: Fleet, width: int) -> RenderableType:
    """The fleet, a row each, to fit a terminal of `width` columns."""
    wide = width >= WIDE
    table = _table()
    table.add_column("state", no_wrap=True)
    table.add_column("circuit", overflow="fold", ratio=2 if wide else None, min_width=12)
    table.add_column("failed", justify="right", no_wrap=True)
    table.add_column("in a row", justify="right", no_wrap=True)
    table.add_column("opened", justify="right", no_wrap=True)
    table.add_column("retry in", justify="right", no_wrap=True)
    table.add_column("probes", justify="right", no_wrap=True)
    if wide:
        table.add_column("why", overflow="ellipsis", no_wrap=True, ratio=3)
        table.expand = True
    for circuit in fleet.circuits:
        cells = _cells(circuit, fleet.now)
        table.add_row(*(cells if wide else cells[:-1]))
    if wide:
        return table
    return Group(table, *_reasons(fleet.circuits))


def _cells(circuit: CircuitSnapshot, now: float) -> list[RenderableType]:
    opened, retry = circuit.opened_at, circuit.retry_at
    return [
        state_text(circuit.state),
        Text(printable(circuit.name)),
        f"{circuit.window_failures}/{circuit.window_calls}",
        str(circuit.consecutive_failures),
        "" if opened is None else f"{times.rough(now - opened)} ago",
        "" if retry is None else times.rough(retry - now),
        str(circuit.probes_in_flight or ""),
        Text(why(circuit)),
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
    state = state_text(circuit.state).append(f"  {MEANINGS[circuit.state]}", style="not bold default")
    card.add_row("circuit", Text(printable(circuit.name)))
    card.add_row("state", state)
    for label, text in (("reason", circuit.reason), ("last error", circuit.last_error)):
        card.add_row(label, Text(printable(redact(text)) if text else "none"))
    for label, time in (("opened", circuit.opened_at), ("retry", circuit.retry_at)):
        card.add_row(label, "-" if time is None else times.local(time, now))
    card.add_row("window", f"{circuit.window_calls} calls, {_of(circuit)}")
    card.add_row("in a row", f"{circuit.consecutive_failures} failures")
    card.add_row("re-openings", f"{circuit.reopenings} since the last full recovery")
    card.add_row("probes", f"{circuit.probes_in_flight} in flight")
    card.add_row("generation", str(circuit.generation))
    card.add_row("changed", times.local(circuit.updated_at, now) if circuit.updated_at else "never")
    return card


def _of(circuit: CircuitSnapshot) -> str:
    return f"{circuit.window_failures} failed, {circuit.window_slow} slow"


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
    return Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
