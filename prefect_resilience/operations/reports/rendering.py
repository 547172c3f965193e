"""A report in markdown, for an artifact, and as a page of HTML that needs nothing else. Pure."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from prefect_resilience.base.text import utc_text
from prefect_resilience.operations.reports import sections
from prefect_resilience.operations.reports.figures import FleetReport
from prefect_resilience.operations.reports.sections import Section, headline, sections_of

# Okabe and Ito's, which everybody can tell apart; each bar says its number as well.
BLUE, ORANGE, VERMILION = "#0072B2", "#E69F00", "#D55E00"
FONT = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
BARS = 10
WIDTH, LEFT, RIGHT, LINE, TOP = 720, 200, 110, 26, 44
LETTERS = 26


@dataclass(frozen=True, slots=True)
class Chart:
    """Bars under a title: a label, its value and how that is written."""

    title: str
    colour: str
    bars: tuple[tuple[str, float, str], ...]


def charts_of(report: FleetReport) -> list[Chart]:
    """What is worth a picture: retries by task, errors by code, the time that circuits were open."""
    tasks = sorted(report.tasks, key=lambda one: -(one.retry_rate or 0))
    retried = [(one.task, one.retry_rate or 0, sections.percent(one.retry_rate)) for one in tasks]
    errors = [(one.code, float(one.attempts), f"{one.attempts:,}") for one in report.errors or ()]
    opened = [
        (one.name, one.seconds_open, sections.seconds(one.seconds_open)) for one in report.circuits or ()
    ]
    made = [
        _chart("Retry rate by task", BLUE, retried),
        _chart("Failed attempts by code", VERMILION, errors),
        _chart("Time that circuits refused calls", ORANGE, opened),
    ]
    return [chart for chart in made if chart.bars]


def _chart(title: str, colour: str, bars: Sequence[tuple[str, float, str]]) -> Chart:
    shown = [(sections.text_of(label), value, text) for label, value, text in bars if value > 0]
    return Chart(title, colour, tuple(shown[:BARS]))


def draw(chart: Chart) -> str:
    """The SVG document."""
    longest = max((value for _, value, _ in chart.bars), default=1.0) or 1.0
    height = TOP + LINE * len(chart.bars) + 12
    body = [
        f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8" fill="#ffffff" '
        f'stroke="#d9d9d9"/>',
        f'<text x="16" y="27" font-size="15" font-weight="bold" fill="#1a1a1a">{_said(chart.title)}</text>',
    ]
    for place, (label, value, text) in enumerate(chart.bars):
        y = TOP + LINE * place
        width = max(2.0, (WIDTH - LEFT - RIGHT) * value / longest)
        short = label if len(label) <= LETTERS else label[: LETTERS - 1] + "…"
        body += [
            f'<text x="{LEFT - 8}" y="{y + 15}" font-size="12" text-anchor="end" '
            f'fill="#1a1a1a">{_said(short)}<title>{_said(label)}</title></text>',
            f'<rect x="{LEFT}" y="{y + 3}" width="{width:.1f}" height="16" rx="2" fill="{chart.colour}"/>',
            f'<text x="{LEFT + width + 8:.1f}" y="{y + 15}" font-size="12" '
            f'fill="#1a1a1a">{_said(text)}</text>',
        ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="{FONT}" role="img" '
        f'aria-label="{_said(chart.title)}">{"".join(body)}</svg>'
    )


def as_image(chart: Chart) -> str:
    """The address of the picture, which holds all of it."""
    return f"data:image/svg+xml;base64,{base64.b64encode(draw(chart).encode()).decode()}"


def _said(text: str) -> str:
    """Text as XML takes it: no control characters, nothing that ends a tag or an attribute."""
    letters = (letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
    return escape("".join(letters), {'"': "&quot;"})


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
    lines += ["---", "", f"Made {utc_text(report.made_at)}. Where the numbers come from:", ""]
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
    safe = html.escape(text, quote=False)
    for letter in "\\`*_[]|~#!":
        safe = safe.replace(letter, f"\\{letter}" if letter != "|" else "&#124;")
    return safe


def html_of(report: FleetReport) -> str:
    """One page with its charts in it."""
    body = [f"<h1>{TITLE}</h1>", f"<p>{html.escape(headline(report))}</p>"]
    body += [f"<p>{draw(chart)}</p>" for chart in charts_of(report)]
    for section in sections_of(report):
        body.append(f"<h2>{html.escape(section.title)}</h2>{_html_table(section)}")
    if report.unknown:
        body.append(f"<h2>Unknown</h2>{_html_list(report.unknown)}")
    made = f"Made {utc_text(report.made_at)}. Where the numbers come from:"
    body.append(f"<hr><small>{made}{_html_list(report.sources)}</small>")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{TITLE}</title>'
        f"<style>{STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )


def _html_table(section: Section) -> str:
    says = f"<p>{html.escape(section.says)}</p>" if section.says else ""
    if not section.rows:
        return says
    head = "".join(f"<th>{html.escape(heading)}</th>" for heading in section.headings)
    rows = "".join(
        f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in section.rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{says}"


def _html_list(sentences: tuple[str, ...]) -> str:
    return f"<ul>{''.join(f'<li>{html.escape(sentence)}</li>' for sentence in sentences)}</ul>"
