"""A flow run as a picture: attempts and waits of its task runs over time, pass by pass. One SVG. Pure.

The background is a white card, readable in dark and light themes. Each pass has a band with its own axis, and
the pause between two passes is shortened. The colours are those of Okabe and Ito; hatching and signs repeat
their meaning. The signs are characters that every font has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from unicodedata import east_asian_width
from xml.sax.saxutils import escape

from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.tasks.summaries.rows import clock, ended, span, started_by
from prefect_resilience.tasks.summaries.story import Band, Bar, BarKind, Lane, Story, bands_of
from prefect_resilience.telemetry.model import Outcome

FONT = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
INK, SMALL, GRID = "#1a1a1a", "#4d4d4d", "#e3e3e3"
WIDTH, LABELS, RIGHT = 960.0, 236.0, 26.0
LANE, BAR = 22.0, 13.0
TITLE, HEADING, TOTALS, AXIS, FOLD = 44.0, 22.0, 24.0, 22.0, 34.0
"""Heights: the title, each heading line of a pass, its totals, its axis, and a shortened pause."""

LONGEST_LABEL = 34.0
HEADING_LENGTH = 150

LOOKS: dict[BarKind, tuple[str, str, str]] = {
    "ok": ("#009E73", "", "succeeded"),
    "failed": ("#D55E00", "×", "failed"),
    "crashed": ("#882255", "!", "crashed"),
    "replaced": ("#E69F00", "≈", "answered by a fallback"),
    "replayed": ("#0072B2", "=", "replayed"),
    "wait": ("url(#wait)", "", "waiting for the next attempt"),
    "running": ("#8c8c8c", "…", "not finished"),
    "open": ("url(#open)", "", "circuit open"),
    "half-open": ("#F0C987", "", "circuit half-open"),
    "unknown": ("#f0f0f0", "?", "duration unknown"),
}
"""Fill, sign, and the words in the legend."""

_EDGES: dict[BarKind, str] = {
    "wait": "#8c8c8c",
    "open": "#D55E00",
    "half-open": "#E69F00",
    "unknown": "#8c8c8c",
}
_DARK_SIGNS: frozenset[BarKind] = frozenset({"replaced", "unknown"})
_ORDER: tuple[Outcome, ...] = ("ok", "replayed", "replaced", "failed", "crashed", "running")

_PATTERNS = (
    '<defs><pattern id="wait" width="6" height="6" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><rect width="6" height="6" fill="#ffffff"/>'
    '<rect width="2" height="6" fill="#b3b3b3"/></pattern>'
    '<pattern id="open" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="7" height="7" fill="#fbeadf"/><rect width="3" height="7" fill="#D55E00"/></pattern></defs>'
)


def draw(story: Story) -> str | None:
    """The SVG document; None if there is nothing to draw."""
    bands = bands_of(story)
    if not bands:
        return None
    facts, several = story.facts, len(story.passes) > 1
    title = f"{_line(facts.name, 60)} - {_line(facts.flow, 40)}: {_line(facts.state, 20)}"
    parts: list[str] = []
    y = TITLE
    for band in bands:
        if band.pause is not None:
            parts += _fold(band, y)
            y += FOLD
        drawn, height = _band(band, y, several)
        parts += drawn
        y += height
    legend, rows = _legend(bands)
    height = y + 20 + 20 * rows
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH:g}" height="{_n(height)}" '
            f'viewBox="0 0 {WIDTH:g} {_n(height)}" role="img" font-family="{FONT}">',
            f"<title>{escape(title)}</title>",
            f'<rect x="0.5" y="0.5" width="{WIDTH - 1:g}" height="{_n(height - 1)}" rx="8" fill="#ffffff" '
            'stroke="#d9d9d9"/>',
            _PATTERNS,
            _text(title, 18, 26, 14, INK, bold=True),
            *parts,
            f'<g transform="translate(18 {_n(y + 12)})">',
            *legend,
            "</g>",
            "</svg>",
        ]
    )


def _fold(band: Band, y: float) -> Iterable[str]:
    """The pause between two passes: a broken line of fixed size."""
    middle = y + FOLD / 2
    yield (
        f'<path d="M18 {_n(middle)}H{LABELS - 8:g}l4 -6l6 12l6 -12l4 6H{WIDTH - RIGHT:g}" fill="none" '
        'stroke="#8c8c8c" stroke-width="1.5"/>'
    )
    many = f", {band.left_out:,} passes" if band.left_out else ""
    said = f"{span(band.pause or 0.0)} in between{many}"
    width = 14 + 6.2 * len(said)
    x = (LABELS + WIDTH) / 2
    yield (
        f'<rect x="{_n(x - width / 2)}" y="{_n(middle - 9)}" width="{_n(width)}" height="18" rx="9" '
        'fill="#ffffff" stroke="#8c8c8c"/>'
    )
    yield _text(said, x, middle + 4, 11, SMALL, middle=True)


def _band(band: Band, top: float, several: bool) -> tuple[list[str], float]:
    """The parts of one pass, and their height."""
    y = top
    parts: list[str] = []
    if several:
        parts += _heading(band, y)
        y += 2 * HEADING - 4
    parts += _totals(band, y)
    y += TOTALS + AXIS
    bottom = y + LANE * len(band.lanes)
    parts += _stripes(band, y)
    parts += _axis(band, y, bottom)
    for place, lane in enumerate(band.lanes):
        parts += _lane(lane, y + LANE * place, band)
    if band.more:
        parts.append(_text(f"and {band.more:,} more task runs", 18, bottom + 16, 11, SMALL))
        bottom += 20
    return parts, bottom - top + 4


def _heading(band: Band, y: float) -> Iterable[str]:
    one = band.part.run_pass
    took = "" if one.seconds is None else f", {span(one.seconds)}"
    name = f"Pass {one.number}"
    yield _text(name, 18, y + 15, 13, INK, bold=True)
    said = f"{clock(one.began)} UTC{took}. Ended: {ended(one)}"
    yield _text(_line(said, HEADING_LENGTH), 28 + 7.6 * len(name), y + 15, 11, SMALL)
    yield _text(_line(f"Started by: {started_by(one.start)}", HEADING_LENGTH), 18, y + 32, 11, SMALL)


def _totals(band: Band, y: float) -> Iterable[str]:
    """The task runs of a pass by outcome, including those without a lane."""
    total = band.outcomes.total()
    words = f"{total:,} task run{'' if total == 1 else 's'}"
    yield _text(words, 18, y + 14, 12, INK, bold=True)
    x, room = LABELS, WIDTH - LABELS - RIGHT
    for outcome in _ORDER:
        count = band.outcomes[outcome]
        if not count:
            continue
        width = room * count / total
        fill, sign, name = LOOKS[outcome]
        tip = f"{count:,} {name}"
        yield (
            f'<rect x="{_n(x)}" y="{_n(y + 3)}" width="{_n(max(width, 1.0))}" height="14" fill="{fill}">'
            f"<title>{escape(tip)}</title></rect>"
        )
        said = f"{sign} {count:,}".strip()
        if width > 8 + 7 * len(said):
            yield _text(said, x + width / 2, y + 14, 11, _sign_ink(outcome), bold=True, middle=True)
        x += width


def _x(at: float, band: Band) -> float:
    whole = max(band.end - band.start, 1e-3)
    return LABELS + (at - band.start) / whole * (WIDTH - LABELS - RIGHT)


def _axis(band: Band, top: float, bottom: float) -> Iterable[str]:
    whole = max(band.end - band.start, 1e-3)
    step = nice_step(whole / 8)
    count = math.floor(whole / step + 1e-9)
    for number in range(count + 1):
        x = _x(band.start + number * step, band)
        yield f'<path d="M{_n(x)} {_n(top - 4)}V{_n(bottom)}" stroke="{GRID}"/>'
        yield _text(_moment(number * step, step), x, top - 8, 11, SMALL, middle=True)


def nice_step(least: float) -> float:
    """1, 2 or 5 times a power of ten of seconds; from a minute on, a step that a clock shows."""
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


def _stripes(band: Band, top: float) -> Iterable[str]:
    for place in range(1, len(band.lanes), 2):
        y = top + LANE * place
        yield f'<rect x="8" y="{_n(y)}" width="{WIDTH - 16:g}" height="{LANE:g}" fill="#f7f7f7"/>'


def _lane(lane: Lane, y: float, band: Band) -> Iterable[str]:
    label = f"circuit {lane.label}" if lane.circuit else lane.label
    yield f"<g><title>{escape(_line(label, 300))}</title>"
    shown = _text(_fitting(label), 18, y + 15, 12, INK, bold=lane.circuit)
    yield f"{shown}</g>"
    # A very short attempt is drawn on top of the wait after it.
    for bar in sorted(lane.bars, key=lambda bar: bar.look != "wait"):
        yield from _bar(bar, y + (LANE - BAR) / 2, band)


def _bar(bar: Bar, y: float, band: Band) -> Iterable[str]:
    fill, sign, _ = LOOKS[bar.look]
    x = _x(bar.start, band)
    width = max(_x(bar.end, band) - x, 3.0)
    yield (
        f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{BAR:g}" rx="2" fill="{fill}"'
        f"{_edge(bar.look)}><title>{escape(_line(bar.tip, 200))}</title></rect>"
    )
    if sign and width >= 13:
        yield _text(sign, x + width / 2, y + 10.5, 11, _sign_ink(bar.look), bold=True, middle=True)


def _edge(look: BarKind) -> str:
    edge = _EDGES.get(look)
    return f' stroke="{edge}"' if edge else ""


def _sign_ink(look: BarKind) -> str:
    return INK if look in _DARK_SIGNS else "#ffffff"


def _legend(bands: Iterable[Band]) -> tuple[list[str], int]:
    """The looks that occur, side by side, and the number of rows."""
    occurring: set[BarKind] = set()
    for band in bands:
        occurring |= {bar.look for lane in band.lanes for bar in lane.bars}
        occurring |= set(band.outcomes)
    made: list[str] = []
    x, row = 0.0, 0
    for look, (fill, sign, words) in LOOKS.items():
        if look not in occurring:
            continue
        width = 52 + 6.4 * len(words)
        if x and x + width > WIDTH - 36:
            x, row = 0.0, row + 1
        y = 20 * row
        made.append(
            f'<rect x="{_n(x)}" y="{y - 2:g}" width="22" height="{BAR:g}" rx="2" fill="{fill}"{_edge(look)}/>'
        )
        if sign:
            made.append(_text(sign, x + 11, y + 8.5, 11, _sign_ink(look), bold=True, middle=True))
        made.append(_text(words, x + 29, y + 9, 11, SMALL))
        x += width
    return made, row + 1


def _line(said: str, most: int) -> str:
    """One line without secrets. Characters that cannot be printed, as XML forbids some, become spaces."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in redact(said)).split())
    return line if len(line) <= most else line[: most - 1] + "…"


def _fitting(label: str) -> str:
    """The part of a label that fits; wide characters take more room."""
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
