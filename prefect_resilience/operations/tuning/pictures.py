"""A comparison as a picture: a pair of bars for each figure, before and after. Pure."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import NamedTuple, cast

from prefect_resilience.base.svg import FONT, element, rect, words
from prefect_resilience.base.text import one_line
from prefect_resilience.operations.tuning.report import ComparedFigure, Comparison
from prefect_resilience.telemetry.payloads import fitted_text

# Colours of Okabe and Ito, chosen for the colour-blind; each bar has its number as text, too.
GREY, BLUE, GREEN, VERMILION, INK = "#9a9a9a", "#0072B2", "#007A59", "#B84A00", "#1f2328"
WIDTH, LEFT, BAR, ROW, TOP = 760.0, 210.0, 330.0, 46.0, 64.0
SECOND = 400.0
LONGEST = 50


class Legend(NamedTuple):
    """The names of the two bars, such as "as it was" and "attempts 5"."""

    now: str
    then: str


def picture_of(comparison: Comparison, title: str, legend: Legend) -> str:
    """The SVG document."""
    figures = [one for one in comparison.figures if one.now is not None and one.then is not None]
    height = TOP + ROW * len(figures) + 10
    parts = [
        rect(0.5, 0.5, WIDTH - 1, height - 1, rx=8, fill="#ffffff", stroke="#d9d9d9"),
        words(_line(title), 16, 26, 15, INK, bold=True),
        rect(16, 38, 10, 10, fill=GREY),
        words(_line(legend.now), 32, 47, 12, INK),
        rect(SECOND, 38, 10, 10, fill=BLUE),
        words(_line(legend.then), SECOND + 16, 47, 12, INK),
    ]
    for place, one in enumerate(figures):
        parts += _row(one, TOP + ROW * place)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH:g}" height="{height:g}" '
        f'viewBox="0 0 {WIDTH:g} {height:g}" role="img" font-family="{FONT}">'
    )
    return "\n".join([head, element("title", _line(title)), *parts, "</svg>"])


def _row(one: ComparedFigure, y: float) -> Iterator[str]:
    now, then = one.now or 0.0, one.then or 0.0
    most = max(abs(now), abs(then)) or 1.0
    colour = BLUE if one.better is None else GREEN if one.better else VERMILION
    yield words(one.name, 16, y + 20, 12, INK)
    yield rect(LEFT, y + 4, BAR * abs(now) / most, 12, fill=GREY)
    yield rect(LEFT, y + 19, BAR * abs(then) / most, 12, fill=colour)
    yield words(figure_text(one, now), LEFT + BAR * abs(now) / most + 6, y + 14, 11, INK)
    said = figure_text(one, then) + ("" if one.better is None else " better" if one.better else " worse")
    yield words(said, LEFT + BAR * abs(then) / most + 6, y + 29, 11, colour)


def figure_text(one: ComparedFigure, value: float | None) -> str:
    """The number with its unit; "-" for None."""
    if value is None:
        return "-"
    shown = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{shown} {one.unit}"


def interval_text(one: ComparedFigure) -> str:
    """The interval of the difference, as in "-120 to -40"; "" if there is none."""
    if one.low is None or one.high is None:
        return ""
    low, high = (f"{value:+,.0f}" if abs(value) >= 10 else f"{value:+.2g}" for value in (one.low, one.high))
    return f"{low} to {high}"


def as_image(picture: str, alt: str) -> str:
    """The picture inside of markdown."""
    data = base64.b64encode(picture.encode()).decode()
    letters = "".join(letter if letter.isalnum() else " " for letter in alt)
    return f"![{' '.join(letters.split())}](data:image/svg+xml;base64,{data})"


def value_text(value: object) -> str:
    """The value of an option as text: `3`, `0.5`, `initial=1, maximum=30`."""
    if isinstance(value, dict):
        items = cast("dict[str, object]", value).items()
        return ", ".join(f"{name}={value_text(one)}" for name, one in items if one not in (None, [], {}))
    if isinstance(value, list | tuple):
        return ", ".join(map(value_text, cast("list[object]", value))) or "none"
    if isinstance(value, float):
        return f"{value:g}"
    return "none" if value is None else _line(str(value))


def _line(text: str) -> str:
    shown = fitted_text(one_line(text), LONGEST)
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in shown)
