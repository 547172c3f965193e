"""The drawn pictures of the documentation, as SVG: `python -m docs.making.pictures --write`.

Curves and plans come from the code itself; boxes and arrows are placed by hand. A test compares the files.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

from prefect_resilience import Backoff, Plan

DOCS = Path(__file__).parents[1]
FOLDER = DOCS / "pictures"
INK, PAPER, LINE = "#1f2933", "#ffffff", "#7b8794"
BLUE, GREEN, RED, YELLOW, GREY = "#d6e8f7", "#d9f0e3", "#f9dcd2", "#fbf0c9", "#eef1f4"
Point = tuple[float, float]


class Picture:
    """Boxes, arrows and texts; coordinates in pixels from the upper left corner."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" role="img" font-family="system-ui, sans-serif" font-size="14">',
            f"<title>{escape(title)}</title>",
            '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            f'orient="auto-start-reverse"><path d="M0 0L10 5L0 10z" fill="{LINE}"/></marker></defs>',
            f'<rect width="{width}" height="{height}" fill="{PAPER}"/>',
        ]

    def text(
        self, at: Point, words: str, size: int = 14, anchor: str = "middle", weight: str = "normal"
    ) -> None:
        for number, line in enumerate(words.split("\n")):
            y = at[1] + number * (size + 4)
            self.parts.append(
                f'<text x="{at[0]:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" '
                f'font-weight="{weight}" fill="{INK}">{escape(line)}</text>'
            )

    def box(self, at: Point, size: Point, fill: str, words: str = "", small: str = "") -> None:
        (x, y), (w, h) = at, size
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="8" fill="{fill}" stroke="{LINE}"/>'
        )
        middle = y + h / 2 + 5 - (9 if small else 0)
        if words:
            self.text((x + w / 2, middle), words, weight="bold")
        if small:
            self.text((x + w / 2, middle + 18), small, size=12)

    def arrow(
        self, path: Sequence[Point], label: str = "", at: Point | None = None, anchor: str = "middle"
    ) -> None:
        points = " ".join(f"{x:g},{y:g}" for x, y in path)
        self.parts.append(
            f'<polyline points="{points}" fill="none" stroke="{LINE}" stroke-width="1.6" '
            'marker-end="url(#tip)"/>'
        )
        if label and at:
            self.text(at, label, size=12, anchor=anchor)

    def curve(self, points: Sequence[Point], colour: str) -> None:
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2.5"/>')

    def __str__(self) -> str:
        return "\n".join([*self.parts, "</svg>"]) + "\n"


def guards() -> str:
    picture = Picture(720, 330, "The order of the guards")
    rings = [
        ("fallback", "another result when all attempts failed", YELLOW),
        ("retry", "retry or give up, and the delay", BLUE),
        ("circuit", "make or reject the call", RED),
        ("limits", "concurrent calls, calls per second", GREY),
        ("timeout", "the deadline of one attempt", GREEN),
    ]
    for number, (name, about, fill) in enumerate(rings):
        x, y = 10 + 18 * number, 10 + 46 * number
        picture.box((x, y), (700 - 36 * number, 310 - 56 * number), fill)
        picture.text((x + 14, y + 27), name, weight="bold", anchor="start")
        picture.text((x + 110, y + 27), about, size=13, anchor="start")
    picture.box((270, 240), (180, 36), PAPER, "your function")
    return str(picture)


def backoff() -> str:
    picture = Picture(770, 300, "Delays in seconds before each retry")
    curves = [
        ("constant(4)", Backoff.constant(4), "#7b8794"),
        ("linear(4)", Backoff.linear(4, maximum=60), "#0072b2"),
        ("exponential(1, maximum=60)", Backoff.exponential(1, maximum=60), "#d55e00"),
        ("decorrelated(1, maximum=60)", Backoff.decorrelated(1, maximum=60), "#009e73"),
    ]
    left, bottom, wide, high, tries, most = 60.0, 250.0, 420.0, 220.0, 8, 60.0
    picture.arrow([(left, bottom), (left + wide + 15, bottom)], "retry", (left + wide / 2, bottom + 36))
    picture.arrow([(left, bottom), (left, 15)], "seconds", (left + 8, 18), anchor="start")
    for seconds in (0, 20, 40, 60):
        picture.text((left - 10, bottom - seconds / most * high + 5), str(seconds), size=12, anchor="end")
    for n in range(tries):
        picture.text((left + n * wide / (tries - 1), bottom + 18), str(n + 1), size=12)
    for number, (name, schedule, colour) in enumerate(curves):
        points, previous = [], None
        for n in range(tries):
            previous = schedule.delay(n, previous=previous)
            points.append((left + n * wide / (tries - 1), bottom - previous / most * high))
        picture.curve(points, colour)
        y = 50.0 + 24 * number
        picture.curve([(510, y), (540, y)], colour)
        picture.text((548, y + 5), name, size=12, anchor="start")
    return str(picture)


def circuit() -> str:
    picture = Picture(720, 330, "The states of a circuit")
    picture.box((30, 40), (160, 64), GREEN, "closed", "calls are made")
    picture.box((530, 40), (160, 64), RED, "open", "calls are rejected")
    picture.box((280, 180), (160, 64), YELLOW, "half-open", "a probe is made")
    picture.arrow([(190, 62), (528, 62)], "5 consecutive failures, or half of the window", (360, 54))
    picture.arrow([(610, 104), (610, 212), (442, 212)], "open period elapsed", (545, 204))
    picture.arrow([(280, 212), (110, 212), (110, 106)], "2 probes succeed", (190, 204))
    picture.arrow([(400, 180), (400, 86), (528, 86)], "2 of 3 probes fail", (408, 140), anchor="start")
    picture.box((30, 262), (160, 50), GREY, "disabled", "calls are not counted")
    picture.box((530, 262), (160, 50), GREY, "forced open", "calls are rejected")
    picture.text((360, 282), "an operator, for the whole fleet:", size=12)
    picture.text((360, 300), "open, close, disable, reset", size=12, weight="bold")
    picture.arrow([(270, 290), (192, 290)])
    picture.arrow([(450, 290), (528, 290)])
    return str(picture)


def errors() -> str:
    picture = Picture(760, 240, "From an error to its handling")
    picture.box((10, 90), (140, 56), RED, "error", "exception, response")
    picture.box((200, 90), (150, 56), GREY, "your rules", "of task and process")
    picture.box((400, 90), (150, 56), GREY, "built-in rules", "status, headers, names")
    picture.arrow([(150, 118), (198, 118)])
    picture.arrow([(350, 118), (398, 118)], "no opinion", (375, 84))
    outcomes = [
        ("retry", "retry or give up", BLUE),
        ("circuit", "counted or not", YELLOW),
        ("fallback, handler", "for this error or not", GREEN),
    ]
    for number, (name, about, fill) in enumerate(outcomes):
        y = 10.0 + 78 * number
        picture.box((600, y), (150, 56), fill, name, about)
        picture.arrow([(550, 118), (575, 118), (575, y + 28), (598, y + 28)])
    picture.text((475, 175), "one of 20 categories,\none of 4 kinds", size=12)
    return str(picture)


def fallbacks() -> str:
    picture = Picture(760, 190, "The steps of a fallback chain, and the name of the final state")
    steps = [
        ("the task", "all attempts", "Completed", BLUE),
        ("second_provider", "transient errors", "Fallback", GREEN),
        ("from_the_archive", "degraded", "Degraded", YELLOW),
        ("a constant", "degraded", "Degraded", YELLOW),
    ]
    for number, (name, about, state, fill) in enumerate(steps):
        x = 10.0 + 160 * number
        picture.box((x, 20), (140, 56), fill, name, about)
        picture.arrow([(x + 70, 76), (x + 70, 128)], "succeeds", (x + 76, 108), anchor="start")
        picture.text((x + 70, 150), state, weight="bold")
        picture.arrow([(x + 140, 48), (x + 158, 48)])
    picture.box((650, 20), (100, 56), RED, "error")
    picture.arrow([(700, 76), (700, 128)])
    picture.text((700, 150), "Failed", weight="bold")
    return str(picture)


def routing() -> str:
    picture = Picture(760, 200, "A flow with an error handler and a branch, as its task runs")
    picture.box((10, 70), (130, 56), BLUE, "look_up")
    picture.box((200, 70), (170, 56), GREY, "on_error", "Skipped, or Handled")
    picture.box((430, 70), (130, 56), GREY, "route", "Routed")
    picture.box((620, 20), (130, 56), GREEN, "report")
    picture.box((620, 124), (130, 56), YELLOW, "manual_review")
    picture.arrow([(140, 98), (198, 98)])
    picture.arrow([(370, 98), (428, 98)], "value", (400, 90))
    picture.arrow([(560, 98), (590, 98), (590, 48), (618, 48)], "confidence >= 0.9", (585, 40), anchor="end")
    picture.arrow([(560, 98), (590, 98), (590, 152), (618, 152)], "otherwise", (585, 166), anchor="end")
    picture.text((285, 150), "runs search_texts\nif look_up failed", size=12)
    return str(picture)


def stores() -> str:
    picture = Picture(760, 230, "A fleet and its store")
    callers = [
        ("worker, pool east", "tasks and flows"),
        ("worker, pool west", "tasks and flows"),
        ("terminal", "operator"),
    ]
    for number, (name, about) in enumerate(callers):
        y = 10.0 + 74 * number
        picture.box((10, y), (170, 56), BLUE, name, about)
        picture.arrow([(180, y + 28), (250, y + 28), (250, 102), (298, 102)])
    picture.box((300, 20), (200, 164), GREEN)
    picture.text((400, 48), "one store", weight="bold")
    picture.text((400, 78), "key, version, JSON\n\nload, swap, delete, scan\none clock for all", size=12)
    picture.box((560, 10), (190, 200), GREY)
    picture.text((655, 38), "contents", weight="bold")
    picture.text((655, 66), "circuits\neffects and batches\nrecoveries\ndead letters\nerror budgets", size=13)
    picture.arrow([(558, 102), (502, 102)])
    return str(picture)


def letter() -> str:
    picture = Picture(720, 230, "The statuses of a dead letter")
    picture.box((20, 30), (150, 56), RED, "finally failed", "all attempts used")
    picture.box((230, 30), (130, 56), YELLOW, "waiting")
    picture.box((410, 30), (150, 56), BLUE, "replaying", "claimed by one process")
    picture.box((590, 30), (115, 56), GREEN, "replayed")
    picture.box((420, 150), (130, 56), GREY, "in doubt")
    picture.arrow([(170, 58), (228, 58)], "stored", (200, 50))
    picture.arrow([(360, 48), (408, 48)], "replay", (385, 40))
    picture.arrow([(410, 74), (362, 74)], "failed", (385, 92))
    picture.arrow([(560, 58), (588, 58)])
    picture.box((20, 140), (150, 56), GREEN, "settled", "its run made the call")
    picture.arrow([(250, 88), (250, 125), (95, 125), (95, 138)], "succeeds later", (172, 118))
    picture.arrow([(485, 86), (485, 148)], "cut off", (494, 122), anchor="start")
    picture.arrow(
        [(420, 178), (295, 178), (295, 88)], "with an effect, or by --force", (410, 200), anchor="end"
    )
    return str(picture)


def call() -> str:
    """The path of a call, for ARCHITECTURE.md."""
    picture = Picture(880, 560, "The path of a call from @resilient_task to the store and back")
    steps = [
        (
            "@resilient_task",
            "tasks/edge/task.py, calls/edge/call_options.py",
            "checks the options, makes a Guard, wraps the function",
            BLUE,
        ),
        ("Prefect's engine", "runs the wrapped function once for each attempt", "", GREY),
        (
            "one attempt",
            "calls/attempt.py: a generator that yields what it needs",
            "driven by base/drive.py, sync or async",
            YELLOW,
        ),
        (
            "effect",
            "durable/effects/claim.py",
            "replays a finished effect, or records intent",
            GREEN,
        ),
        ("circuit", "guards/circuits/breaker.py", "makes or rejects the call, counts outcomes", GREEN),
        ("limits and timeout", "guards/limits/, guards/timeouts/", "a free slot, a rate, a deadline", GREEN),
        ("your function", "", "", PAPER),
    ]
    for number, (name, where, about, fill) in enumerate(steps):
        y = 20.0 + 77 * number
        picture.box((20, y), (190, 52), fill, name)
        picture.text((225, y + 22), where, size=12, anchor="start")
        picture.text((225, y + 40), about, size=12, anchor="start")
        if number + 1 < len(steps):
            picture.arrow([(100, y + 52), (100, y + 76)])
            picture.arrow([(130, y + 77), (130, y + 54)])
    picture.box((650, 250), (210, 130), BLUE)
    picture.text((755, 280), "the store", weight="bold")
    picture.text((755, 304), "versioned JSON documents,\ncompare-and-swap", size=12)
    picture.text((755, 350), "SQLite, PostgreSQL,\nRedis, memory", size=12)
    picture.arrow([(505, 277), (648, 277)], "for every effect", (574, 268))
    picture.arrow([(505, 354), (648, 354)], "for a circuit, rarely", (574, 346))
    picture.box((620, 20), (240, 180), GREY)
    picture.text((740, 46), "after the attempt", weight="bold")
    picture.text(
        (740, 72),
        "errors/ classifies the error.\nguards/retries/: retry or give up.\n"
        "guards/fallbacks.py: fallbacks.\nAll failed: a dead letter.\ntelemetry/ sends events, metrics.\n"
        "The state's name shows the result.",
        size=12,
    )
    picture.arrow([(545, 178), (618, 178)])
    picture.arrow([(619, 123), (530, 123)], "retry", (574, 115))
    return str(picture)


def rooms() -> str:
    """The eleven rooms, for ARCHITECTURE.md. Each room uses only the rooms below it."""
    picture = Picture(760, 500, "The rooms of prefect_resilience. Each room uses only the rooms below it.")
    floors = [
        (
            [("operations", "cli, dashboard, reports, installation"), ("testing", "helpers for your tests")],
            YELLOW,
        ),
        ([("graphs", "conditions, routing, plans, agents")], YELLOW),
        ([("tasks", "resilient Prefect tasks and flows, summaries, blocks")], BLUE),
        ([("calls", "one guarded call, without Prefect")], GREEN),
        ([("durable", "effects, batches, sagas, dead letters")], RED),
        ([("telemetry", "events, metrics, notes")], GREY),
        ([("guards", "retries, circuits, timeouts, limits, fallbacks, outputs, budgets")], GREEN),
        ([("stores", "versioned documents, compare-and-swap")], RED),
        ([("errors", "categories, classification, secrets"), ("base", "policies, drivers, names")], GREY),
    ]
    for number, (names, fill) in enumerate(floors):
        y, wide = 14.0 + 53 * number, (690.0 - 10 * (len(names) - 1)) / len(names)
        for place, (name, about) in enumerate(names):
            picture.box((54 + place * (wide + 10), y), (wide, 45), fill, name, about)
    picture.arrow([(28, 20), (28, 480)])
    return str(picture)


def triage() -> str:
    """The plan of docs/howto/write_a_plan.md, drawn by the package."""
    page = (DOCS / "howto" / "write_a_plan.md").read_text(encoding="utf-8")
    found = re.search(r"^`triage\.yaml`:\n\n```yaml\n(.*?)^```$", page, re.M | re.S)
    assert found is not None
    return Plan.from_text(found[1]).to_svg()


PICTURES: dict[str, Callable[[], str]] = {
    "guards": guards,
    "backoff": backoff,
    "circuit": circuit,
    "errors": errors,
    "fallbacks": fallbacks,
    "routing": routing,
    "stores": stores,
    "letter": letter,
    "call": call,
    "rooms": rooms,
    "triage": triage,
}


def stale() -> list[str]:
    """The pictures that are missing or out of date."""
    return [name for name, draw in PICTURES.items() if _there(name) != draw()]


def _there(name: str) -> str | None:
    path = FOLDER / f"{name}.svg"
    return path.read_text(encoding="utf-8") if path.exists() else None


def main() -> None:
    if "--write" in sys.argv[1:]:
        FOLDER.mkdir(exist_ok=True)
        for name, draw in PICTURES.items():
            (FOLDER / f"{name}.svg").write_text(draw(), encoding="utf-8")
    elif names := stale():
        raise SystemExit(f"out of date: {', '.join(names)}: python -m docs.making.pictures --write")


if __name__ == "__main__":
    main()
