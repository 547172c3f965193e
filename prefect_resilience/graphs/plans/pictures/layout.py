"""The layout of boxes and arrows: layers by the longest path, from top to bottom, with straight arrows.

The labels of the arrows into a box are above it, one below the other, so that nothing covers a label.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from graphlib import TopologicalSorter
from itertools import pairwise
from statistics import mean
from typing import NamedTuple

GAP = 26.0
"""The gap between boxes side by side."""
ROW_GAP = 40.0
PORT_GAP = 14.0
"""The gap between the ends of arrows into the same box."""
HEAD = 12.0
"""The room for the heads of arrows below their labels."""
MOST_SHIFT = 40.0
"""The greatest distance of such an end from the middle of the box."""
WIDEST_ROW = 12
"""A layer with more boxes is split into several rows."""


class Line(NamedTuple):
    """An arrow to be laid out; `label` is the size of its label."""

    source: str
    target: str
    label: tuple[float, float] = (0.0, 0.0)


class Way(NamedTuple):
    """The course of an arrow, and the middle of its label."""

    points: tuple[tuple[float, float], ...]
    label: tuple[float, float]


class Layout(NamedTuple):
    """`boxes` are the upper left corners; the drawing is centred at x = 0 and begins at y = 0."""

    width: float
    height: float
    boxes: dict[str, tuple[float, float]]
    ways: list[Way]


class Place(NamedTuple):
    """The place of a box, or of an arrow that passes a row. `above`: where the room for labels begins."""

    middle: float
    above: float
    top: float
    bottom: float


def lay_out(sizes: Mapping[str, tuple[float, float]], lines: Sequence[Line]) -> Layout:
    """Lay out boxes of these sizes and these arrows, which must have no cycle."""
    rows = _rows(sizes, lines)
    courses = _courses(rows, lines)
    entering: dict[str, list[Line]] = {name: [] for name in sizes}
    before: dict[str, list[str]] = {}
    for line, course in courses.items():
        entering[line.target].append(line)
        for source, target in pairwise(course):
            before.setdefault(target, []).append(source)
    places: dict[str, Place] = {}
    bottom = widest = 0.0
    for row in rows:
        row.sort(key=lambda name: mean([places[source].middle for source in before.get(name, ())] or [0.0]))
        widths = [_column_width(sizes.get(name), entering.get(name, ())) for name in row]
        x = -(sum(widths) + GAP * (len(row) - 1)) / 2
        widest = max(widest, -2 * x)
        labels = max(sum(line.label[1] for line in entering.get(name, ())) for name in row)
        above = bottom + (ROW_GAP if places else 0.0)
        top = above + labels + (HEAD if labels else 0.0)
        bottom = top + max(sizes[name][1] for name in row if name in sizes)
        for name, width in zip(row, widths, strict=True):
            end = top + sizes[name][1] if name in sizes else bottom
            places[name] = Place(x + width / 2, above, top, end)
            x += width + GAP
    boxes = {name: (places[name].middle - width / 2, places[name].top) for name, (width, _) in sizes.items()}
    ways: dict[Line, Way] = {}
    for arrows in entering.values():
        arrows.sort(key=lambda line: places[courses[line][-2]].middle)
        ways |= _ways([(line, [places[stop] for stop in courses[line]]) for line in arrows])
    return Layout(widest, bottom, boxes, [ways[line] for line in lines])


def _rows(sizes: Mapping[str, tuple[float, float]], lines: Sequence[Line]) -> list[list[str]]:
    """The boxes by the longest path to each."""
    above: dict[str, list[str]] = {name: [] for name in sizes}
    for line in lines:
        above[line.target].append(line.source)
    layers: dict[str, int] = {}
    for name in TopologicalSorter(above).static_order():
        layers[name] = max((layers[source] + 1 for source in above[name]), default=0)
    rows: list[list[str]] = [[] for _ in range(max(layers.values(), default=-1) + 1)]
    for name in sizes:
        rows[layers[name]].append(name)
    return [row[first : first + WIDEST_ROW] for row in rows for first in range(0, len(row), WIDEST_ROW)]


def _courses(rows: list[list[str]], lines: Sequence[Line]) -> dict[Line, list[str]]:
    """The course of each arrow: its boxes, and the places between, which are added to the rows."""
    row_of = {name: number for number, row in enumerate(rows) for name in row}
    courses: dict[Line, list[str]] = {}
    for line in lines:
        between = range(row_of[line.source] + 1, row_of[line.target])
        stops = {number: f"{line.source}\0{line.target}\0{number}" for number in between}
        for number, stop in stops.items():
            rows[number].append(stop)
        courses[line] = [line.source, *stops.values(), line.target]
    return courses


def _column_width(size: tuple[float, float] | None, entering: Sequence[Line]) -> float:
    """The width of a box with the labels above it, or of an arrow that passes."""
    if size is None:
        return PORT_GAP
    labels = max((line.label[0] for line in entering), default=0.0)
    return max(size[0], labels + 2 * min(PORT_GAP * len(entering), MOST_SHIFT))


def _ways(arrows: Sequence[tuple[Line, list[Place]]]) -> Iterator[tuple[Line, Way]]:
    """The ways of arrows into the same box: straight from row to row."""
    step = min(PORT_GAP, 2 * MOST_SHIFT / max(len(arrows), 1))
    shift, down = -step * (len(arrows) - 1) / 2, 0.0
    for line, (start, *stops, end) in arrows:
        points = [(start.middle, start.bottom)]
        for stop in stops:
            points += [(stop.middle, stop.above), (stop.middle, stop.bottom)]
        port = end.middle + shift
        middle = (port, end.above + down + line.label[1] / 2)
        yield line, Way((*points, (port, end.above), (port, end.top)), middle)
        shift, down = shift + step, down + line.label[1]
