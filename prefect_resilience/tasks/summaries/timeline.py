"""The last pass of a flow run as one picture: the attempts and waits of its calls over time. One SVG. Pure.

The background is a white card, readable in dark and light themes, and the text is large enough for a phone.
The colours are those of Okabe and Ito; signs repeat their meaning.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from prefect_resilience.base.text import lasting, rect, svg, words
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.errors.taxonomy import bounded
from prefect_resilience.tasks.summaries.story import CallRow, Span, Story, clock

INK, SMALL, GRID = "#1a1a1a", "#4d4d4d", "#e3e3e3"
WIDTH, MARGIN = 560.0, 14.0
TOP, LANE, BAR = 62.0, 38.0, 15.0
"""Each lane has its name above its bars."""
MOST_LANES = 24
MOST_BARS = 500
LABEL_LENGTH = 66

LOOKS: dict[str, tuple[str, str, str]] = {
    "running": ("#1a1a1a", "…", "did not end"),
    "crashed": ("#882255", "!", "crashed"),
    "failed": ("#D55E00", "×", "failed"),
    "rejected": ("#CC79A7", "–", "rejected, not called"),
    "replaced": ("#E69F00", "≈", "fallback"),
    "replayed": ("#0072B2", "=", "replayed"),
    "ok": ("#009E73", "", "succeeded"),
    "wait": ("#d9d9d9", "", "waiting"),
}
"""Fill, sign, and the words in the legend."""
DARK_SIGNS = frozenset({"replaced"})


@dataclass(frozen=True, slots=True)
class Axis:
    """The time that the picture shows, from the left margin to the right one."""

    start: float
    end: float

    def place(self, at: float) -> float:
        share = (at - self.start) / max(self.end - self.start, 1e-3)
        return MARGIN + min(max(share, 0.0), 1.0) * (WIDTH - 2 * MARGIN)


def draw(story: Story, calls: Sequence[CallRow]) -> str | None:
    """The SVG document; None if there is nothing to draw."""
    part = story.passes[-1]
    lanes = [call for call in calls if call.spans and call.number == part.run_pass.number][:MOST_LANES]
    if not lanes:
        return None
    shown = [span for call in lanes for span in call.spans]
    start = min(part.run_pass.began, *(span.start for span in shown))
    axis = Axis(start, max(part.ended, *(span.end for span in shown)))
    bottom = TOP + LANE * len(lanes)
    drawn = [*_background(axis, bottom)]
    for place, call in enumerate(lanes):
        drawn += _lane(call.name, call.spans[-MOST_BARS // len(lanes) :], TOP + LANE * place, axis)
    legend, height = _legend({span.look for span in shown}, bottom + 14)
    title = f"{_line(story.name, 40)}: {_line(story.passes[-1].run_pass.end, 20)}"
    return svg(WIDTH, height, title, [words(title, MARGIN, 24, 16, INK, bold=True), *drawn, *legend])


def _background(axis: Axis, bottom: float) -> Iterable[str]:
    """The background, when the pass began, and how long it took."""
    width = WIDTH - 2 * MARGIN
    yield rect(MARGIN, TOP - 4, width, bottom - TOP + 6, fill="#fafafa", stroke=GRID)
    yield words(f"{clock(axis.start)} UTC", MARGIN, TOP - 8, 12, SMALL)
    yield words(lasting(axis.end - axis.start), WIDTH - MARGIN - 18, TOP - 8, 12, SMALL, middle=True)


def _lane(label: str, spans: Sequence[Span], y: float, axis: Axis) -> Iterable[str]:
    yield words(_line(label, LABEL_LENGTH), MARGIN + 2, y + 13, 13, INK)
    # A very short attempt is drawn on top of the wait after it.
    for span in sorted(spans, key=lambda span: span.look != "wait"):
        x = axis.place(span.start)
        yield from _bar(span.look, x, y + 18, max(axis.place(span.end) - x, 3.0))


def _bar(look: str, x: float, y: float, width: float) -> Iterable[str]:
    fill, sign, _ = LOOKS[look]
    yield rect(x, y, width, BAR, rx=2, fill=fill)
    if sign and width >= 13:
        ink = INK if look in DARK_SIGNS else "#ffffff"
        yield words(sign, x + width / 2, y + 12, 12, ink, bold=True, middle=True)


def _legend(looks: set[str], top: float) -> tuple[list[str], float]:
    """The looks that occur, three in a line, and the height of the picture with them."""
    drawn: list[str] = []
    y = top
    for place, look in enumerate(look for look in LOOKS if look in looks):
        x, y = MARGIN + place % 3 * (WIDTH / 3), top + place // 3 * 22
        drawn += [*_bar(look, x, y, 20), words(LOOKS[look][2], x + 26, y + 12, 13, SMALL)]
    return drawn, y + 30


def _line(words: str, most: int) -> str:
    """One line without secrets. Characters that cannot be printed, as XML forbids some, become spaces."""
    line = "".join(letter if letter.isprintable() else " " for letter in redact(words))
    return bounded(" ".join(line.split()), most)
