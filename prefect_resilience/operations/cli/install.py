"""`prefect-resilience install`: what the server is to have, brought there and taken away again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Annotated

from cyclopts import Parameter
from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.operations import installation
from prefect_resilience.operations.cli import output
from prefect_resilience.operations.diagnosis import Diagnosis, Finding, examine
from prefect_resilience.operations.installation import Change

COLOURS = {
    "created": "#56b4e9",
    "changed": "#f0e442",
    "removed": "bold #d55e00",
    "kept": "#cc79a7",
    "skipped": "#cc79a7",
}
ORDER = ("created", "changed", "removed", "kept", "skipped", "unchanged")


def install(
    *,
    webhook: Annotated[
        str | None, Parameter(help="Where alerts are posted as JSON, with subject, body and text.")
    ] = None,
    notification_block: Annotated[
        str | None, Parameter(help="A notification block to alert with instead, as in slack-webhook/night.")
    ] = None,
    work_pool: Annotated[
        str | None,
        Parameter(help="The pool for the operational flows; made where there is none. Else: resilience."),
    ] = None,
    dry_run: Annotated[
        bool, Parameter(negative="", show_default=False, help="Only say what would be done.")
    ] = False,
    reset: Annotated[
        bool,
        Parameter(negative="", show_default=False, help="Also put automations back that somebody changed."),
    ] = False,
    uninstall: Annotated[
        bool, Parameter(negative="", show_default=False, help="Take away what was installed.")
    ] = False,
    json: Annotated[
        bool,
        Parameter(
            name="--json", negative="", show_default=False, help="Print JSON on stdout, and nothing else."
        ),
    ] = False,
) -> int:
    """Bring blocks, deployments of the operational flows, and automations onto the Prefect server.

    A second time, nothing changes. What somebody changed by hand is kept, and said.

    Example: prefect-resilience install --webhook https://chat.example.com/hooks/night
    """
    if uninstall:
        if webhook or notification_block or work_pool or reset:
            raise ConfigurationError("--uninstall goes with --dry-run and --json alone: leave the others out")
        changes = installation.uninstall(dry_run=dry_run)
    else:
        changes = installation.install(
            dry_run=dry_run,
            webhook=webhook,
            notification_block=notification_block,
            work_pool=work_pool,
            reset=reset,
        )
    if json:
        output.as_json(changes)
    elif changes:
        output.show(changes_table(changes), summary(changes, dry_run))
    else:
        output.show("There was nothing to take away.")
    return 0


def changes_table(changes: Iterable[Change]) -> Table:
    """A row for each thing."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("", "what", "name", "why"):
        table.add_column(heading, overflow="fold", no_wrap=heading in ("", "what"))
    for change in changes:
        table.add_row(
            Text(change.action, style=COLOURS.get(change.action, "")),
            change.kind,
            Text(output.printable(change.name)),
            Text(output.printable(change.why)),
        )
    return table


def summary(changes: Iterable[Change], dry_run: bool) -> str:
    """How many of which, in a line."""
    counted = Counter(change.action for change in changes)
    told = ", ".join(f"{counted[action]} {action}" for action in ORDER if counted[action])
    return f"{told}; nothing was done, for this was a dry run" if dry_run else told


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
