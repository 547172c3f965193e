"""Asking a person before something is changed."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import RenderableType
from rich.prompt import Confirm
from rich.table import Table
from rich.text import Text

from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.guards.circuits import CircuitSnapshot
from prefect_resilience.operations.cli import output
from prefect_resilience.operations.cli.tables import state_text
from prefect_resilience.operations.flows import Action

SHOWN = 20


def agreed(question: str, would: str, preview: RenderableType | None = None, more: int = 0) -> bool:
    """Whether a person says yes; ConfigurationError where there is nobody to answer.

    `would` completes "this would ...". `preview` is shown first, with the number of what it leaves out.
    """
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigurationError(
            f"this would {would}, and nobody can be asked here: add --yes if it is meant"
        )
    console = output.stderr()
    if preview is not None:
        console.print(preview)
    if more > 0:
        console.print(f"  and {more} more")
    try:
        answer = Confirm.ask(question, console=console)
    except (EOFError, KeyboardInterrupt):
        console.print()
        answer = False
    if not answer:
        output.say("Nothing was changed.")
    return answer


def agreed_on_circuits(action: Action, circuits: Sequence[CircuitSnapshot]) -> bool:
    """The same for circuits, which are shown."""
    number = "1 circuit" if len(circuits) == 1 else f"{len(circuits)} circuits"
    preview = Table.grid(padding=(0, 2), pad_edge=True)
    for circuit in circuits[:SHOWN]:
        preview.add_row(state_text(circuit.state), Text(output.printable(circuit.name), overflow="fold"))
    question = f"{action.capitalize()} {number} for the whole fleet?"
    return agreed(question, f"{action} {number}", preview, len(circuits) - SHOWN)
