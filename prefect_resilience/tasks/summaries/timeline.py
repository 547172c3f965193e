"""A flow run as one picture: the attempts and waits of its calls over time, in all passes. One SVG. Pure.

The background is a white card, readable in dark and light themes, and the text is large enough for a phone.
The time between two passes is left out. The colours are those of Okabe and Ito; signs repeat their meaning.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from unicodedata import east_asian_width

from prefect_resilience.base.text import FONT, element, rect, words
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.tasks.summaries.calls import WELL, CallRow, Span
from prefect_resilience.tasks.summaries.story import (
    OPENED,
    CircuitSeen,
    PassSeen,
    Story,
    clock,
    span_text,
    state_after,
)

INK, SMALL, GRID = "#1a1a1a", "#4d4d4d", "#e3e3e3"
WIDTH, MARGIN, GAP = 560.0, 14.0, 20.0
TOP, LANE, BAR = 62.0, 38.0, 15.0
"""Each lane has its name above its bars."""
MOST_LANES, MOST_CIRCUITS, MOST_PASSES = 24, 6, 6
MOST_BARS = 600
LABEL_LENGTH = 62.0

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
    "unknown": ("#ffffff", "?", "end unknown"),
}
"""Fill, sign, and the words in the legend."""
DARK_SIGNS = frozenset({"replaced", "unknown"})


@dataclass(frozen=True, slots=True)
class Segment:
    """A pass on the time axis: from `start` to `end`, drawn from `x` on with a width."""

    part: PassSeen
    start: float
    end: float
    x: float
    width: float

    def place(self, at: float) -> float:
        share = (at - self.start) / max(self.end - self.start, 1e-3)
        return self.x + min(max(share, 0.0), 1.0) * self.width


def draw(story: Story, calls: Sequence[CallRow]) -> str | None:
    """The SVG document; None if there is nothing to draw."""
    parts = story.passes
    if len(parts) > MOST_PASSES:
        parts = (parts[0], *parts[-(MOST_PASSES - 1) :])
    shown = {part.run_pass.number for part in parts}
    tried = [call for call in calls if call.spans and call.number in shown]
    lanes = _choose(tried)
    if not lanes:
        return None
    segments = _segments(parts, lanes)
    circuits = [(one, spans) for one in story.circuits if (spans := _openings(one, segments))]
    rows = [(f"circuit {one.name}", spans) for one, spans in circuits[:MOST_CIRCUITS]]
    rows += [(_label(call, len(story.passes) > 1), list(call.spans)) for call in lanes]
    bottom = TOP + LANE * len(rows)
    share = MOST_BARS // len(rows)
    drawn = [*_axis(segments, bottom)]
    for place, (label, spans) in enumerate(rows):
        drawn += _lane(label, spans[-share:], TOP + LANE * place, segments)
    if len(tried) > len(lanes):
        drawn.append(words(f"and {len(tried) - len(lanes):,} more calls", MARGIN, bottom + 16, 13, SMALL))
        bottom += 22
    looks = {span.look for _, spans in rows for span in spans}
    legend, height = _legend(looks, bottom + 14)
    title = f"{_line(story.facts.name, 40)}: {_line(story.facts.state, 20)}"
    return _document(title, height, [*drawn, *legend])


def _document(title: str, height: float, drawn: Iterable[str]) -> str:
    size = f'width="{WIDTH:g}" height="{height:g}" viewBox="0 0 {WIDTH:g} {height:g}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="{FONT}">',
            element("title", title),
            rect(0.5, 0.5, WIDTH - 1, height - 1, rx=8, fill="#ffffff", stroke="#d9d9d9"),
            words(title, MARGIN, 24, 16, INK, bold=True),
            *drawn,
            "</svg>",
        ]
    )


def _choose(calls: Sequence[CallRow]) -> list[CallRow]:
    """The calls with the most trouble, and some of those that went well."""
    well = [call for call in calls if call.rank == WELL]
    trouble = [call for call in calls if call.rank != WELL]
    kept = trouble[: max(MOST_LANES - min(len(well), MOST_LANES // 4), 0)]
    return [*kept, *well[: MOST_LANES - len(kept)]]


def _label(call: CallRow, several: bool) -> str:
    return f"{call.name} (pass {call.number})" if several else call.name


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
        segments.append(Segment(part, start, end, x, width))
        x += width + GAP
    return segments


def _axis(segments: Sequence[Segment], bottom: float) -> Iterable[str]:
    several = len(segments) > 1
    for segment in segments:
        x, width = segment.x, segment.width
        yield rect(x, TOP - 4, width, bottom - TOP + 6, fill="#fafafa", stroke=GRID)
        took = segment.end - segment.start
        step = nice_step(took * 70 / width)
        for number in range(1, math.floor(took / step + 1e-9) + 1):
            at = segment.place(segment.start + number * step)
            yield rect(at, TOP - 4, 1, bottom - TOP + 6, fill=GRID)
            if at < x + width - 4 or not several:
                yield words(moment_text(number * step, step), at, TOP - 8, 12, SMALL, middle=True)
        heading = f"Pass {segment.part.run_pass.number}" if several else f"{clock(segment.start)} UTC"
        if several and width > 150:
            heading += f", {clock(segment.start)} UTC"
        yield words(heading, x, TOP - 22, 12, INK, bold=several)


def nice_step(least: float) -> float:
    """1, 2 or 5 times a power of ten of seconds; from a minute on, a step that a clock shows."""
    if least > 30:
        steps = (60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400)
        return next((float(step) for step in steps if step >= least), math.ceil(least / 86_400) * 86_400.0)
    power = 10.0 ** math.floor(math.log10(max(least, 1e-3)))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * (1 - 1e-9))


def moment_text(seconds: float, step: float) -> str:
    if step >= 3_600:
        return f"{seconds / 3_600:g} h"
    return f"{seconds / 60:g} min" if step >= 60 else f"{round(seconds, 3):g} s"


def _lane(label: str, spans: Sequence[Span], y: float, segments: Sequence[Segment]) -> Iterable[str]:
    name = words(fit(label), MARGIN + 2, y + 13, 13, INK, bold=label.startswith("circuit "))
    yield f"<g>{element('title', _line(label, 300))}{name}</g>"
    # A very short attempt is drawn on top of the wait after it.
    for span in sorted(spans, key=lambda span: span.look != "wait"):
        nearest = min(segments, key=lambda one: max(one.start - span.start, span.start - one.end, 0.0))
        yield from _bar(span, nearest, y + 18)


def _bar(span: Span, segment: Segment, y: float) -> Iterable[str]:
    fill, sign, _ = LOOKS[span.look]
    x = segment.place(span.start)
    width = max(segment.place(span.end) - x, 3.0)
    shape = rect(x, y, width, BAR, rx=2, fill=fill, stroke="#8c8c8c" if span.look == "unknown" else None)
    yield f"<g>{element('title', _line(span.tip, 200))}{shape}</g>"
    if sign and width >= 13:
        ink = INK if span.look in DARK_SIGNS else "#ffffff"
        yield words(sign, x + width / 2, y + 12, 12, ink, bold=True, middle=True)


def _openings(circuit: CircuitSeen, segments: Sequence[Segment]) -> list[Span]:
    """The times in which a circuit was open or half-open, within the passes."""
    spans: list[Span] = []
    for place, move in enumerate(circuit.moves):
        state = state_after(move)
        look = "open" if state in OPENED else state
        after = circuit.moves[place + 1].at if place + 1 < len(circuit.moves) else math.inf
        if look not in ("open", "half_open"):
            continue
        tip = state.replace("_", " ")
        if after == math.inf and not _holds(look, circuit.now):
            now = "its store is unavailable" if circuit.now is None else f"now it is {circuit.now}"
            look, tip = "unknown", f"{tip} at first; when it changed is unknown: {now}"
        for one in segments:
            start, end = max(move.at, one.start), min(after, one.end)
            if start < end:
                spans.append(Span(look, start, end, f"{tip}: {span_text(end - start)}"))
    return spans


def _holds(look: str, now: str | None) -> bool:
    """Whether the circuit's state in the store agrees with its last known change."""
    return now == "half_open" or (look == "open" and now in OPENED)


def _legend(looks: Iterable[str], top: float) -> tuple[list[str], float]:
    """The looks that occur, side by side, and the height of the picture with them."""
    drawn: list[str] = []
    x, y = MARGIN, top
    for look in [look for look in LOOKS if look in set(looks)]:
        fill, sign, name = LOOKS[look]
        width = 40 + 7.5 * len(name)
        if x + width > WIDTH - MARGIN:
            x, y = MARGIN, y + 22
        drawn.append(rect(x, y, 20, BAR, rx=2, fill=fill, stroke="#8c8c8c" if look == "unknown" else None))
        if sign:
            ink = INK if look in DARK_SIGNS else "#ffffff"
            drawn.append(words(sign, x + 10, y + 12, 12, ink, bold=True, middle=True))
        drawn.append(words(name, x + 26, y + 12, 13, SMALL))
        x += width
    return drawn, y + 30


def _line(said: str, most: int) -> str:
    """One line without secrets. Characters that cannot be printed, as XML forbids some, become spaces."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in redact(said)).split())
    return line if len(line) <= most else line[: most - 1] + "…"


def fit(label: str) -> str:
    """The part of a label that fits; wide characters take more room."""
    line = _line(label, 300)
    room = LABEL_LENGTH
    for place, letter in enumerate(line):
        wide = east_asian_width(letter) in "WF"
        room -= 1.8 if wide else 1.3 if letter.isupper() or letter in "mwMW" else 1
        if room < 1 and place + 1 < len(line):
            return line[:place] + "…"
    return line
