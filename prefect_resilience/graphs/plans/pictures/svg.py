"""A picture of a plan as SVG: one XML document that needs nothing else, readable on any background.

Colours are Okabe and Ito's, which everybody can tell apart; signs, words and the kinds of lines say it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from unicodedata import east_asian_width
from xml.sax.saxutils import escape

from prefect_resilience.graphs.plans.pictures.layout import Layout, Line, Way, layered
from prefect_resilience.graphs.plans.pictures.picture import SIGNS, Arrow, Box, BoxStatus, Picture

FONT = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"

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
"""Colour, ground and the strength of the border."""

WORDS: dict[BoxStatus, str] = {
    "succeeded": "succeeded",
    "failed": "failed",
    "handled": "failed, another node took over",
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
        f'<rect x="0.5" y="0.5" width="{_n(width - 1)}" height="{_n(height - 1)}" rx="8" fill="#ffffff" '
        f'stroke="#d9d9d9"/>',
        *_header_texts(header),
        f'<g transform="translate({_n(left)} {_n(top)})">',
        *_drawing(picture, layout, sizes),
        "</g>",
        f'<g transform="translate({_n(_MARGIN)} {_n(bottom)})">',
        *legend,
        "</g>",
    ]
    about = " - ".join(text for text in (picture.title or "plan", picture.verdict) if text)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_n(width)}" height="{_n(height)}" '
            f'viewBox="0 0 {_n(width)} {_n(height)}" role="img" font-family="{FONT}">',
            f"<title>{escape(about)}</title>",
            *body,
            "</svg>",
        ]
    )


def text_width(text: str, size: float, bold: bool = False) -> float:
    """How wide a text is, in a wide sans-serif font: boxes are rather too wide than too narrow."""
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


def _n(number: float) -> str:
    """A coordinate: at most one decimal place."""
    return f"{round(number, 1):g}" if abs(number) < 100_000 else f"{number:.0f}"


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
    for number, (text, size, colour) in enumerate(header):
        y += size * 1.5
        weight = "bold" if number == 0 and size == 16.0 else "normal"
        yield _text(text, _MARGIN, y - size * 0.45, size, colour, weight=weight)


def _text(
    text: str, x: float, y: float, size: float, colour: str, *, anchor: str = "start", weight: str = "normal"
) -> str:
    strong = ' font-weight="bold"' if weight == "bold" else ""
    middle = ' text-anchor="middle"' if anchor == "middle" else ""
    return (
        f'<text x="{_n(x)}" y="{_n(y)}" font-size="{_n(size)}" fill="{colour}"{strong}{middle}>'
        f"{escape(text)}</text>"
    )


def _drawing(picture: Picture, layout: Layout, sizes: dict[str, tuple[float, float]]) -> Iterable[str]:
    """Faint arrows first, so that the others run over them, then boxes, then labels."""
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


def _stroke(arrow: Arrow) -> tuple[str, float, str]:
    """Colour, width and dashes."""
    dashes = ' stroke-dasharray="7 4"' if arrow.route and arrow.taken is None else ""
    if arrow.taken is False:
        return FAINT, 1.2, ' stroke-dasharray="3 3"'
    colour = ROUTE if arrow.route else SMALL
    return colour, 3.2 if arrow.taken and arrow.route else 2.2 if arrow.taken else 1.4, dashes


def _arrow(arrow: Arrow, way: Way) -> Iterable[str]:
    colour, width, dashes = _stroke(arrow)
    head = 7 + width
    *points, (x, tip) = way.points
    points.append((x, tip - head + 1))
    yield f"<g><title>{escape(arrow.tooltip)}</title>"
    yield f'<path d="{_path(points)}" fill="none" stroke="{colour}" stroke-width="{_n(width)}"{dashes}/>'
    side = head * 0.5
    yield (
        f'<path d="M{_n(x)} {_n(tip - 1)}L{_n(x - side)} {_n(tip - 1 - head)}L{_n(x + side)} '
        f'{_n(tip - 1 - head)}Z" fill="{colour}"/></g>'
    )


def _path(points: Sequence[tuple[float, float]]) -> str:
    """Through all points, upright at each of them."""
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
    yield f"<g><title>{escape(arrow.tooltip)}</title>"
    yield (
        f'<rect x="{_n(x - width / 2)}" y="{_n(y - height / 2)}" width="{_n(width)}" height="{_n(height)}" '
        f'rx="3" fill="#ffffff"/>'
    )
    first = y - height / 2 + 13
    for number, label in enumerate(arrow.labels):
        weight = "bold" if arrow.taken else "normal"
        yield _text(label, x, first + 15 * number, _LINE, colour, anchor="middle", weight=weight)
    yield "</g>"


def _box(box: Box, x: float, y: float, width: float, height: float) -> Iterable[str]:
    colour, ground, border = LOOKS[box.status]
    faint = box.status == "skipped"
    dashes = ' stroke-dasharray="5 3"' if box.conditional and box.status in ("waiting", "skipped") else ""
    yield f'<g class="node {box.status}"><title>{escape(box.tooltip)}</title>'
    yield (
        f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}" '
        f'rx="{_n(min(16.0, height / 2)) if box.conditional else "3"}" fill="{ground}" stroke="{colour}" '
        f'stroke-width="{_n(border)}"{dashes}/>'
    )
    sign, middle = SIGNS[box.status], x + width / 2
    if sign:
        whole = 2 * _BADGE + 6 + text_width(box.head, _HEAD, bold=True)
        yield from _badge(box.status, middle - whole / 2 + _BADGE, y + 18)
        middle += _BADGE + 3
    ink = SMALL if faint else INK
    yield _text(box.head, middle, y + 23, _HEAD, ink, anchor="middle", weight="bold")
    for number, line in enumerate(box.lines):
        yield _text(line, x + width / 2, y + 41 + 15 * number, _LINE, SMALL, anchor="middle")
    yield "</g>"


def _badge(status: BoxStatus, x: float, y: float) -> Iterable[str]:
    """The sign, in white on the colour (in black on orange, which is too light for white)."""
    yield f'<circle cx="{_n(x)}" cy="{_n(y)}" r="{_n(_BADGE)}" fill="{LOOKS[status][0]}"/>'
    ink = INK if status == "handled" else "#ffffff"
    yield _text(SIGNS[status], x, y + 4.5, 13, ink, anchor="middle", weight="bold")


def _legend(picture: Picture) -> tuple[list[str], float, float]:
    """What the signs and lines that occur mean, side by side in rows; with its width and height."""
    entries: list[tuple[str, list[str]]] = []
    for status in LOOKS:
        if picture.ran and any(box.status == status for box in picture.boxes):
            entries.append((WORDS[status], list(_sample_box(status))))
    if any(box.conditional and box.status in ("waiting", "skipped") for box in picture.boxes):
        entries.append(("runs only if led to", [_DASHED_BOX]))
    for words, arrow in _SAMPLES:
        if any(_same(arrow, other) for other in picture.arrows):
            entries.append((words, [_sample_line(arrow)]))
    made: list[str] = []
    x = y = widest = 0.0
    for words, sample in entries:
        width = 34 + text_width(words, _LINE) + 18
        if x and x + width > 640:
            x, y = 0.0, y + 22
        made += [f'<g transform="translate({_n(x)} {_n(y + 10)})">', *sample]
        made += [_text(words, 32, 3, _LINE, SMALL), "</g>"]
        x += width
        widest = max(widest, x)
    return made, widest, y + 18 if entries else 0.0


_DASHED_BOX = (
    f'<rect x="1" y="-8" width="24" height="14" rx="7" fill="none" stroke="{SMALL}" stroke-dasharray="5 3"/>'
)


def _sample_box(status: BoxStatus) -> Iterable[str]:
    if SIGNS[status]:
        yield from _badge(status, 14, -1)
    else:
        yield f'<rect x="2" y="-8" width="24" height="14" rx="2" fill="#ffffff" stroke="{LOOKS[status][0]}"/>'


_SAMPLES = (
    ("depends on", Arrow("", "", False, (), None, "")),
    ("may lead to", Arrow("", "", True, (), None, "")),
    ("gave its value to", Arrow("", "", False, (), True, "")),
    ("led to", Arrow("", "", True, (), True, "")),
    ("not taken", Arrow("", "", False, (), False, "")),
)


def _same(one: Arrow, other: Arrow) -> bool:
    return one.taken is other.taken and (one.taken is False or one.route is other.route)


def _sample_line(arrow: Arrow) -> str:
    colour, width, dashes = _stroke(arrow)
    return f'<path d="M2 -1H26" fill="none" stroke="{colour}" stroke-width="{_n(width)}"{dashes}/>'
