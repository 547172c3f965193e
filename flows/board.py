"""What the quickstart prints: a line for each retry and result, and a table of all calls at the end."""

from __future__ import annotations

import os
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
    """The state hooks of the tasks fill it in, from several threads."""

    def __init__(self, pairs: list[Pair], console: Console | None = None) -> None:
        self.rows = {pair: Row() for pair in pairs}
        self.console = console or Console(
            width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 110
        )
        self._lock = Lock()

    def title(self, text: str) -> None:
        self.console.print()
        self.console.rule(f"[bold]{text}", align="left")

    def attempt(self, task: Task[..., Any], run: TaskRun, state: State[Any]) -> None:
        """State hook: an attempt starts."""
        pair, number = pair_of(run), run.run_count
        with self._lock:
            self.rows[pair].starts = number
        if number > 1:
            self._line("retry", "yellow", pair, f"attempt {number}")

    def answered(self, task: Task[..., Any], run: TaskRun, state: State[Any]) -> None:
        """State hook: the task run completed."""
        outcome = "success" if state.name == "Completed" else "fallback"
        row = self._end(run, state, outcome)
        if outcome == "success":
            self._line(outcome, "green", pair_of(run), count(row.starts, "attempt"))
        else:
            self._line(str(state.name).lower(), "cyan", pair_of(run), state.message or "")

    def gave_up(self, task: Task[..., Any], run: TaskRun, state: State[Any]) -> None:
        """State hook: the task run failed."""
        context = error_context(state)
        why = f"{context.code} ({context.category.value})" if context else state.message or state.name
        self._end(run, state, f"gave up: {why}")
        self._line("gave up", "red", pair_of(run), str(why))

    def by(self, pair: Pair, provider: str) -> None:
        self.rows[pair].answered_by = provider

    def circuit(self, circuit: CircuitBreaker) -> None:
        self.console.print(f"  [bold]circuit {circuit.name} is {circuit.state}[/]", highlight=False)

    def summary(self, received: Mapping[str, list[str]], run_id: str | None) -> None:
        """`received` comes from the primary: its response to each request, by pair."""
        for pair, row in self.rows.items():
            row.codes = received.get(name_of(pair), [])
        spared = len(self.rows) - len(received)

        self.title("Summary")
        self.console.print(table_of_items(self.rows))
        self.console.print(
            f"The primary received {count(sum(map(len, received.values())), 'request')}. "
            f"For {count(spared, 'pair')} it received none: the circuit was open."
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
