"""A flow run as one picture: the attempts and waits of its calls over time, in all passes. One SVG. Pure.

The background is a white card, readable in dark and light themes, and the text is large enough for a phone.
The time between two passes is left out. The colours are those of Okabe and Ito; signs repeat their meaning.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from prefect_resilience.base.text import FONT, element, lasting, rect, words
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.errors.taxonomy import bounded
from prefect_resilience.tasks.summaries.calls import WELL, CallRow, Span
from prefect_resilience.tasks.summaries.story import OPENED, PassSeen, Story, clock, state_after

INK, SMALL, GRID = "#1a1a1a", "#4d4d4d", "#e3e3e3"
WIDTH, MARGIN, GAP = 560.0, 14.0, 20.0
TOP, LANE, BAR = 62.0, 38.0, 15.0
"""Each lane has its name above its bars."""
MOST_LANES, MOST_CIRCUITS, MOST_PASSES = 24, 6, 6
MOST_BARS = 600
LABEL_LENGTH = 66
NARROW = 150
"""A segment below this width has no time of day."""

LOOKS: dict[str, tuple[str, str, str]] = {
    "running": ("#1a1a1a", "…", "did not end"),
    "crashed": ("#882255", "!", "crashed"),
    "failed": ("#D55E00", "×", "failed"),
    "rejected": ("#CC79A7", "–", "rejected, not called"),
    "replaced": ("#E69F00", "≈", "fallback"),
    "replayed": ("#0072B2", "=", "replayed"),
    "ok": ("#009E73", "", "succeeded"),
    "wait": ("#d9d9d9", "", "waiting"),
    "open": ("#F4B183", "", "circuit open"),
    "half_open": ("#F0E442", "", "circuit half-open"),
}
"""Fill, sign, and the words in the legend."""
DARK_SIGNS = frozenset({"replaced"})


@dataclass(frozen=True, slots=True)
class Segment:
    """A pass on the time axis: from `start` to `end`, drawn from `x` on with a width."""

    number: int
    start: float
    end: float
    x: float
    width: float

    def place(self, at: float) -> float:
        share = (at - self.start) / max(self.end - self.start, 1e-3)
        return self.x + min(max(share, 0.0), 1.0) * self.width


def draw(story: Story, calls: Sequence[CallRow]) -> str | None:
    """The SVG document; None if there is nothing to draw."""
    parts, several = story.passes[-MOST_PASSES:], len(story.passes) > 1
    shown = {part.run_pass.number for part in parts}
    tried = [call for call in calls if call.spans and call.number in shown]
    if not tried:
        return None
    # The calls with the most trouble, and some of those that went well.
    well = [call for call in tried if call.rank == WELL]
    trouble = [call for call in tried if call.rank != WELL][: MOST_LANES - min(len(well), MOST_LANES // 4)]
    lanes = [*trouble, *well[: MOST_LANES - len(trouble)]]
    segments = _segments(parts, lanes)
    rows = _circuit_rows(story, segments)[:MOST_CIRCUITS]
    rows += [(f"{call.name} (pass {call.number})" if several else call.name, call.spans) for call in lanes]
    bottom = TOP + LANE * len(rows)
    drawn = [shape for segment in segments for shape in _axis(segment, bottom, several=several)]
    for place, (label, spans) in enumerate(rows):
        drawn += _lane(label, spans[-MOST_BARS // len(rows) :], TOP + LANE * place, segments)
    if len(tried) > len(lanes):
        drawn.append(words(f"and {len(tried) - len(lanes):,} more calls", MARGIN, bottom + 16, 13, SMALL))
        bottom += 22
    legend, height = _legend({span.look for _, spans in rows for span in spans}, bottom + 14)
    title = f"{_line(story.name, 40)}: {_line(story.passes[-1].run_pass.end, 20)}"
    size = f'width="{WIDTH:g}" height="{height:g}" viewBox="0 0 {WIDTH:g} {height:g}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="{FONT}">',
            element("title", title),
            rect(0.5, 0.5, WIDTH - 1, height - 1, rx=8, fill="#ffffff", stroke="#d9d9d9"),
            words(title, MARGIN, 24, 16, INK, bold=True),
            *drawn,
            *legend,
            "</svg>",
        ]
    )


def _segments(parts: Sequence[PassSeen], lanes: Sequence[CallRow]) -> list[Segment]:
    """The passes side by side: half of the width in equal parts, half by their durations."""
    bounds: list[tuple[float, float]] = []
    for part in parts:
        spans = [span for call in lanes if call.number == part.run_pass.number for span in call.spans]
        start = min([part.run_pass.began, *(span.start for span in spans)])
        bounds.append((start, max([part.ended, start, *(span.end for span in spans)])))
    room = WIDTH - 2 * MARGIN - GAP * (len(parts) - 1)
    whole = sum(end - start for start, end in bounds) or 1.0
    segments: list[Segment] = []
    x = MARGIN
    for part, (start, end) in zip(parts, bounds, strict=True):
        width = room * (0.5 / len(parts) + 0.5 * (end - start) / whole)
        segments.append(Segment(part.run_pass.number, start, end, x, width))
        x += width + GAP
    return segments


def _axis(segment: Segment, bottom: float, *, several: bool) -> Iterable[str]:
    """The background of a pass in four equal parts, when it began, and how long it took."""
    x, width = segment.x, segment.width
    yield rect(x, TOP - 4, width, bottom - TOP + 6, fill="#fafafa", stroke=GRID)
    for quarter in range(1, 4):
        yield rect(x + width * quarter / 4, TOP - 4, 1, bottom - TOP + 6, fill=GRID)
    yield words(lasting(segment.end - segment.start), x + width - 18, TOP - 8, 12, SMALL, middle=True)
    heading = [f"Pass {segment.number}"] if several else []
    heading += [f"{clock(segment.start)} UTC"] if width > NARROW else []
    yield words(", ".join(heading), x, TOP - 22, 12, INK, bold=several)


def _lane(label: str, spans: Sequence[Span], y: float, segments: Sequence[Segment]) -> Iterable[str]:
    name = words(_line(label, LABEL_LENGTH), MARGIN + 2, y + 13, 13, INK, bold=label.startswith("circuit "))
    yield f"<g>{element('title', _line(label, 300))}{name}</g>"
    # A very short attempt is drawn on top of the wait after it.
    for span in sorted(spans, key=lambda span: span.look != "wait"):
        near = min(segments, key=lambda it: max(it.start - span.start, span.start - it.end, 0.0))
        x = near.place(span.start)
        width = max(near.place(span.end) - x, 3.0)
        tip = element("title", _line(span.tip, 200))
        yield f"<g>{tip}{''.join(_bar(span.look, x, y + 18, width))}</g>"


def _bar(look: str, x: float, y: float, width: float) -> Iterable[str]:
    fill, sign, _ = LOOKS[look]
    yield rect(x, y, width, BAR, rx=2, fill=fill)
    if sign and width >= 13:
        ink = INK if look in DARK_SIGNS else "#ffffff"
        yield words(sign, x + width / 2, y + 12, 12, ink, bold=True, middle=True)


def _circuit_rows(story: Story, segments: Sequence[Segment]) -> list[tuple[str, Sequence[Span]]]:
    """The times in which each circuit was open or half-open, within the passes."""
    rows: list[tuple[str, Sequence[Span]]] = []
    for name in dict.fromkeys(move.subject for move in story.moves):
        moves = [move for move in story.moves if move.subject == name]
        spans: list[Span] = []
        for move, until in zip(moves, [*(move.at for move in moves[1:]), math.inf], strict=True):
            state = state_after(move)
            look = "open" if state in OPENED else state
            for it in segments if look in LOOKS else ():
                start, end = max(move.at, it.start), min(until, it.end)
                if start < end:
                    spans.append(Span(look, start, end, f"{state.replace('_', ' ')}: {lasting(end - start)}"))
        rows += [(f"circuit {name}", spans)] if spans else []
    return rows


def _legend(looks: set[str], top: float) -> tuple[list[str], float]:
    """The looks that occur, side by side, and the height of the picture with them."""
    drawn: list[str] = []
    x, y = MARGIN, top
    for look, (_, _, name) in LOOKS.items():
        if look not in looks:
            continue
        width = 40 + 7.5 * len(name)
        if x + width > WIDTH - MARGIN:
            x, y = MARGIN, y + 22
        drawn += [*_bar(look, x, y, 20), words(name, x + 26, y + 12, 13, SMALL)]
        x += width
    return drawn, y + 30


def _line(words: str, most: int) -> str:
    """One line without secrets. Characters that cannot be printed, as XML forbids some, become spaces."""
    line = "".join(letter if letter.isprintable() else " " for letter in redact(words))
    return bounded(" ".join(line.split()), most)
