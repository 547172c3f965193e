"""A plan as one SVG document without references, readable on any background.

Layers by the longest path, from top to bottom, with straight arrows behind the boxes. The conditions of the
routes to a node are at the top of its box. Colours are Okabe and Ito's, for colour-blind readers. Signs,
words and line styles repeat the meaning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from graphlib import TopologicalSorter
from statistics import mean
from typing import NamedTuple
from unicodedata import east_asian_width

from prefect_resilience.base.text import FONT, element, number, rect, words
from prefect_resilience.graphs.plans.model import Plan
from prefect_resilience.graphs.plans.picture import LOOKS, Arrow, Box, Picture, picture_of
from prefect_resilience.graphs.plans.result import PlanResult

INK = "#1a1a1a"
SMALL = "#4d4d4d"
ROUTE = "#0072B2"
FAINT = "#767676"

_HEAD, _LINE = 14.0, 11.0
"""The sizes of the letters in a box."""
_ROW = 15.0
_MARGIN = 20.0

GAP = 26.0
"""The gap between boxes side by side."""
ROW_GAP = 48.0
WIDEST_ROW = 12
"""A layer with more boxes is split into several rows."""

Size = tuple[float, float]
Pair = tuple[str, str]
"""The source and the target of an arrow."""


class Place(NamedTuple):
    """The place of a box."""

    middle: float
    top: float
    bottom: float


def lay_out(sizes: Mapping[str, Size], arrows: Sequence[Pair]) -> dict[str, Place]:
    """The places of boxes of these sizes, by the longest path to each, centred at x = 0 from y = 0.

    The arrows must have no cycle.
    """
    before: dict[str, list[str]] = {name: [] for name in sizes}
    for source, target in arrows:
        before[target].append(source)
    layers: dict[str, int] = {}
    for name in TopologicalSorter(before).static_order():
        layers[name] = max((layers[source] + 1 for source in before[name]), default=0)
    places: dict[str, Place] = {}
    bottom = 0.0
    for layer in range(max(layers.values(), default=-1) + 1):
        row = [name for name in sizes if layers[name] == layer]
        row.sort(key=lambda name: mean([places[source].middle for source in before[name]] or [0.0]))
        for first in range(0, len(row), WIDEST_ROW):
            names = row[first : first + WIDEST_ROW]
            width = sum(sizes[name][0] for name in names) + GAP * (len(names) - 1)
            x, top = -width / 2, bottom + (ROW_GAP if places else 0.0)
            for name in names:
                places[name] = Place(x + sizes[name][0] / 2, top, top + sizes[name][1])
                x += sizes[name][0] + GAP
            bottom = max(places[name].bottom for name in names)
    return places


# -- the drawing


def plan_to_svg(plan: Plan, result: PlanResult | None = None) -> str:
    """The plan as an SVG document, with the outcome if there is a result, also of a run that goes on."""
    picture = picture_of(plan, result)
    labels = _labels(picture)
    sizes = {box.id: _box_size(box, labels[box.id]) for box in picture.boxes}
    places = lay_out(sizes, [(arrow.source, arrow.target) for arrow in picture.arrows])
    widest = max((2 * abs(place.middle) + sizes[name][0] for name, place in places.items()), default=0)
    header = [text for text in (picture.title, picture.verdict, picture.note) if text]
    top = _MARGIN + 24 * len(header)
    inner = max(widest, 240.0, *(text_width(text, _HEAD) for text in header))
    bottom = max((place.bottom for place in places.values()), default=0)
    width, height = inner + 2 * _MARGIN, top + bottom + _MARGIN
    parts = [rect(0.5, 0.5, width - 1, height - 1, rx=8, fill="#ffffff", stroke="#d9d9d9")]
    for row, text in enumerate(header):
        parts.append(words(text, _MARGIN, _MARGIN + 24 * row + 12, _HEAD, INK, bold=not row))
    parts.append(f'<g transform="translate({number(width / 2)} {number(top)})">')
    for arrow in sorted(picture.arrows, key=lambda arrow: bool(arrow.taken)):
        parts += _arrow(arrow, places[arrow.source], places[arrow.target])
    for box in picture.boxes:
        parts += _box(box, labels[box.id], places[box.id], sizes[box.id])
    size = f'{number(width)}" height="{number(height)}" viewBox="0 0 {number(width)} {number(height)}"'
    start = f'<svg xmlns="http://www.w3.org/2000/svg" width="{size} role="img" font-family="{FONT}">'
    return "\n".join([start, element("title", " - ".join(header) or "plan"), *parts, "</g>", "</svg>"])


def text_width(text: str, size: float) -> float:
    """The width of a bold text, estimated for a wide sans-serif font."""
    wide = sum(east_asian_width(letter) in "WF" or ord(letter) > 0x2000 for letter in text)
    return (0.66 * len(text) + 0.34 * wide) * size


def _labels(picture: Picture) -> dict[str, list[str]]:
    """The conditions of the routes to each box; with their sources if there are several routes."""
    heads = {box.id: box.head for box in picture.boxes}
    routes = Counter(arrow.target for arrow in picture.arrows if arrow.labels)
    labels: dict[str, list[str]] = {name: [] for name in heads}
    for arrow in picture.arrows:
        start = f"{heads[arrow.source]}: " if routes[arrow.target] > 1 else ""
        labels[arrow.target] += [start + label for label in arrow.labels]
    return labels


def _box_size(box: Box, labels: Sequence[str]) -> Size:
    small = [*box.lines, *labels]
    widths = [text_width(f"✓ {box.head}", _HEAD), *(text_width(line, _LINE) for line in small)]
    return max(90.0, max(widths) + 22), 36.0 + _ROW * len(small)


def _arrow(arrow: Arrow, source: Place, target: Place) -> Iterable[str]:
    dashes = "3 3" if arrow.taken is False else "7 4" if arrow.route and arrow.taken is None else None
    colour = FAINT if arrow.taken is False else ROUTE if arrow.route else SMALL
    width = 1.4 if not arrow.taken else 3.2 if arrow.route else 2.2
    x, y = target.middle, target.top
    path = f"M{number(source.middle)} {number(source.bottom)}L{number(x)} {number(y)}"
    yield element("path", d=path, stroke=colour, stroke_width=width, stroke_dasharray=dashes, fill="none")
    yield element("path", d=f"M{number(x - 5)} {number(y - 10)}h10l-5 9z", fill=SMALL)


def _box(box: Box, labels: Sequence[str], place: Place, size: Size) -> Iterable[str]:
    look, (width, height), y = LOOKS[box.status], size, place.top
    yield f'<g class="node {box.status}">{element("title", box.head)}'
    yield rect(
        *(place.middle - width / 2, y, width, height),
        rx=16 if box.conditional else 3,
        fill=look.ground,
        stroke=look.colour,
        stroke_width=look.border,
    )
    for row, label in enumerate(labels):
        yield words(label, place.middle, y + 17 + _ROW * row, _LINE, ROUTE, middle=True)
    y += _ROW * len(labels)
    yield words(f"{look.sign} {box.head}".strip(), place.middle, y + 23, _HEAD, INK, bold=True, middle=True)
    for row, line in enumerate(box.lines):
        yield words(line, place.middle, y + 41 + _ROW * row, _LINE, SMALL, middle=True)
    yield "</g>"
