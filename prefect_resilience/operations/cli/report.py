"""`prefect-resilience report`: what happened to the fleet in a period."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.operations.cli import output
from prefect_resilience.operations.cli.dead_letters import when
from prefect_resilience.operations.reports import FleetReport, report
from prefect_resilience.operations.reports.rendering import TITLE, html_of, markdown_of
from prefect_resilience.operations.reports.sections import Section, headline, sections_of

File = Annotated[Path | None, Parameter(show_default=False)]


def report_command(
    *,
    since: Annotated[
        str, Parameter(help="How long ago, as in 24h or 7d, or a time as in 2026-11-20T18:00.")
    ] = "24h",
    until: Annotated[
        str | None, Parameter(show_default=False, help="The same for its end; now when left out.")
    ] = None,
    markdown: Annotated[File, Parameter(help="Write it there as markdown with charts.")] = None,
    html: Annotated[File, Parameter(help="Write it there as one page of HTML.")] = None,
    json: Annotated[
        bool, Parameter(negative="", show_default=False, help="Print JSON on stdout, and nothing else.")
    ] = False,
) -> int:
    """Show what was retried, failed, replaced and recovered in a period, from the Prefect API and the store.

    Example: prefect-resilience report --since 7d
    Example: prefect-resilience report --since 24h --html report.html
    """
    made = report(when("--since", since), when("--until", until))
    for path, render in ((markdown, markdown_of), (html, html_of)):
        if path is not None:
            _write(path, render(made))
    if json:
        output.as_json(made)
    elif markdown is None and html is None:
        output.show(_shown(made))
    return 0


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"the report cannot be written to {path}: {error.strerror}") from None
    output.say(f"Wrote {path}")


def _shown(made: FleetReport) -> RenderableType:
    parts: list[RenderableType] = [Text(TITLE, style="bold"), Text(headline(made)), ""]
    for section in sections_of(made):
        parts += [Text(section.title, style="bold"), _table(section)]
    for title, sentences in (("Unknown", made.unknown), ("Where the numbers come from", made.sources)):
        if sentences:
            parts.append(Text(title, style="bold"))
            parts += [Text(f"  {output.printable(sentence)}") for sentence in sentences]
    return Group(*parts)


def _table(section: Section) -> RenderableType:
    says = Text(f"  {section.says}\n") if section.says else Text("")
    if not section.rows:
        return says
    table = Table(
        box=SIMPLE_HEAD,
        show_header=any(section.headings),
        collapse_padding=True,
        pad_edge=False,
        header_style="bold",
    )
    for place, heading in enumerate(section.headings):
        table.add_column(heading, justify="left" if place == 0 else "right", overflow="fold")
    for row in section.rows:
        table.add_row(*(Text(output.printable(cell)) for cell in row))
    return Group(table, says)
