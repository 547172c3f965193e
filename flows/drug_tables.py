"""What flows/drug_research.py prints: a row for every node, and what waits for a person."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from flows.drug_reviews import waiting
from prefect_resilience import PlanResult

# A sign and a word, and colours of Okabe and Ito, who chose them for the colour-blind
LOOKS = {
    "succeeded": ("✓", "#009e73"),
    "handled": ("!", "#e69f00"),
    "failed": ("✗", "bold #d55e00"),
    "skipped": ("-", "#999999"),
}


def table_of(result: PlanResult, name: str) -> Table:
    """What became of each node of one run."""
    table = Table(box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    table.add_column(name, no_wrap=True, min_width=24)
    table.add_column("became", no_wrap=True, min_width=11)
    table.add_column("attempts", justify="right", no_wrap=True)
    table.add_column("why", overflow="fold")
    for node_id, node in result.nodes.items():
        sign, colour = LOOKS[node.status]
        table.add_row(
            node_id,
            Text(f"{sign} {node.status}", style=colour),
            str(node.attempts or ""),
            Text(node.reason),
        )
    return table


def table_of_reviews() -> Table:
    """What waits for a person."""
    table = Table(box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False, title_justify="left")
    for heading in ("review", "asked in", "question", "why"):
        table.add_column(heading, overflow="fold")
    for review in waiting():
        table.add_row(*(Text(str(cell)) for cell in review))
    return table
