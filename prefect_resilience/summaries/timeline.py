"""A flow run as a picture: attempts and waits of its task runs over time. One SVG document, pure.

It lies on a white card, so that it can be read on dark and on light ground. Colours are Okabe and Ito's;
hatching and signs say it again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from unicodedata import east_asian_width
from xml.sax.saxutils import escape

from prefect_resilience.errors.redact import redact
from prefect_resilience.summaries.lanes import Bar, Lane, Look, Timeline, timeline_of
from prefect_resilience.summaries.model import RunFacts, Seen

FONT = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
INK, SMALL, GRID = "#1a1a1a", "#4d4d4d", "#e3e3e3"
WIDTH, LABELS, RIGHT = 960.0, 236.0, 26.0
LANE, BAR, TOP = 22.0, 13.0, 64.0
LONGEST_LABEL = 34.0

LOOKS: dict[Look, tuple[str, str, str]] = {
    "ok": ("#009E73", "", "succeeded"),
    "failed": ("#D55E00", "✕", "failed"),
    "replaced": ("#E69F00", "↷", "answered by a fallback"),
    "replayed": ("#0072B2", "↻", "replayed"),
    "wait": ("url(#wait)", "", "waits for its next attempt"),
    "running": ("#8c8c8c", "…", "not finished"),
    "open": ("url(#open)", "", "circuit open"),
    "half-open": ("#F0C987", "", "circuit half-open"),
}
"""Fill, sign, and the words of the legend."""

_EDGES: dict[Look, str] = {"wait": "#8c8c8c", "open": "#D55E00", "half-open": "#E69F00"}

_PATTERNS = (
    '<defs><pattern id="wait" width="6" height="6" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><rect width="6" height="6" fill="#ffffff"/>'
    '<rect width="2" height="6" fill="#b3b3b3"/></pattern>'
    '<pattern id="open" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="7" height="7" fill="#fbeadf"/><rect width="3" height="7" fill="#D55E00"/></pattern></defs>'
)


def draw(facts: RunFacts, seen: Seen) -> str | None:
    """The SVG document; None when there is nothing to draw."""
    timeline = timeline_of(facts, seen)
    if timeline is None:
        return None
    bottom = TOP + LANE * len(timeline.lanes)
    legend, rows = _legend(timeline)
    height = bottom + 34 + 20 * rows + (20 if timeline.more else 0)
    title = f"{_line(facts.name, 60)} - {_line(facts.flow, 40)}: {_line(facts.state, 20)}"
    body = [
        f'<rect x="0.5" y="0.5" width="{WIDTH - 1:g}" height="{_n(height - 1)}" rx="8" fill="#ffffff" '
        'stroke="#d9d9d9"/>',
        _PATTERNS,
        _text(title, 18, 26, 14, INK, bold=True),
        *_stripes(timeline),
        *_axis(timeline, bottom),
        *(part for place, lane in enumerate(timeline.lanes) for part in _lane(lane, place, timeline)),
    ]
    if timeline.more:
        body.append(_text(f"and {timeline.more:,} more task runs", 18, bottom + 18, 11, SMALL))
    shift = bottom + (40 if timeline.more else 20)
    body += [f'<g transform="translate(18 {_n(shift)})">', *legend, "</g>"]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH:g}" height="{_n(height)}" '
            f'viewBox="0 0 {WIDTH:g} {_n(height)}" role="img" font-family="{FONT}">',
            f"<title>{escape(title)}</title>",
            *body,
            "</svg>",
        ]
    )


def _x(at: float, timeline: Timeline) -> float:
    whole = max(timeline.end - timeline.start, 1e-3)
    return LABELS + (at - timeline.start) / whole * (WIDTH - LABELS - RIGHT)


def _axis(timeline: Timeline, bottom: float) -> Iterable[str]:
    whole = max(timeline.end - timeline.start, 1e-3)
    step = nice_step(whole / 8)
    count = math.floor(whole / step + 1e-9)
    for number in range(count + 1):
        x = _x(timeline.start + number * step, timeline)
        yield f'<path d="M{_n(x)} {TOP - 6:g}V{_n(bottom)}" stroke="{GRID}"/>'
        yield _text(_moment(number * step, step), x, TOP - 12, 11, SMALL, middle=True)


def nice_step(least: float) -> float:
    """1, 2 or 5 times a power of ten of seconds; from a minute on, what a clock shows."""
    if least > 30:
        clock = (60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400)
        return next((float(step) for step in clock if step >= least), math.ceil(least / 86_400) * 86_400.0)
    power = 10.0 ** math.floor(math.log10(max(least, 1e-3)))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * (1 - 1e-9))


def _moment(seconds: float, step: float) -> str:
    if step >= 3_600:
        return f"{seconds / 3_600:g} h"
    if step >= 60:
        return f"{seconds / 60:g} min"
    return f"{seconds:g} s" if step >= 1 else f"{round(seconds, 3):g} s"


def _stripes(timeline: Timeline) -> Iterable[str]:
    for place in range(1, len(timeline.lanes), 2):
        y = TOP + LANE * place
        yield f'<rect x="8" y="{_n(y)}" width="{WIDTH - 16:g}" height="{LANE:g}" fill="#f7f7f7"/>'


def _lane(lane: Lane, place: int, timeline: Timeline) -> Iterable[str]:
    y = TOP + LANE * place
    label = f"circuit {lane.label}" if lane.circuit else lane.label
    yield f"<g><title>{escape(_line(label, 300))}</title>"
    shown = _text(_fitting(label), 18, y + 15, 12, INK, bold=lane.circuit)
    yield f"{shown}</g>"
    # What took but a moment lies on top of the wait after it.
    for bar in sorted(lane.bars, key=lambda bar: bar.look != "wait"):
        yield from _bar(bar, y + (LANE - BAR) / 2, timeline)


def _bar(bar: Bar, y: float, timeline: Timeline) -> Iterable[str]:
    fill, sign, _ = LOOKS[bar.look]
    x = _x(bar.start, timeline)
    width = max(_x(bar.end, timeline) - x, 3.0)
    edge = _EDGES.get(bar.look)
    stroke = f' stroke="{edge}"' if edge else ""
    yield (
        f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{BAR:g}" rx="2" fill="{fill}"{stroke}>'
        f"<title>{escape(_line(bar.tip, 200))}</title></rect>"
    )
    if sign and width >= 13:
        ink = INK if bar.look == "replaced" else "#ffffff"
        yield _text(sign, x + width / 2, y + 10.5, 11, ink, bold=True, middle=True)


def _legend(timeline: Timeline) -> tuple[list[str], int]:
    """What occurs, side by side; with the number of rows."""
    occurring = {bar.look for lane in timeline.lanes for bar in lane.bars}
    made: list[str] = []
    x, row = 0.0, 0
    for look, (fill, sign, words) in LOOKS.items():
        if look not in occurring:
            continue
        width = 52 + 6.4 * len(words)
        if x and x + width > WIDTH - 36:
            x, row = 0.0, row + 1
        y = 20 * row
        edge = _EDGES.get(look)
        stroke = f' stroke="{edge}"' if edge else ""
        made.append(
            f'<rect x="{_n(x)}" y="{y - 2:g}" width="22" height="{BAR:g}" rx="2" fill="{fill}"{stroke}/>'
        )
        if sign:
            ink = INK if look == "replaced" else "#ffffff"
            made.append(_text(sign, x + 11, y + 8.5, 11, ink, bold=True, middle=True))
        made.append(_text(words, x + 29, y + 9, 11, SMALL))
        x += width
    return made, row + 1


def _line(said: str, most: int) -> str:
    """One line without secrets; characters that XML does not allow become spaces."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in redact(said)).split())
    return line if len(line) <= most else line[: most - 1] + "…"


def _fitting(label: str) -> str:
    """As much of a label as there is room for; wide letters take more of it."""
    line = _line(label, 300)
    room = LONGEST_LABEL
    for place, letter in enumerate(line):
        room -= (
            1.8 if east_asian_width(letter) in "WF" else 1.3 if letter.isupper() or letter in "mwMW" else 1
        )
        if room < 1 and place + 1 < len(line):
            return line[:place] + "…"
    return line


def _text(
    said: str, x: float, y: float, size: float, colour: str, *, bold: bool = False, middle: bool = False
) -> str:
    strong = ' font-weight="bold"' if bold else ""
    anchor = ' text-anchor="middle"' if middle else ""
    return (
        f'<text x="{_n(x)}" y="{_n(y)}" font-size="{_n(size)}" fill="{colour}"{strong}{anchor}>'
        f"{escape(said)}</text>"
    )


def _n(number: float) -> str:
    return f"{round(number, 1):g}" if abs(number) < 100_000 else f"{number:.0f}"
