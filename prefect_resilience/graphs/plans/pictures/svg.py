"""A plan as one SVG document without references, readable on any background.

Colours are Okabe and Ito's, for colour-blind readers. Signs, words and line styles repeat the meaning.
"""

from __future__ import annotations

from collections.abc import Iterable
from unicodedata import east_asian_width

from prefect_resilience.base.text import FONT, element, number, rect, words
from prefect_resilience.graphs.plans.model import Plan
from prefect_resilience.graphs.plans.pictures.layout import Line, Way, lay_out
from prefect_resilience.graphs.plans.pictures.picture import LOOKS, Arrow, Box, Picture, picture_of
from prefect_resilience.graphs.plans.result import PlanResult

INK = "#1a1a1a"
SMALL = "#4d4d4d"
ROUTE = "#0072B2"
FAINT = "#767676"

_HEAD, _LINE = 14.0, 11.0
"""The sizes of the letters in a box."""
_MARGIN = 20.0


def plan_to_svg(plan: Plan, result: PlanResult | None = None) -> str:
    """The plan as an SVG document, with the outcome if there is a result.

    The result may be of a run that is still running.
    """
    return draw(picture_of(plan, result))


def draw(picture: Picture) -> str:
    """The SVG document."""
    sizes = {box.id: _box_size(box) for box in picture.boxes}
    lines = [Line(arrow.source, arrow.target, _label_size(arrow)) for arrow in picture.arrows]
    layout = lay_out(sizes, lines)
    header = [(text, 16.0) for text in (picture.title,) if text]
    header += [(text, 12.0) for text in (picture.verdict, picture.note) if text]
    legend = _legend(picture)
    top = _MARGIN + 24 * len(header)
    bottom = top + layout.height + 24
    inner = max(layout.width, 240.0, *(text_width(text, size) for text, size in header))
    width, height = inner + 2 * _MARGIN, bottom + 20 * len(legend) + _MARGIN
    parts = [rect(0.5, 0.5, width - 1, height - 1, rx=8, fill="#ffffff", stroke="#d9d9d9")]
    for row, (text, size) in enumerate(header):
        parts.append(words(text, _MARGIN, _MARGIN + 24 * row + 12, size, INK, bold=not row))
    parts.append(_group_at(width / 2, top))
    drawn = sorted(zip(picture.arrows, layout.ways, strict=True), key=lambda pair: bool(pair[0].taken))
    for arrow, way in drawn:
        parts += _arrow(arrow, way)
    for box in picture.boxes:
        parts += _box(box, *layout.boxes[box.id], *sizes[box.id])
    for arrow, way in drawn:
        parts += _label(arrow, *way.label)
    for row, (meaning, sample) in enumerate(legend.items()):
        parts += ["</g>", _group_at(_MARGIN, bottom + 20 * row), sample, words(meaning, 32, 4, _LINE, SMALL)]
    about = " - ".join(text for text in (picture.title or "plan", picture.verdict) if text)
    size = f'{number(width)}" height="{number(height)}" viewBox="0 0 {number(width)} {number(height)}"'
    start = f'<svg xmlns="http://www.w3.org/2000/svg" width="{size} role="img" font-family="{FONT}">'
    return "\n".join([start, element("title", about), *parts, "</g>", "</svg>"])


def _group_at(x: float, y: float) -> str:
    return f'<g transform="translate({number(x)} {number(y)})">'


def text_width(text: str, size: float) -> float:
    """The width of a bold text, estimated for a wide sans-serif font."""
    narrow, wide = " .,:;'|!ijlIft()[]{}·", "mwMW%@…"
    ems = 0.0
    for letter in text:
        if east_asian_width(letter) in "WF" or letter in wide or ord(letter) > 0x2000:
            ems += 1.0
        elif letter in narrow:
            ems += 0.42
        else:
            ems += 0.78 if letter.isupper() else 0.66
    return ems * size


def _box_size(box: Box) -> tuple[float, float]:
    widths = [text_width(_headline(box), _HEAD), *(text_width(line, _LINE) for line in box.lines)]
    return max(90.0, max(widths) + 22), 36.0 + 15.0 * len(box.lines)


def _headline(box: Box) -> str:
    sign = LOOKS[box.status].sign
    return f"{sign} {box.head}" if sign else box.head


def _label_size(arrow: Arrow) -> tuple[float, float]:
    if not arrow.labels:
        return 0.0, 0.0
    return max(text_width(label, _LINE) for label in arrow.labels) + 12, 15.0 * len(arrow.labels) + 8


def _line(arrow: Arrow, path: str) -> str:
    """A line in the look of an arrow."""
    dashes = "3 3" if arrow.taken is False else "7 4" if arrow.route and arrow.taken is None else None
    colour = FAINT if arrow.taken is False else ROUTE if arrow.route else SMALL
    width = 1.4 if not arrow.taken else 3.2 if arrow.route else 2.2
    return element("path", d=path, stroke=colour, stroke_width=width, stroke_dasharray=dashes, fill="none")


def _arrow(arrow: Arrow, way: Way) -> Iterable[str]:
    *_, (x, y) = way.points
    path = "L".join(f"{number(at)} {number(down)}" for at, down in way.points)
    yield f"<g>{element('title', arrow.tooltip)}{_line(arrow, f'M{path}')}"
    yield element("path", d=f"M{number(x - 5)} {number(y - 10)}h10l-5 9z", fill=SMALL) + "</g>"


def _label(arrow: Arrow, x: float, y: float) -> Iterable[str]:
    if not arrow.labels:
        return
    width, height = _label_size(arrow)
    yield rect(x - width / 2, y - height / 2, width, height - 4, rx=3, fill="#ffffff")
    colour = FAINT if arrow.taken is False else ROUTE
    for row, label in enumerate(arrow.labels):
        yield words(label, x, y - height / 2 + 13 + 15 * row, _LINE, colour, middle=True)


def _box(box: Box, x: float, y: float, width: float, height: float) -> Iterable[str]:
    yield f'<g class="node {box.status}">{element("title", box.tooltip)}'
    yield _frame(box, x, y, width, height)
    ink = SMALL if box.status == "skipped" else INK
    yield words(_headline(box), x + width / 2, y + 23, _HEAD, ink, bold=True, middle=True)
    for row, line in enumerate(box.lines):
        yield words(line, x + width / 2, y + 41 + 15 * row, _LINE, SMALL, middle=True)
    yield "</g>"


def _frame(box: Box, x: float, y: float, width: float, height: float) -> str:
    look = LOOKS[box.status]
    dashes = "5 3" if box.conditional and box.status in ("waiting", "skipped") else None
    return rect(
        *(x, y, width, height),
        rx=min(16.0, height / 2) if box.conditional else 3,
        fill=look.ground,
        stroke=look.colour,
        stroke_width=look.border,
        stroke_dasharray=dashes,
    )


def _legend(picture: Picture) -> dict[str, str]:
    """A sample of each kind of box and arrow in the picture, by its meaning."""
    samples: dict[str, str] = {}
    for box in picture.boxes:
        meaning = LOOKS[box.status].words if picture.ran else ""
        if box.conditional and box.status in ("waiting", "skipped"):
            meaning = "runs only if routed to"
        if meaning:
            samples[meaning] = _frame(box, 1, -7, 24, 14)
    for arrow in picture.arrows:
        samples[_MEANINGS[arrow.route, arrow.taken]] = _line(arrow, "M2 0H26")
    return samples


_MEANINGS: dict[tuple[bool, bool | None], str] = {
    (False, None): "depends on",
    (True, None): "may route to",
    (False, True): "passed its value to",
    (True, True): "routed to",
    (False, False): "not taken",
    (True, False): "not taken",
}
