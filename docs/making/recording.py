"""docs/pictures/demo.svg: what `make demo` prints, recorded with its times, as an animated SVG.

python -m docs.making.recording --write     run the demo, and write the picture

The picture is SVG and CSS alone: no script, and nothing to load. It loops. Without animations, and where the
reader prefers reduced motion, it shows the last screen.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from rich.ansi import AnsiDecoder
from rich.style import Style
from rich.text import Text

ROOT = Path(__file__).parents[2]
PATH = ROOT / "docs" / "pictures" / "demo.svg"
TITLE = "make demo: retries, a circuit and a fallback, as the terminal shows them"
LAST_LINE = "The primary received 26 requests"
PROMPT = "\x1b[1;32m$\x1b[0m \x1b[1mmake demo\x1b[0m"

COLUMNS, ROWS = 102, 31
CHARACTER, LINE, SIZE = 8.0, 19.0, 13.3
MARGIN, BAR = 18.0, 34.0
LONGEST_WAIT, SHORTEST_WAIT, LAST_SCREEN = 0.8, 0.08, 5.0
"""Seconds: waits between lines are cut to the first, lines at one instant follow at the second, the last
screen stays for the third."""

PAPER, TITLE_BAR, INK, DIM = "#111827", "#1f2937", "#e5e7eb", "#9ca3af"
COLOURS = {"red": "#f87171", "green": "#4ade80", "yellow": "#facc15", "cyan": "#22d3ee"}
NUMBERS = {1: "red", 2: "green", 3: "yellow", 6: "cyan"}


WORDS = re.compile(r"\S+(?: \S+)*")


class Printed(NamedTuple):
    """A line of the terminal, and when it was printed in seconds since the start."""

    at: float
    text: Text


def record() -> list[Printed]:
    """Run the demo as `make demo` does, and note when it prints each line. Raises SystemExit if it fails."""
    with TemporaryDirectory(prefix="recording-") as home:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        environment |= {
            "PREFECT_HOME": home,
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PYTHONUNBUFFERED": "1",
            "FORCE_COLOR": "1",
            "TERM": "xterm-256color",
            "COLUMNS": str(COLUMNS),
        }
        command = [sys.executable, "-m", "flows.quickstart"]
        started = time.monotonic()
        demo = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        assert demo.stdout is not None
        lines = [(time.monotonic() - started, line.rstrip("\n")) for line in demo.stdout]
        if demo.wait():
            raise SystemExit(f"the demo ended with exit code {demo.returncode}")
    decoder = AnsiDecoder()
    return [Printed(at, decoder.decode_line(line)) for at, line in [(0.0, PROMPT), *lines]]


def until_the_summary_ends(lines: Sequence[Printed]) -> list[Printed]:
    """The lines up to the table of all calls and the sentence below it, which are the last screen.

    Raises SystemExit if a busy machine delayed calls, so that the circuit opened after more requests.
    """
    ends = [number for number, line in enumerate(lines) if LAST_LINE in line.text.plain]
    if not ends:
        raise SystemExit(f"the demo did not print {LAST_LINE!r}: run it again on an idle machine")
    return list(lines[: ends[0] + 1])


def shortened(lines: Sequence[Printed]) -> list[Printed]:
    """The same lines with short waits. A block that is printed at once, such as a table, stays one step."""
    now, found, before = 0.0, list[Printed](), 0.0
    for line in lines:
        wait = line.at - before
        if found and wait > 0.005:
            now += min(max(wait, SHORTEST_WAIT), LONGEST_WAIT)
        found.append(Printed(now, line.text))
        before = line.at
    return found


def draw(lines: Sequence[Printed]) -> str:
    """The animated SVG of these lines."""
    steps = [(at, len(list(group))) for at, group in groupby(line.at for line in lines)]
    seconds = steps[-1][0] + LAST_SCREEN
    width, height = COLUMNS * CHARACTER + 2 * MARGIN, ROWS * LINE + BAR + 2 * MARGIN
    texts = [part for number, line in enumerate(lines) for part in _line(number, line.text)]
    colours = "".join(f".{name}{{fill:{colour}}}" for name, colour in COLOURS.items())
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
            f'height="{height:g}" role="img">',
            f"<title>{escape(TITLE)}</title>",
            "<style>",
            f"text{{font:{SIZE}px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;"
            f"fill:{INK};white-space:pre}}",
            f"{colours}.dim{{fill:{DIM}}}.bold{{font-weight:bold}}",
            *_animation(steps, len(lines), seconds),
            "</style>",
            f'<rect width="{width:g}" height="{height:g}" rx="10" fill="{PAPER}"/>',
            f'<path d="M0 {BAR:g}V10a10 10 0 0 1 10 -10H{width - 10:g}a10 10 0 0 1 10 10V{BAR:g}z" '
            f'fill="{TITLE_BAR}"/>',
            *(
                f'<circle cx="{22 + 20 * number}" cy="{BAR / 2:g}" r="6" fill="{colour}"/>'
                for number, colour in enumerate(("#f87171", "#facc15", "#4ade80"))
            ),
            f'<text class="dim" x="{width / 2:g}" y="{BAR / 2 + 4.5:g}" text-anchor="middle">'
            "make demo</text>",
            f'<svg y="{BAR + MARGIN:g}" width="{width:g}" height="{ROWS * LINE:g}">',
            f'<g class="scroll" transform="translate(0 {-_scrolled(len(lines)):g})">',
            *texts,
            f'<rect class="cover" y="{len(lines) * LINE:g}" width="100%" height="{len(lines) * LINE:g}" '
            f'fill="{PAPER}"/>',
            "</g>",
            "</svg>",
            "</svg>",
        ]
    )


def _scrolled(lines: int) -> float:
    """How far the terminal has scrolled when it has printed so many lines, in pixels."""
    return max(lines - ROWS, 0) * LINE


def _animation(steps: Sequence[tuple[float, int]], lines: int, seconds: float) -> Iterator[str]:
    """Two stepwise animations: a cover uncovers the lines, and the screen scrolls up.

    They begin with the last screen: the first frames of a run are an empty terminal.
    """
    shown, cover, scroll = 0, list[str](), list[str]()
    for at, more in steps:
        shown += more
        moment = f"{100 * at / seconds:.2f}".rstrip("0").rstrip(".") + "%"
        cover.append(f"{moment}{{transform:translateY({(shown - lines) * LINE:g}px)}}")
        scroll.append(f"{moment}{{transform:translateY({-_scrolled(shown):g}px)}}")
    yield f"@keyframes cover{{{''.join(cover)}}}"
    yield f"@keyframes scroll{{{''.join(_changes(scroll))}}}"
    for name in ("cover", "scroll"):
        yield f".{name}{{animation:{name} {seconds:.2f}s step-end {LAST_SCREEN - seconds:.2f}s infinite}}"
    yield "@media (prefers-reduced-motion:reduce){.cover,.scroll{animation:none}}"


def _changes(frames: Sequence[str]) -> Iterator[str]:
    """The frames that differ from the one before."""
    before = ""
    for frame in frames:
        if (body := frame.partition("{")[2]) != before:
            yield frame
        before = body


def _line(number: int, text: Text) -> Iterator[str]:
    """The pieces of a line: each has its place and its width, so that columns stay columns in every font."""
    y = number * LINE + LINE - 5
    for start, piece, style in _pieces(text):
        names = _class(style)
        attributes = f' class="{names}"' if names else ""
        x, length = MARGIN + start * CHARACTER, len(piece) * CHARACTER
        yield (
            f'<text{attributes} x="{x:g}" y="{y:g}" textLength="{length:g}" lengthAdjust="spacingAndGlyphs">'
            f"{escape(piece, quote=False)}</text>"
        )


def _pieces(text: Text) -> Iterator[tuple[int, str, Style]]:
    """Column, characters and style of each piece; two spaces or another style begin a new one."""
    line = text.plain.rstrip()[:COLUMNS]
    styles = [Style.null()] * len(line)
    for span in text.spans:
        style = span.style if isinstance(span.style, Style) else Style.parse(span.style)
        for place in range(span.start, min(span.end, len(line))):
            styles[place] = styles[place] + style
    for style, places in groupby(range(len(line)), key=styles.__getitem__):
        first, *others = places
        run = line[first : first + 1 + len(others)]
        yield from ((first + found.start(), found[0], style) for found in WORDS.finditer(run))


def _class(style: Style) -> str:
    names = [name for name, wanted in (("bold", style.bold), ("dim", style.dim)) if wanted]
    if style.color is not None and style.color.number in NUMBERS:
        names.append(NUMBERS[style.color.number])
    return " ".join(names)


def main() -> None:
    if "--write" not in sys.argv[1:]:
        raise SystemExit("python -m docs.making.recording --write runs the demo and writes the picture")
    lines = shortened(until_the_summary_ends(record()))
    PATH.write_text(draw(lines) + "\n", encoding="utf-8")
    print(f"{PATH.relative_to(ROOT)}: {len(lines)} lines, {lines[-1].at + LAST_SCREEN:.0f} s")


if __name__ == "__main__":
    main()
