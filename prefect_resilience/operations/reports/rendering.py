"""A report in markdown, for an artifact, and as a page of HTML that needs nothing else. Pure."""

from __future__ import annotations

from html import escape

from prefect_resilience.operations.reports.charts import as_image, charts_of, draw
from prefect_resilience.operations.reports.model import FleetReport
from prefect_resilience.operations.reports.sections import Section, headline, moment_text, sections_of

TITLE = "Fleet report"
STYLE = (
    "body{font:15px/1.5 Helvetica,Arial,sans-serif;color:#1a1a1a;max-width:60rem;margin:2rem auto;"
    "padding:0 1rem}"
    "table{border-collapse:collapse;margin:1rem 0}th,td{padding:.3rem .8rem;border-bottom:1px solid #d9d9d9}"
    "th{text-align:left}td+td,th+th{text-align:right}svg{max-width:100%;height:auto}small{color:#4d4d4d}"
)


def markdown_of(report: FleetReport) -> str:
    """Markdown with its charts as images."""
    lines = [f"# {TITLE}", "", headline(report), ""]
    for chart in charts_of(report):
        lines += [f"![{chart.title}]({as_image(chart)})", ""]
    for section in sections_of(report):
        lines += [f"## {section.title}", "", *_table(section), ""]
    if report.unknown:
        lines += ["## Unknown", "", *(f"- {_cell(sentence)}" for sentence in report.unknown), ""]
    lines += ["---", "", f"Made {moment_text(report.made_at)}. Where the numbers come from:", ""]
    return "\n".join([*lines, *(f"- {source}" for source in report.sources), ""])


def _table(section: Section) -> list[str]:
    says = ["", section.says] if section.says else []
    if not section.rows:
        return says[1:]
    rule = "|---" + "|---:" * (len(section.headings) - 1) + "|"
    rows = [f"| {' | '.join(_cell(cell) for cell in row)} |" for row in section.rows]
    return [f"| {' | '.join(section.headings)} |", rule, *rows, *says]


def _cell(text: str) -> str:
    """Text that is not taken for markdown, nor for HTML, nor for the end of a cell."""
    safe = escape(text, quote=False)
    for letter in "\\`*_[]|~#!":
        safe = safe.replace(letter, f"\\{letter}" if letter != "|" else "&#124;")
    return safe


def html_of(report: FleetReport) -> str:
    """One page with its charts in it."""
    body = [f"<h1>{TITLE}</h1>", f"<p>{escape(headline(report))}</p>"]
    body += [f"<p>{draw(chart)}</p>" for chart in charts_of(report)]
    for section in sections_of(report):
        body.append(f"<h2>{escape(section.title)}</h2>{_html_table(section)}")
    if report.unknown:
        body.append(f"<h2>Unknown</h2>{_html_list(report.unknown)}")
    made = f"Made {moment_text(report.made_at)}. Where the numbers come from:"
    body.append(f"<hr><small>{made}{_html_list(report.sources)}</small>")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{TITLE}</title>'
        f"<style>{STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )


def _html_table(section: Section) -> str:
    says = f"<p>{escape(section.says)}</p>" if section.says else ""
    if not section.rows:
        return says
    head = "".join(f"<th>{escape(heading)}</th>" for heading in section.headings)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in section.rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{says}"


def _html_list(sentences: tuple[str, ...]) -> str:
    return f"<ul>{''.join(f'<li>{escape(sentence)}</li>' for sentence in sentences)}</ul>"
