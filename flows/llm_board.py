"""The table that the examples with language models print."""

from __future__ import annotations

from collections.abc import Mapping

from rich import box
from rich.console import Console
from rich.table import Table

WIDTH = 110


class Board:
    """Rows of questions: what the providers did, who answered, and what."""

    def __init__(self, *providers: str) -> None:
        self.console = Console(width=WIDTH, highlight=False)
        self.table = Table(box=box.SIMPLE, width=WIDTH)
        for title in ("asked", *providers, "answered by", "answer"):
            self.table.add_column(title, overflow="fold")

    def answer(self, asked: str, given: Mapping[str, list[str]], by: str, value: object) -> None:
        did = [", ".join(given.get(name, [])) or "-" for name in ("anthropic", "openai")]
        self.table.add_row(asked, *did, by, str(value).strip())

    def line(self, *cells: object) -> None:
        self.table.add_row(*(str(cell) for cell in cells))

    def show(self) -> None:
        self.console.print(self.table)
