"""What the quickstart prints: a line for everything that happens, and a table of it all at the end."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from prefect.settings import get_current_settings
from prefect.states import State
from prefect.utilities.urls import url_for
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from prefect_resilience import CircuitBreaker, get_circuits

Pair = tuple[str, str]

IN_WORDS = {"200": "answered", "slow": "too slow", "dropped": "connection dropped"}


@dataclass
class Row:
    """What is known of one item of the flow."""

    attempts: int = 0
    outcome: str = "not asked"
    answered_by: str = "-"
    seconds: float = 0.0
    codes: list[str] = field(default_factory=list)


class Board:
    """Filled in by the hooks of the tasks, which run in the workers' threads."""

    def __init__(self, pairs: list[Pair], console: Console | None = None) -> None:
        self.rows = {pair: Row() for pair in pairs}
        self.console = console or Console(width=None if sys.stdout.isatty() else 110)
        self._lock = Lock()

    def title(self, text: str) -> None:
        self.console.print()
        self.console.rule(f"[bold]{text}", align="left")

    def attempt(self, pair: Pair, number: int) -> None:
        with self._lock:
            self.rows[pair].attempts = number
        if number > 1:
            self._line("again", "yellow", pair, f"attempt {number}")

    def answered(self, pair: Pair, state: State[Any], seconds: float) -> None:
        outcome = "answered" if state.name == "Completed" else state.name.lower()
        row = self._end(pair, outcome, seconds)
        if outcome == "answered":
            self._line(outcome, "green", pair, count(row.attempts, "attempt"))
        else:
            self._line(outcome, "cyan", pair, state.message or "")

    def gave_up(self, pair: Pair, why: str, seconds: float) -> None:
        self._end(pair, f"gave up: {why}", seconds)
        self._line("gave up", "red", pair, why)

    def by(self, pair: Pair, provider: str) -> None:
        self.rows[pair].answered_by = provider

    def circuit(self, circuit: CircuitBreaker) -> None:
        self.console.print(f"  [bold]circuit {circuit.name} is {circuit.state}[/]", highlight=False)

    def summary(self, asked: Mapping[str, list[str]], run_id: str | None) -> None:
        """`asked` is what the primary says of itself: its answers about each pair."""
        for pair, row in self.rows.items():
            row.codes = asked.get(name_of(pair), [])
        never_asked = len(self.rows) - len(asked)

        self.title("The day")
        self.console.print(self.table())
        self.console.print(
            f"The primary counted {count(sum(map(len, asked.values())), 'call')}. "
            f"It was never asked about {count(never_asked, 'pair')}: its circuit was open."
        )
        self.console.print(table_of_circuits())
        for line in where_to_look(run_id):
            self.console.print(line, soft_wrap=True, highlight=False)

    def table(self) -> Table:
        table = Table(box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
        table.add_column("", justify="right", no_wrap=True)
        table.add_column("item", min_width=20)
        table.add_column("attempts", justify="right", no_wrap=True)
        table.add_column("what happened", min_width=20)
        table.add_column("answered by", no_wrap=True)
        table.add_column("seconds", justify="right", no_wrap=True)
        for number, (pair, row) in enumerate(self.rows.items(), start=1):
            table.add_row(
                str(number),
                name_of(pair),
                str(row.attempts),
                self.story(row),
                row.answered_by,
                f"{row.seconds:.1f}",
                style=colour_of(row),
            )
        return table

    def story(self, row: Row) -> str:
        """The attempts in their order: what the primary said, and what the circuit did not let through."""
        if row.outcome.startswith("gave up"):
            return row.outcome
        told = [IN_WORDS.get(code, code) for code in row.codes]
        if row.attempts > len(told):
            told.append("refused")
        return ", ".join(told if row.outcome == "answered" else [*told, row.outcome])

    def _end(self, pair: Pair, outcome: str, seconds: float) -> Row:
        with self._lock:
            row = self.rows[pair]
            row.outcome, row.seconds = outcome, seconds
        return row

    def _line(self, word: str, colour: str, pair: Pair, text: str) -> None:
        line = f"  [{colour}]{word:<9}[/] {name_of(pair):<34} [dim]{escape(text)}[/]"
        self.console.print(line, highlight=False, no_wrap=True, overflow="ellipsis")


def name_of(pair: Pair) -> str:
    return " + ".join(pair)


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def colour_of(row: Row) -> str:
    if row.outcome.startswith("gave up"):
        return "red"
    if row.outcome != "answered":
        return "cyan"
    return "yellow" if row.attempts > 1 else ""


def table_of_circuits() -> Table:
    table = Table(box=SIMPLE_HEAD)
    for heading in ("circuit", "state", "calls in its window", "failures"):
        table.add_column(heading)
    for circuit in get_circuits():
        table.add_row(circuit.name, circuit.state, str(circuit.window_calls), str(circuit.window_failures))
    return table


def where_to_look(run_id: str | None) -> Iterator[str]:
    url = url_for("flow-run", run_id) if run_id and get_current_settings().api.url else None
    if url:
        yield f"In the Prefect UI, with every attempt and its pause: {url}"
        return
    yield "This ran on an ephemeral Prefect API, which is gone now. To see a run in the Prefect UI:"
    yield "  .venv/bin/prefect server start"
    yield "  PREFECT_API_URL=http://127.0.0.1:4200/api make demo"
