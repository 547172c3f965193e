"""A picture of a plan as one SVG document without references, readable on any background.

Colours are Okabe and Ito's, for colour-blind readers. Signs, words and line styles repeat the meaning.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from unicodedata import east_asian_width

from prefect_resilience.base.text import FONT, element, number, rect, words
from prefect_resilience.graphs.plans.pictures.layout import Layout, Line, Way, layered
from prefect_resilience.graphs.plans.pictures.picture import SIGNS, Arrow, Box, BoxStatus, Picture

INK = "#1a1a1a"
SMALL = "#4d4d4d"
ROUTE = "#0072B2"
FAINT = "#999999"

LOOKS: dict[BoxStatus, tuple[str, str, float]] = {
    "succeeded": ("#009E73", "#e6f5f0", 2),
    "failed": ("#D55E00", "#fbeadf", 3.5),
    "handled": ("#E69F00", "#fdf4e1", 3.5),
    "skipped": ("#8c8c8c", "#f7f7f7", 1.2),
    "waiting": ("#4d4d4d", "#ffffff", 1.4),
}
"""Colour, background and width of the border."""

WORDS: dict[BoxStatus, str] = {
    "succeeded": "succeeded",
    "failed": "failed",
    "handled": "failed, handled by another node",
    "skipped": "skipped",
    "waiting": "has not run",
}

_HEAD, _LINE = 14.0, 11.0
_PADDING = 11.0
_BADGE = 9.0
_MARGIN = 20.0


def draw(picture: Picture) -> str:
    """The SVG document."""
    sizes = {box.id: _size(box) for box in picture.boxes}
    lines = [Line(arrow.source, arrow.target, _label_size(arrow)) for arrow in picture.arrows]
    layout = layered(sizes, lines)
    header = _header(picture)
    legend, legend_width, legend_height = _legend(picture)
    texts = [(text_width(text, size), size) for text, size, _ in header]
    inner = max(layout.width, legend_width, 240.0, *(width for width, _ in texts), 0.0)
    top = _MARGIN + sum(size * 1.5 for _, size in texts) + (10 if texts else 0)
    bottom = top + layout.height + 24
    width, height = inner + 2 * _MARGIN, bottom + legend_height + _MARGIN
    left = _MARGIN + (inner - layout.width) / 2
    body = [
        rect(0.5, 0.5, width - 1, height - 1, rx=8, fill="#ffffff", stroke="#d9d9d9"),
        *_header_texts(header),
        f'<g transform="translate({number(left)} {number(top)})">',
        *_drawing(picture, layout, sizes),
        "</g>",
        f'<g transform="translate({number(_MARGIN)} {number(bottom)})">',
        *legend,
        "</g>",
    ]
    about = " - ".join(text for text in (picture.title or "plan", picture.verdict) if text)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{number(width)}" height="{number(height)}" '
            f'viewBox="0 0 {number(width)} {number(height)}" role="img" font-family="{FONT}">',
            element("title", about),
            *body,
            "</svg>",
        ]
    )


def text_width(text: str, size: float, bold: bool = False) -> float:
    """The width of a text, estimated for a wide sans-serif font."""
    ems = 0.0
    for letter in text:
        if east_asian_width(letter) in "WF":
            ems += 1.0
        elif letter in " .,:;'|!ijlIft()[]{}·":
            ems += 0.36
        elif letter in "mwMW%@…" or ord(letter) > 0x2000:
            ems += 0.95
        elif letter.isupper():
            ems += 0.70
        else:
            ems += 0.59
    return ems * size * (1.08 if bold else 1.0)


def _size(box: Box) -> tuple[float, float]:
    badge = 2 * _BADGE + 6 if SIGNS[box.status] else 0.0
    widths = [
        text_width(box.head, _HEAD, bold=True) + badge,
        *(text_width(line, _LINE) for line in box.lines),
    ]
    return max(90.0, max(widths) + 2 * _PADDING), 36.0 + 15.0 * len(box.lines)


def _label_size(arrow: Arrow) -> tuple[float, float] | None:
    if not arrow.labels:
        return None
    return max(text_width(label, _LINE) for label in arrow.labels) + 12, 15.0 * len(arrow.labels) + 3


def _header(picture: Picture) -> list[tuple[str, float, str]]:
    lines = [(picture.title, 16.0, INK), (picture.verdict, 13.0, INK), (picture.note, 12.0, SMALL)]
    return [line for line in lines if line[0]]


def _header_texts(header: Sequence[tuple[str, float, str]]) -> Iterable[str]:
    y = _MARGIN
    for text, size, colour in header:
        y += size * 1.5
        yield words(text, _MARGIN, y - size * 0.45, size, colour, bold=size == 16.0)


def _drawing(picture: Picture, layout: Layout, sizes: dict[str, tuple[float, float]]) -> Iterable[str]:
    """Faint arrows first, so that others cover them, then boxes, then labels."""
    arrows = sorted(zip(picture.arrows, layout.ways, strict=True), key=lambda pair: _weight(pair[0]))
    for arrow, way in arrows:
        yield from _arrow(arrow, way)
    for box in picture.boxes:
        yield from _box(box, *layout.boxes[box.id], *sizes[box.id])
    for arrow, way in arrows:
        if way.label is not None:
            yield from _label(arrow, *way.label)


def _weight(arrow: Arrow) -> int:
    return {False: 0, None: 1, True: 2}[arrow.taken]


def _line(arrow: Arrow, path: str) -> str:
    """The line of an arrow along a path."""
    colour, width = _stroke(arrow)
    dashes = "3 3" if arrow.taken is False else "7 4" if arrow.route and arrow.taken is None else None
    return element("path", d=path, fill="none", stroke=colour, stroke_width=width, stroke_dasharray=dashes)


def _stroke(arrow: Arrow) -> tuple[str, float]:
    """Colour and width."""
    if arrow.taken is False:
        return FAINT, 1.2
    width = 1.4 if not arrow.taken else 3.2 if arrow.route else 2.2
    return ROUTE if arrow.route else SMALL, width


def _arrow(arrow: Arrow, way: Way) -> Iterable[str]:
    colour, width = _stroke(arrow)
    head = 7 + width
    *points, (x, tip) = way.points
    points.append((x, tip - head + 1))
    corners = [(x, tip - 1), (x - head / 2, tip - 1 - head), (x + head / 2, tip - 1 - head)]
    outline = "L".join(f"{number(at)} {number(down)}" for at, down in corners)
    yield f"<g>{element('title', arrow.tooltip)}"
    yield _line(arrow, _path(points))
    yield f"{element('path', d=f'M{outline}Z', fill=colour)}</g>"


def _path(points: Sequence[tuple[float, float]]) -> str:
    """A path through all points, vertical at each point."""
    (x, y), *rest = ((round(x), round(y)) for x, y in points)
    said = [f"M{x} {y}"]
    for next_x, next_y in rest:
        if next_x == x:
            if said[-1].startswith("V"):
                said.pop()
            said.append(f"V{next_y}")
        else:
            middle = (y + next_y) // 2
            said.append(f"C{x} {middle} {next_x} {middle} {next_x} {next_y}")
            x = next_x
        y = next_y
    return "".join(said)


def _label(arrow: Arrow, x: float, y: float) -> Iterable[str]:
    width, height = _label_size(arrow) or (0.0, 0.0)
    colour = "#767676" if arrow.taken is False else ROUTE
    yield f"<g>{element('title', arrow.tooltip)}"
    yield rect(x - width / 2, y - height / 2, width, height, rx=3, fill="#ffffff")
    for row, label in enumerate(arrow.labels):
        below = y - height / 2 + 13 + 15 * row
        yield words(label, x, below, _LINE, colour, bold=bool(arrow.taken), middle=True)
    yield "</g>"


def _box(box: Box, x: float, y: float, width: float, height: float) -> Iterable[str]:
    colour, ground, border = LOOKS[box.status]
    dashes = "5 3" if box.conditional and box.status in ("waiting", "skipped") else None
    look = {"fill": ground, "stroke": colour, "stroke_width": border, "stroke_dasharray": dashes}
    yield f'<g class="node {box.status}">{element("title", box.tooltip)}'
    yield rect(x, y, width, height, rx=min(16.0, height / 2) if box.conditional else 3, **look)
    sign, middle = SIGNS[box.status], x + width / 2
    if sign:
        whole = 2 * _BADGE + 6 + text_width(box.head, _HEAD, bold=True)
        yield from _badge(box.status, middle - whole / 2 + _BADGE, y + 18)
        middle += _BADGE + 3
    ink = SMALL if box.status == "skipped" else INK
    yield words(box.head, middle, y + 23, _HEAD, ink, bold=True, middle=True)
    for row, line in enumerate(box.lines):
        yield words(line, x + width / 2, y + 41 + 15 * row, _LINE, SMALL, middle=True)
    yield "</g>"


def _badge(status: BoxStatus, x: float, y: float) -> Iterable[str]:
    """The sign of a status, white on its colour; black on orange, which is too light for white."""
    yield element("circle", cx=x, cy=y, r=_BADGE, fill=LOOKS[status][0])
    ink = INK if status == "handled" else "#ffffff"
    yield words(SIGNS[status], x, y + 4.5, 13, ink, bold=True, middle=True)


def _legend(picture: Picture) -> tuple[list[str], float, float]:
    """The meaning of the signs and lines in this picture, with the width and height of the legend."""
    entries: list[tuple[str, list[str]]] = []
    for status in LOOKS:
        if picture.ran and any(box.status == status for box in picture.boxes):
            entries.append((WORDS[status], list(_sample_box(status))))
    if any(box.conditional and box.status in ("waiting", "skipped") for box in picture.boxes):
        entries.append(("runs only if routed to", [_DASHED_BOX]))
    for meaning, arrow in _SAMPLES:
        if any(_same(arrow, other) for other in picture.arrows):
            entries.append((meaning, [_line(arrow, "M2 -1H26")]))
    made: list[str] = []
    x = y = widest = 0.0
    for meaning, sample in entries:
        width = 34 + text_width(meaning, _LINE) + 18
        if x and x + width > 640:
            x, y = 0.0, y + 22
        made += [f'<g transform="translate({number(x)} {number(y + 10)})">', *sample]
        made += [words(meaning, 32, 3, _LINE, SMALL), "</g>"]
        x += width
        widest = max(widest, x)
    return made, widest, y + 18 if entries else 0.0


_DASHED_BOX = rect(1, -8, 24, 14, rx=7, fill="none", stroke=SMALL, stroke_dasharray="5 3")


def _sample_box(status: BoxStatus) -> Iterable[str]:
    if SIGNS[status]:
        yield from _badge(status, 14, -1)
    else:
        yield rect(2, -8, 24, 14, rx=2, fill="#ffffff", stroke=LOOKS[status][0])


_SAMPLES = (
    ("depends on", Arrow("", "", False, (), None, "")),
    ("may route to", Arrow("", "", True, (), None, "")),
    ("passed its value to", Arrow("", "", False, (), True, "")),
    ("routed to", Arrow("", "", True, (), True, "")),
    ("not taken", Arrow("", "", False, (), False, "")),
)


def _same(one: Arrow, other: Arrow) -> bool:
    return one.taken is other.taken and (one.taken is False or one.route is other.route)
