"""`prefect-resilience doctor`: what is wrong, and how to mend it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from cyclopts import Parameter
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from prefect_resilience.operations.cli import output
from prefect_resilience.operations.diagnosis import Diagnosis, Finding, examine

SIGNS = {"wrong": ("✗", "bold #d55e00"), "note": ("!", "#f0e442")}


def doctor(
    *targets: Annotated[
        str,
        Parameter(
            help="Folders to read; files, modules or entrypoints to import, as in flows/etl.py or my.flows."
        ),
    ],
    json: Annotated[
        bool,
        Parameter(
            name="--json", negative="", show_default=False, help="Print JSON on stdout, and nothing else."
        ),
    ] = False,
) -> int:
    """Check this machine, the Prefect server, the store, and what is named; say what is wrong and its mend.

    The exit code is 1 when something is wrong. Notes alone are no reason.

    Example: prefect-resilience doctor flows/
    """
    diagnosis = examine(targets)
    if json:
        output.as_json(diagnosis)
    else:
        output.show(*_told(diagnosis))
    return 0 if diagnosis.healthy else 1


def _told(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    for check in diagnosis.checks:
        found = [finding for finding in diagnosis.findings if finding.check == check]
        if not found:
            yield Text.assemble(("✓ ", "#56b4e9"), check)
    others = [finding for finding in diagnosis.findings if finding.level == "note"]
    wrong = [finding for finding in diagnosis.findings if finding.level == "wrong"]
    for finding in [*others, *wrong]:
        yield _card(finding)
    wrongs = "1 thing is wrong" if len(wrong) == 1 else f"{len(wrong) or 'no'} things are wrong"
    notes = f", {len(others)} to note" if others else ""
    yield f"{wrongs[:1].upper()}{wrongs[1:]}{notes}, by {len(diagnosis.checks)} checks"


def _card(finding: Finding) -> Table:
    sign, style = SIGNS[finding.level]
    card = Table.grid(padding=(0, 1))
    card.add_column(no_wrap=True)
    card.add_column(overflow="fold")
    head = Text(f"{finding.check}: ").append(output.printable(finding.where), style="bold")
    card.add_row(Text(sign, style=style), head)
    card.add_row("", Text(output.printable(finding.says)))
    card.add_row("", Text(f"→ {output.printable(finding.mend)}", style="dim"))
    return card
