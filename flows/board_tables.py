"""The tables at the end of the quickstart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from prefect.settings import get_current_settings
from prefect.utilities.urls import url_for
from rich.box import SIMPLE_HEAD
from rich.table import Table

from prefect_resilience import get_circuits

Pair = tuple[str, str]

IN_WORDS = {"200": "success", "slow": "timeout", "dropped": "connection dropped"}


@dataclass
class Row:
    """One call of the flow."""

    starts: int = 0
    outcome: str = "not called"
    answered_by: str = "-"
    seconds: float = 0.0
    codes: list[str] = field(default_factory=list)

    @property
    def attempts(self) -> int:
        """The calls that were made: the primary received a request for each of them."""
        return len(self.codes)

    @property
    def history(self) -> str:
        """The result of each attempt in order, and how the call ended."""
        if self.outcome.startswith("gave up"):
            return self.outcome
        told = [IN_WORDS.get(code, code) for code in self.codes]
        if self.starts > len(told):
            told.append("rejected")
        return ", ".join(told if self.outcome == "success" else [*told, self.outcome])

    @property
    def colour(self) -> str:
        if self.outcome.startswith("gave up"):
            return "red"
        if self.outcome != "success":
            return "cyan"
        return "yellow" if self.attempts > 1 else ""


def table_of_items(rows: Mapping[Pair, Row]) -> Table:
    table = Table(box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("call", min_width=20)
    table.add_column("attempts", justify="right", no_wrap=True)
    table.add_column("result of each attempt", min_width=20)
    table.add_column("answered by", no_wrap=True)
    table.add_column("seconds", justify="right", no_wrap=True)
    for number, (pair, row) in enumerate(rows.items(), start=1):
        cells = [str(number), name_of(pair), str(row.attempts), row.history, row.answered_by]
        table.add_row(*cells, f"{row.seconds:.1f}", style=row.colour)
    return table


def table_of_circuits() -> Table:
    table = Table(box=SIMPLE_HEAD)
    for heading in ("circuit", "state", "calls in window", "failures in window"):
        table.add_column(heading)
    for circuit in get_circuits():
        table.add_row(circuit.name, circuit.state, str(circuit.window_calls), str(circuit.window_failures))
    return table


def where_to_look(run_id: str | None) -> Iterator[str]:
    url = url_for("flow-run", run_id) if run_id and get_current_settings().api.url else None
    if url:
        yield f"This run in the Prefect UI, with each attempt and delay: {url}"
        return
    yield "This run used an ephemeral Prefect API, which has stopped. To see a run in the Prefect UI:"
    yield "  .venv/bin/prefect server start"
    yield "  PREFECT_API_URL=http://127.0.0.1:4200/api make demo"


def name_of(pair: Pair) -> str:
    return " + ".join(pair)


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
