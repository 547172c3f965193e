"""What the quickstart prints: a line for everything that happens, and a table of it all at the end."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from threading import Lock
from typing import Any

from prefect import Task
from prefect.client.schemas.objects import TaskRun
from prefect.states import State
from rich.console import Console
from rich.markup import escape

from flows.board_tables import Pair, Row, count, name_of, table_of_circuits, table_of_items, where_to_look
from prefect_resilience import CircuitBreaker, error_context


class Board:
    """Filled in by the hooks of the tasks, which run in the workers' threads."""

    def __init__(self, pairs: list[Pair], console: Console | None = None) -> None:
        self.rows = {pair: Row() for pair in pairs}
        self.console = console or Console(width=None if sys.stdout.isatty() else 110)
        self._lock = Lock()

    def title(self, text: str) -> None:
        self.console.print()
        self.console.rule(f"[bold]{text}", align="left")

    def attempt(self, task: Task[..., Any], run: TaskRun, state: State[Any]) -> None:
        """A hook for when a task run is running."""
        pair, number = pair_of(run), run.run_count
        with self._lock:
            self.rows[pair].attempts = number
        if number > 1:
            self._line("again", "yellow", pair, f"attempt {number}")

    def answered(self, task: Task[..., Any], run: TaskRun, state: State[Any]) -> None:
        """A hook for when it has completed."""
        outcome = "answered" if state.name == "Completed" else str(state.name).lower()
        row = self._end(run, state, outcome)
        if outcome == "answered":
            self._line(outcome, "green", pair_of(run), count(row.attempts, "attempt"))
        else:
            self._line(outcome, "cyan", pair_of(run), state.message or "")

    def gave_up(self, task: Task[..., Any], run: TaskRun, state: State[Any]) -> None:
        """A hook for when it has failed."""
        context = error_context(state)
        why = f"{context.code} ({context.category.value})" if context else state.message or state.name
        self._end(run, state, f"gave up: {why}")
        self._line("gave up", "red", pair_of(run), str(why))

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
        self.console.print(table_of_items(self.rows))
        self.console.print(
            f"The primary counted {count(sum(map(len, asked.values())), 'call')}. "
            f"It was never asked about {count(never_asked, 'pair')}: its circuit was open."
        )
        self.console.print(table_of_circuits())
        for line in where_to_look(run_id):
            self.console.print(line, soft_wrap=True, highlight=False)

    def _end(self, run: TaskRun, state: State[Any], outcome: str) -> Row:
        started = run.start_time or state.timestamp
        with self._lock:
            row = self.rows[pair_of(run)]
            row.outcome, row.seconds = outcome, (state.timestamp - started).total_seconds()
        return row

    def _line(self, word: str, colour: str, pair: Pair, text: str) -> None:
        line = f"  [{colour}]{word:<9}[/] {name_of(pair):<34} [dim]{escape(text)}[/]"
        self.console.print(line, highlight=False, no_wrap=True, overflow="ellipsis")


def pair_of(run: TaskRun) -> Pair:
    a, _, b = run.name.partition(" + ")
    return a, b
