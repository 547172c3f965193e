"""Bars as SVG: one XML document that needs nothing else, shown by both of Prefect's UIs as an image. Pure."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from prefect_resilience.operations.reports import sections
from prefect_resilience.operations.reports.model import FleetReport

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
