"""The layout of boxes and arrows: layers by the longest path, from top to bottom, with straight arrows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from graphlib import TopologicalSorter
from itertools import pairwise
from statistics import mean
from typing import NamedTuple

GAP = 26.0
"""The gap between boxes side by side."""
ROW_GAP = 48.0
PORT_GAP = 14.0
"""The gap between the ends of arrows into the same box."""
MOST_SHIFT = 40.0
"""The greatest distance of such an end from the middle of the box."""
WIDEST_ROW = 12
"""A layer with more boxes is split into several rows."""

Pair = tuple[str, str]
"""The source and the target of an arrow."""


class Layout(NamedTuple):
    """`boxes` are the upper left corners, `ways` the points of each arrow.

    The drawing is centred at x = 0 and begins at y = 0.
    """

    width: float
    height: float
    boxes: dict[str, tuple[float, float]]
    ways: dict[Pair, list[tuple[float, float]]]


class Place(NamedTuple):
    """The place of a box, or of an arrow that passes a row."""

    middle: float
    top: float
    bottom: float


def lay_out(sizes: Mapping[str, tuple[float, float]], arrows: Sequence[Pair]) -> Layout:
    """Lay out boxes of these sizes and these arrows, which must have no cycle."""
    rows = _rows(sizes, arrows)
    courses = _courses(rows, arrows)
    before: dict[str, list[str]] = {}
    for course in courses:
        for source, target in pairwise(course):
            before.setdefault(target, []).append(source)
    places: dict[str, Place] = {}
    bottom = widest = 0.0
    for row in rows:
        row.sort(key=lambda name: mean([places[source].middle for source in before.get(name, ())] or [0.0]))
        widths = [sizes[name][0] if name in sizes else PORT_GAP for name in row]
        x = -(sum(widths) + GAP * (len(row) - 1)) / 2
        widest = max(widest, -2 * x)
        top = bottom + (ROW_GAP if places else 0.0)
        bottom = top + max(sizes[name][1] for name in row if name in sizes)
        for name, width in zip(row, widths, strict=True):
            end = top + sizes[name][1] if name in sizes else bottom
            places[name] = Place(x + width / 2, top, end)
            x += width + GAP
    boxes = {name: (places[name].middle - width / 2, places[name].top) for name, (width, _) in sizes.items()}
    return Layout(widest, bottom, boxes, _ways(courses, places))


def _rows(sizes: Mapping[str, tuple[float, float]], arrows: Sequence[Pair]) -> list[list[str]]:
    """The boxes by the longest path to each."""
    above: dict[str, list[str]] = {name: [] for name in sizes}
    for source, target in arrows:
        above[target].append(source)
    layers: dict[str, int] = {}
    for name in TopologicalSorter(above).static_order():
        layers[name] = max((layers[source] + 1 for source in above[name]), default=0)
    rows: list[list[str]] = [[] for _ in range(max(layers.values(), default=-1) + 1)]
    for name in sizes:
        rows[layers[name]].append(name)
    return [row[first : first + WIDEST_ROW] for row in rows for first in range(0, len(row), WIDEST_ROW)]


def _courses(rows: list[list[str]], arrows: Sequence[Pair]) -> list[list[str]]:
    """The course of each arrow: its boxes, and the places between, which are added to the rows."""
    row_of = {name: number for number, row in enumerate(rows) for name in row}
    courses: list[list[str]] = []
    for source, target in arrows:
        between = range(row_of[source] + 1, row_of[target])
        stops = {number: f"{source}\0{target}\0{number}" for number in between}
        for number, stop in stops.items():
            rows[number].append(stop)
        courses.append([source, *stops.values(), target])
    return courses


def _ways(courses: Sequence[list[str]], places: Mapping[str, Place]) -> dict[Pair, list[tuple[float, float]]]:
    """The points of each arrow: straight from row to row, with an end of its own at its target."""
    entering: dict[str, list[list[str]]] = {}
    for course in courses:
        entering.setdefault(course[-1], []).append(course)
    ways: dict[Pair, list[tuple[float, float]]] = {}
    for target, arrows in entering.items():
        arrows.sort(key=lambda course: places[course[-2]].middle)
        step = min(PORT_GAP, 2 * MOST_SHIFT / len(arrows))
        port = places[target].middle - step * (len(arrows) - 1) / 2
        for number, (source, *stops, _) in enumerate(arrows):
            points = [(places[source].middle, places[source].bottom)]
            for middle, top, bottom in map(places.__getitem__, stops):
                points += [(middle, top), (middle, bottom)]
            ways[source, target] = [*points, (port + number * step, places[target].top)]
    return ways
