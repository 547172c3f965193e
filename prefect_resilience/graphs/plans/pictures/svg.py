"""A plan as one SVG document without references, readable on any background.

The conditions of the routes to a node are at the top of its box. Colours are Okabe and Ito's, for
colour-blind readers. Signs, words and line styles repeat the meaning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from unicodedata import east_asian_width

from prefect_resilience.base.text import FONT, element, number, rect, words
from prefect_resilience.graphs.plans.model import Plan
from prefect_resilience.graphs.plans.pictures.layout import lay_out
from prefect_resilience.graphs.plans.pictures.picture import LOOKS, Arrow, Box, Picture, picture_of
from prefect_resilience.graphs.plans.result import PlanResult

INK = "#1a1a1a"
SMALL = "#4d4d4d"
ROUTE = "#0072B2"
FAINT = "#767676"

_HEAD, _LINE = 14.0, 11.0
"""The sizes of the letters in a box."""
_ROW = 15.0
_MARGIN = 20.0

Label = tuple[str, str]
"""A condition in words, and its colour."""


def plan_to_svg(plan: Plan, result: PlanResult | None = None) -> str:
    """The plan as an SVG document, with the outcome if there is a result.

    The result may be of a run that is still running.
    """
    return draw(picture_of(plan, result))


def draw(picture: Picture) -> str:
    """The SVG document."""
    labels = _labels(picture)
    sizes = {box.id: _box_size(box, labels[box.id]) for box in picture.boxes}
    layout = lay_out(sizes, [(arrow.source, arrow.target) for arrow in picture.arrows])
    header = [(text, 16.0) for text in (picture.title,) if text]
    header += [(text, 12.0) for text in (picture.verdict, picture.note) if text]
    top = _MARGIN + 24 * len(header)
    inner = max(layout.width, 240.0, *(text_width(text, size) for text, size in header))
    width, height = inner + 2 * _MARGIN, top + layout.height + _MARGIN
    parts = [rect(0.5, 0.5, width - 1, height - 1, rx=8, fill="#ffffff", stroke="#d9d9d9")]
    for row, (text, size) in enumerate(header):
        parts.append(words(text, _MARGIN, _MARGIN + 24 * row + 12, size, INK, bold=not row))
    parts.append(f'<g transform="translate({number(width / 2)} {number(top)})">')
    for arrow in sorted(picture.arrows, key=lambda arrow: bool(arrow.taken)):
        parts += _arrow(arrow, layout.ways[arrow.source, arrow.target])
    for box in picture.boxes:
        parts += _box(box, labels[box.id], *layout.boxes[box.id], *sizes[box.id])
    about = " - ".join(text for text in (picture.title or "plan", picture.verdict) if text)
    size = f'{number(width)}" height="{number(height)}" viewBox="0 0 {number(width)} {number(height)}"'
    start = f'<svg xmlns="http://www.w3.org/2000/svg" width="{size} role="img" font-family="{FONT}">'
    return "\n".join([start, element("title", about), *parts, "</g>", "</svg>"])


def text_width(text: str, size: float) -> float:
    """The width of a bold text, estimated for a wide sans-serif font."""
    wide = sum(east_asian_width(letter) in "WF" or ord(letter) > 0x2000 for letter in text)
    return (0.66 * len(text) + 0.34 * wide) * size


def _labels(picture: Picture) -> dict[str, list[Label]]:
    """The conditions of the routes to each box; with their sources if there are several routes."""
    heads = {box.id: box.head for box in picture.boxes}
    routes = Counter(arrow.target for arrow in picture.arrows if arrow.labels)
    labels: dict[str, list[Label]] = {name: [] for name in heads}
    for arrow in picture.arrows:
        start = f"{heads[arrow.source]}: " if routes[arrow.target] > 1 else ""
        colour = FAINT if arrow.taken is False else ROUTE
        labels[arrow.target] += [(start + label, colour) for label in arrow.labels]
    return labels


def _box_size(box: Box, labels: Sequence[Label]) -> tuple[float, float]:
    small = [*box.lines, *(label for label, _ in labels)]
    widths = [text_width(_headline(box), _HEAD), *(text_width(line, _LINE) for line in small)]
    return max(90.0, max(widths) + 22), 36.0 + _ROW * len(small)


def _headline(box: Box) -> str:
    return f"{LOOKS[box.status].sign} {box.head}".strip()


def _arrow(arrow: Arrow, points: Sequence[tuple[float, float]]) -> Iterable[str]:
    dashes = "3 3" if arrow.taken is False else "7 4" if arrow.route and arrow.taken is None else None
    colour = FAINT if arrow.taken is False else ROUTE if arrow.route else SMALL
    width = 1.4 if not arrow.taken else 3.2 if arrow.route else 2.2
    path = "M" + "L".join(f"{number(x)} {number(y)}" for x, y in points)
    yield f"<g>{element('title', arrow.tooltip)}"
    yield element("path", d=path, stroke=colour, stroke_width=width, stroke_dasharray=dashes, fill="none")
    x, y = points[-1]
    yield element("path", d=f"M{number(x - 5)} {number(y - 10)}h10l-5 9z", fill=SMALL) + "</g>"


def _box(box: Box, labels: Sequence[Label], x: float, y: float, width: float, height: float) -> Iterable[str]:
    look, middle = LOOKS[box.status], x + width / 2
    yield f'<g class="node {box.status}">{element("title", box.tooltip)}'
    yield rect(
        *(x, y, width, height),
        rx=16 if box.conditional else 3,
        fill=look.ground,
        stroke=look.colour,
        stroke_width=look.border,
        stroke_dasharray="5 3" if box.conditional and box.status in ("waiting", "skipped") else None,
    )
    for row, (label, colour) in enumerate(labels):
        yield words(label, middle, y + 17 + _ROW * row, _LINE, colour, middle=True)
    y += _ROW * len(labels)
    ink = SMALL if box.status == "skipped" else INK
    yield words(_headline(box), middle, y + 23, _HEAD, ink, bold=True, middle=True)
    for row, line in enumerate(box.lines):
        yield words(line, middle, y + 41 + _ROW * row, _LINE, SMALL, middle=True)
    yield "</g>"
