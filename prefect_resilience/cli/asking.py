"""Asking before many circuits are changed at once."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.prompt import Confirm
from rich.table import Table
from rich.text import Text

from prefect_resilience.circuits import CircuitSnapshot
from prefect_resilience.cli import output
from prefect_resilience.cli.tables import state_text
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.operations import Action

SHOWN = 20


def agreed(action: Action, circuits: Sequence[CircuitSnapshot]) -> bool:
    """Show which circuits are meant and ask; ConfigurationError where there is nobody to answer."""
    number = "1 circuit" if len(circuits) == 1 else f"{len(circuits)} circuits"
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigurationError(
            f"this would {action} {number}, and nobody can be asked here: add --yes if it is meant"
        )
    console = output.stderr()
    preview = Table.grid(padding=(0, 2), pad_edge=True)
    for circuit in circuits[:SHOWN]:
        preview.add_row(state_text(circuit.state), Text(output.printable(circuit.name), overflow="fold"))
    console.print(preview)
    if len(circuits) > SHOWN:
        console.print(f"  and {len(circuits) - SHOWN} more")
    try:
        answer = Confirm.ask(f"{action.capitalize()} {number} for the whole fleet?", console=console)
    except (EOFError, KeyboardInterrupt):
        console.print()
        answer = False
    if not answer:
        output.say("Nothing was changed.")
    return answer
