"""The picture of a plan: its boxes and arrows, and these as a mermaid flowchart and as an SVG document.

Prefect's V2 UI, GitHub and others draw mermaid. The SVG has no references, and any background may be behind
it: layers by the longest path, from top to bottom, with straight arrows behind the boxes. The conditions of
the routes to a node are at the top of its box. Colours are Okabe and Ito's, for colour-blind readers. Signs,
words and line styles repeat the meaning.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from graphlib import TopologicalSorter
from statistics import mean
from typing import Any, Literal, NamedTuple, cast
from unicodedata import east_asian_width

from prefect_resilience.base.text import element, lasting, number, printable, rect, svg, words
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.graphs.plans.model import Node, Plan
from prefect_resilience.graphs.plans.result import NodeResult, PlanResult
from prefect_resilience.graphs.plans.routes import in_order

BoxStatus = Literal["succeeded", "failed", "handled", "skipped", "waiting"]


class Look(NamedTuple):
    """The look of a box: its sign, its colours, the width of its border."""

    sign: str
    colour: str
    ground: str
    border: float


LOOKS: dict[BoxStatus, Look] = {
    "succeeded": Look("✓", "#009E73", "#e6f5f0", 2),
    "failed": Look("✗", "#D55E00", "#fbeadf", 3.5),
    "handled": Look("↷", "#E69F00", "#fdf4e1", 3.5),
    "skipped": Look("–", "#8c8c8c", "#f7f7f7", 1.2),
    "waiting": Look("", "#4d4d4d", "#ffffff", 1.4),
}

_LINE = 38
"""Characters of a line in a box or at an arrow."""
_TITLE = 64
MOST_ARROWS = 450
"""Mermaid rejects more than 500."""
MOST_CHARACTERS = 45_000
"""Mermaid rejects texts of more than 50,000 characters."""


class Box(NamedTuple):
    """A node. `lines` are in small print. `conditional`: it runs only if another node chooses it."""

    id: str
    head: str
    lines: tuple[str, ...]
    status: BoxStatus
    conditional: bool


class Arrow(NamedTuple):
    """A route or dependency. `taken` is None until it is known."""

    source: str
    target: str
    route: bool
    labels: tuple[str, ...]
    taken: bool | None


class Picture(NamedTuple):
    """The content to draw. `verdict` is empty before a run. `note` says what was left out."""

    title: str
    verdict: str
    note: str
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]


def one_line(text: str, most: int) -> str:
    """`text` without secrets on one line of at most `most` characters; a cut is shown by `…`."""
    line = printable(redact(text[: most * 8]))
    return line if len(line) <= most else line[: most - 1].rstrip() + "…"


def picture_of(plan: Plan, result: PlanResult | None = None, most_boxes: int = 300) -> Picture:
    """The picture of a plan, with the outcome if there is a result; of its first `most_boxes` nodes."""
    ends = result.nodes if result else {}
    nodes = {node.id: node for node in (*plan.tasks, *(result.added if result else ()))}
    drawn = {name: nodes[name] for name in list(nodes)[:most_boxes]}
    conditional = {target for node in nodes.values() for target in node.targets}
    conditional |= {node.id for node in nodes.values() if node.handles_error}
    boxes = [_box(node, ends.get(node.id), node.id in conditional) for node in drawn.values()]
    arrows = _arrows(drawn, ends)
    shown = sorted(arrows, key=lambda arrow: (not arrow.route, not arrow.taken))[:MOST_ARROWS]
    cuts = [
        f"{len(part):,} of {len(whole):,} {noun}"
        for part, whole, noun in ((boxes, nodes, "nodes"), (shown, arrows, "arrows between them"))
        if len(part) < len(whole)
    ]
    return Picture(
        title=one_line(plan.name or plan.intent, _TITLE),
        verdict=f"{'succeeded' if result.succeeded else 'failed'}: {counts_of(result)}" if result else "",
        note=f"Drawn: {', '.join(cuts)}" if cuts else "",
        boxes=tuple(boxes),
        arrows=tuple(shown),
    )


def counts_of(result: PlanResult) -> str:
    """How many nodes there are of each status: "3 succeeded, 1 skipped"."""
    counted = Counter(end.status for end in result.nodes.values())
    return ", ".join(f"{counted[status]:,} {status}" for status in LOOKS if counted[status]) or "no nodes"


def _box(node: Node, end: NodeResult | None, conditional: bool) -> Box:
    kind = node.type if node.type != node.id else ""
    rule = "" if node.trigger_rule == "all_settled" else node.trigger_rule
    marks = filter(None, (one_line(kind, _LINE), _fan_out(node, end), rule))
    lines = filter(None, (" · ".join(marks), *_ending(end)))
    return Box(node.id, one_line(node.id, _LINE), tuple(lines), end.status if end else "waiting", conditional)


def _fan_out(node: Node, end: NodeResult | None) -> str:
    """`×12`, or `×` before the number of branches is known."""
    if node.map is None:
        return ""
    items = cast("str | list[Any]", end.output if end and end.status == "succeeded" else node.map.over)
    return "×" if isinstance(items, str) else f"×{len(items):,}"


def _ending(end: NodeResult | None) -> list[str]:
    """The outcome in a few short lines."""
    if end is None:
        return []
    marks = [
        end.status if end.status != "succeeded" else "",
        f"{end.attempts} attempts" if end.attempts > 1 else "",
        "" if end.duration is None else lasting(end.duration),
    ]
    why = end.error.summary() if end.error else end.reason if end.status == "skipped" else ""
    return [" · ".join(filter(None, marks)), one_line(why, 2 * _LINE)]


def _arrows(nodes: Mapping[str, Node], ends: Mapping[str, NodeResult]) -> list[Arrow]:
    """Every route and dependency. Several between the same two nodes are one arrow."""
    routes: dict[tuple[str, str], list[str]] = {}
    for node in nodes.values():
        for target, label in _routes(node):
            routes.setdefault((node.id, target), []).append(one_line(label, _LINE))
        for router in node.handles_error:
            routes.setdefault((router, node.id), ["on error"])
    for source, end in ends.items():
        for target in end.routed_to:
            routes.setdefault((source, target), [])
    pairs = {(source, node.id): [""] for node in nodes.values() for source in node.depends_on} | routes
    return [
        Arrow(
            source,
            target,
            (source, target) in routes,
            tuple(dict.fromkeys(filter(None, labels)))[:3],
            _is_taken(ends.get(source), target, ends.get(target), (source, target) in routes),
        )
        for (source, target), labels in pairs.items()
        if source in nodes and target in nodes
    ]


def _routes(node: Node) -> Iterator[tuple[str, str]]:
    """The targets of a node, each with its condition in words."""
    condition = node.condition
    for target in node.on_success:
        yield target, "on success" if condition is None else condition.describe()
    for target in node.on_failure:
        yield target, "on error" if condition is None else "else"
    for way in in_order(node.transitions):
        yield way.to, f"{way.priority}: {'otherwise' if way.condition is None else way.condition.describe()}"


def _is_taken(source: NodeResult | None, target: str, end: NodeResult | None, route: bool) -> bool | None:
    """Whether a route was chosen, or a dependency provided a value."""
    if source is None or (end is None and not route):
        return None
    if route:
        return target in source.routed_to
    return source.status == "succeeded" and end is not None and end.status != "skipped"


# -- as mermaid

_NO_MARKUP = str.maketrans("<>&", "‹›＆")
"""Mermaid removes markup from a title and has no escapes for these characters there."""
_HARMLESS = frozenset(" ,:;!?/()=+")


def plan_to_mermaid(plan: Plan, result: PlanResult | None = None) -> str:
    """The plan as a mermaid flowchart. Large plans are cut to mermaid's limits."""
    most = 300
    while True:
        text = "\n".join(_lines(picture_of(plan, result, most))) + "\n"
        if len(text) <= MOST_CHARACTERS or most <= 1:
            return text
        most = max(1, most * MOST_CHARACTERS // len(text) - 1)


def _lines(picture: Picture) -> Iterator[str]:
    names = {box.id: f"n{n}" for n, box in enumerate(picture.boxes)}
    # Mermaid shrinks the whole picture to fit a long title.
    if title := picture.verdict or picture.title:
        yield from ("---", f"title: {json.dumps(title.translate(_NO_MARKUP), ensure_ascii=False)}", "---")
    yield "flowchart TD"
    for box in picture.boxes:
        label = "<br/>".join(map(_safe, (f"{LOOKS[box.status].sign} {box.head}".strip(), *box.lines)))
        shape = f'(["{label}"])' if box.conditional else f'["{label}"]'
        yield f"    {names[box.id]}{shape}"
    if picture.note:
        yield f'    note["{_safe(picture.note)}"]'
    for arrow in picture.arrows:
        yield f"    {names[arrow.source]} {_line_of(arrow)} {names[arrow.target]}"
    for status, look in LOOKS.items():
        members = ",".join(names[box.id] for box in picture.boxes if box.status == status)
        if members:
            border = f"stroke:{look.colour},stroke-width:{look.border:g}px"
            yield f"    classDef {status} fill:{look.ground},{border},color:#1a1a1a"
            yield f"    class {members} {status}"


def _line_of(arrow: Arrow) -> str:
    line = "==>" if arrow.route and arrow.taken else "-.->" if arrow.route or arrow.taken is False else "-->"
    label = "<br/>".join(map(_safe, arrow.labels))
    return f'{line}|"{label}"|' if label else line


def _safe(text: str) -> str:
    """A text in a label. Characters other than letters, digits, spaces and harmless ones become numbers."""
    return "".join(
        letter if letter.isalnum() or letter in _HARMLESS else f"#{ord(letter)};" for letter in text
    )


# -- as SVG

INK = "#1a1a1a"
SMALL = "#4d4d4d"
ROUTE = "#0072B2"
FAINT = "#767676"

_HEAD, _SMALL_PRINT = 14.0, 11.0
"""The sizes of the letters in a box."""
_ROW = 15.0
_MARGIN = 20.0

GAP = 26.0
"""The gap between boxes side by side."""
ROW_GAP = 48.0
WIDEST_ROW = 12
"""A layer with more boxes is split into several rows."""

Size = tuple[float, float]
Pair = tuple[str, str]
"""The source and the target of an arrow."""


class Place(NamedTuple):
    """The place of a box."""

    middle: float
    top: float
    bottom: float


def lay_out(sizes: Mapping[str, Size], arrows: Sequence[Pair]) -> dict[str, Place]:
    """The places of boxes of these sizes, by the longest path to each, centred at x = 0 from y = 0.

    The arrows must have no cycle.
    """
    before: dict[str, list[str]] = {name: [] for name in sizes}
    for source, target in arrows:
        before[target].append(source)
    layers: dict[str, int] = {}
    for name in TopologicalSorter(before).static_order():
        layers[name] = max((layers[source] + 1 for source in before[name]), default=0)
    places: dict[str, Place] = {}
    bottom = 0.0
    for layer in range(max(layers.values(), default=-1) + 1):
        row = [name for name in sizes if layers[name] == layer]
        row.sort(key=lambda name: mean([places[source].middle for source in before[name]] or [0.0]))
        for first in range(0, len(row), WIDEST_ROW):
            names = row[first : first + WIDEST_ROW]
            width = sum(sizes[name][0] for name in names) + GAP * (len(names) - 1)
            x, top = -width / 2, bottom + (ROW_GAP if places else 0.0)
            for name in names:
                places[name] = Place(x + sizes[name][0] / 2, top, top + sizes[name][1])
                x += sizes[name][0] + GAP
            bottom = max(places[name].bottom for name in names)
    return places


def plan_to_svg(plan: Plan, result: PlanResult | None = None) -> str:
    """The plan as an SVG document, with the outcome if there is a result, also of a run that goes on."""
    picture = picture_of(plan, result)
    labels = _labels(picture)
    sizes = {box.id: _box_size(box, labels[box.id]) for box in picture.boxes}
    places = lay_out(sizes, [(arrow.source, arrow.target) for arrow in picture.arrows])
    widest = max((2 * abs(place.middle) + sizes[name][0] for name, place in places.items()), default=0)
    header = [text for text in (picture.title, picture.verdict, picture.note) if text]
    top = _MARGIN + 24 * len(header)
    inner = max(widest, 240.0, *(text_width(text, _HEAD) for text in header))
    bottom = max((place.bottom for place in places.values()), default=0)
    width, height = inner + 2 * _MARGIN, top + bottom + _MARGIN
    parts = [
        words(text, _MARGIN, _MARGIN + 24 * row + 12, _HEAD, INK, bold=not row)
        for row, text in enumerate(header)
    ]
    parts.append(f'<g transform="translate({number(width / 2)} {number(top)})">')
    for arrow in sorted(picture.arrows, key=lambda arrow: bool(arrow.taken)):
        parts += _draw_arrow(arrow, places[arrow.source], places[arrow.target])
    for box in picture.boxes:
        parts += _draw_box(box, labels[box.id], places[box.id], sizes[box.id])
    return svg(width, height, " - ".join(header) or "plan", [*parts, "</g>"])


def text_width(text: str, size: float) -> float:
    """The width of a bold text, estimated for a wide sans-serif font."""
    wide = sum(east_asian_width(letter) in "WF" or ord(letter) > 0x2000 for letter in text)
    return (0.66 * len(text) + 0.34 * wide) * size


def _labels(picture: Picture) -> dict[str, list[str]]:
    """The conditions of the routes to each box; with their sources if there are several routes."""
    heads = {box.id: box.head for box in picture.boxes}
    routes = Counter(arrow.target for arrow in picture.arrows if arrow.labels)
    labels: dict[str, list[str]] = {name: [] for name in heads}
    for arrow in picture.arrows:
        start = f"{heads[arrow.source]}: " if routes[arrow.target] > 1 else ""
        labels[arrow.target] += [start + label for label in arrow.labels]
    return labels


def _box_size(box: Box, labels: Sequence[str]) -> Size:
    small = [*box.lines, *labels]
    widths = [text_width(f"✓ {box.head}", _HEAD), *(text_width(line, _SMALL_PRINT) for line in small)]
    return max(90.0, max(widths) + 22), 36.0 + _ROW * len(small)


def _draw_arrow(arrow: Arrow, source: Place, target: Place) -> Iterable[str]:
    dashes = "3 3" if arrow.taken is False else "7 4" if arrow.route and arrow.taken is None else None
    colour = FAINT if arrow.taken is False else ROUTE if arrow.route else SMALL
    width = 1.4 if not arrow.taken else 3.2 if arrow.route else 2.2
    x, y = target.middle, target.top
    path = f"M{number(source.middle)} {number(source.bottom)}L{number(x)} {number(y)}"
    yield element("path", d=path, stroke=colour, stroke_width=width, stroke_dasharray=dashes, fill="none")
    yield element("path", d=f"M{number(x - 5)} {number(y - 10)}h10l-5 9z", fill=SMALL)


def _draw_box(box: Box, labels: Sequence[str], place: Place, size: Size) -> Iterable[str]:
    look, (width, height), y = LOOKS[box.status], size, place.top
    yield f'<g class="node {box.status}">{element("title", box.head)}'
    yield rect(
        *(place.middle - width / 2, y, width, height),
        rx=16 if box.conditional else 3,
        fill=look.ground,
        stroke=look.colour,
        stroke_width=look.border,
    )
    for row, label in enumerate(labels):
        yield words(label, place.middle, y + 17 + _ROW * row, _SMALL_PRINT, ROUTE, middle=True)
    y += _ROW * len(labels)
    yield words(f"{look.sign} {box.head}".strip(), place.middle, y + 23, _HEAD, INK, bold=True, middle=True)
    for row, line in enumerate(box.lines):
        yield words(line, place.middle, y + 41 + _ROW * row, _SMALL_PRINT, SMALL, middle=True)
    yield "</g>"
