"""The layout of boxes and arrows: a layered drawing from top to bottom.

Each box is below all boxes with an arrow to it. An arrow and its label have a place of their own in every
row that they pass, so they never cross a box. Barycentres improve the order within a row. Isotonic
regression then moves each item as near to the middle of its neighbours as the order permits.
"""

from __future__ import annotations

from bisect import bisect, insort
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from itertools import pairwise

GAP = 26.0
"""The gap between boxes side by side."""
LANE = 14.0
"""The gap between an arrow and the item beside it."""
ROW_GAP = 34.0
LABEL_GAP = 22.0
WIDEST_ROW = 12
"""A layer with more boxes is split into several rows."""

_SWEEPS = 12
_PATIENCE = 3
_SHIFTS = 16


@dataclass(frozen=True, slots=True)
class Line:
    """An arrow to be laid out; `label` is the size of its label."""

    source: str
    target: str
    label: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Way:
    """The course of an arrow: the points at which it is vertical, and the middle of its label."""

    points: tuple[tuple[float, float], ...]
    label: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Layout:
    """`boxes` are the upper left corners; the drawing begins at (0, 0)."""

    width: float
    height: float
    boxes: Mapping[str, tuple[float, float]]
    ways: tuple[Way, ...]


@dataclass(slots=True, eq=False)
class _Item:
    """An item of a row: a box, the label of an arrow, or a passing arrow."""

    width: float
    height: float
    box: bool = False
    x: float = 0.0
    at: int = 0
    """Its place in the row."""
    above: list[_Item] = field(default_factory=list["_Item"])
    below: list[_Item] = field(default_factory=list["_Item"])
    row: int = 0
    first: int = 0
    """Its place before sorting, by the order of the boxes."""


def layered(sizes: Mapping[str, tuple[float, float]], lines: Sequence[Line]) -> Layout:
    """Lay out boxes of these sizes and these arrows, which must have no cycle."""
    rows_of = _row_numbers(sizes, lines)
    items = {name: _Item(width, height, box=True) for name, (width, height) in sizes.items()}
    rows: list[list[_Item]] = [[] for _ in range(max(rows_of.values(), default=-1) + 1)]
    for place, (name, item) in enumerate(items.items()):
        item.row, item.first = rows_of[name], place
        rows[item.row].append(item)
    degrees = Counter(name for line in lines for name in (line.source, line.target))
    courses: list[list[_Item]] = []
    for line in lines:
        quiet = min(line.target, line.source, key=lambda name: degrees[name])
        courses.append(_course(line, items, rows, items[quiet].first))
    _order(rows)
    _place(rows)
    bands = _bands(rows)
    left = min((item.x - item.width / 2 for row in rows for item in row), default=0.0)
    for row in rows:
        for item in row:
            item.x -= left
    width = max((item.x + item.width / 2 for row in rows for item in row), default=0.0)
    height = bands[-1].bottom if bands else 0.0
    boxes = {name: (item.x - item.width / 2, bands[item.row].top_of(item)) for name, item in items.items()}
    leave, enter = _ports(courses)
    ways = [
        _way(line, course, bands, (leave[number], enter[number]))
        for number, (line, course) in enumerate(zip(lines, courses, strict=True))
    ]
    return Layout(width, height, boxes, tuple(ways))


def _row_numbers(sizes: Mapping[str, tuple[float, float]], lines: Sequence[Line]) -> dict[str, int]:
    """A row for each box, below its sources, with rows for labels in between."""
    layers = _layers(sizes, lines)
    members: dict[int, list[str]] = {}
    for name, layer in layers.items():
        members.setdefault(layer, []).append(name)
    labelled = {line.source for line in lines if line.label is not None}
    rows: dict[str, int] = {}
    row = 0
    for layer in sorted(members):
        parts = -(-len(members[layer]) // WIDEST_ROW)
        for part in (members[layer][first::parts] for first in range(parts)):  # like bricks in a wall
            rows.update(dict.fromkeys(part, row))
            row += 2 if not labelled.isdisjoint(part) else 1
    return rows


def _layers(sizes: Mapping[str, tuple[float, float]], lines: Sequence[Line]) -> dict[str, int]:
    """The longest path to each box. A box without sources is just above its nearest target."""
    above: dict[str, list[str]] = {name: [] for name in sizes}
    below: dict[str, list[str]] = {name: [] for name in sizes}
    for line in lines:
        above[line.target].append(line.source)
        below[line.source].append(line.target)
    layers = dict.fromkeys(sizes, 0)
    for name in TopologicalSorter(above).static_order():
        layers[name] = max((layers[source] + 1 for source in above[name]), default=0)
    for name in sizes:
        if below[name] and not above[name]:
            layers[name] = min(layers[target] for target in below[name]) - 1
    return layers


def _course(line: Line, items: Mapping[str, _Item], rows: list[list[_Item]], first: int) -> list[_Item]:
    """The items that an arrow passes, with both ends. `first` is its place before sorting."""
    start, end = items[line.source], items[line.target]
    course = [start]
    for row in range(start.row + 1, end.row):
        width, height = line.label if line.label is not None and row == start.row + 1 else (0.0, 0.0)
        item = _Item(width, height, row=row, first=first)
        rows[row].append(item)
        course.append(item)
    course.append(end)
    for upper, lower in pairwise(course):
        upper.below.append(lower)
        lower.above.append(upper)
    return course


def _order(rows: list[list[_Item]]) -> None:
    """Sort each row by its neighbours' places, down and up. Keep the order with the fewest crossings."""
    for row in rows:
        row.sort(key=lambda item: item.first)
        _number(row)
    best, fewest, better = [list(row) for row in rows], _crossings(rows), 0
    for sweep in range(_SWEEPS):
        if not fewest or sweep > better + _PATIENCE:
            break
        down = sweep % 2 == 0
        for row in rows[1:] if down else rows[-2::-1]:
            row.sort(key=lambda item: _middle(item.above if down else item.below, item.at))
            _number(row)
        crossings = _crossings(rows)
        if crossings < fewest:
            best, fewest, better = [list(row) for row in rows], crossings, sweep
    for row, kept in zip(rows, best, strict=True):
        row[:] = kept
        _number(row)


def _number(row: list[_Item]) -> None:
    for place, item in enumerate(row):
        item.at = place


def _middle(neighbours: Sequence[_Item], otherwise: float) -> float:
    return sum(item.at for item in neighbours) / len(neighbours) if neighbours else otherwise


def _crossings(rows: list[list[_Item]]) -> int:
    """The number of crossings of arrows, row by row."""
    total = 0
    for upper in rows[:-1]:
        ends: list[int] = []
        for item in upper:
            for end in sorted(below.at for below in item.below):
                total += len(ends) - bisect(ends, end)
                insort(ends, end)
    return total


def _place(rows: list[list[_Item]]) -> None:
    """Move each item as near to the middle of its neighbours as the others permit."""
    for row in rows:
        _settle(row, [0.0] * len(row))
    for sweep in range(_SHIFTS):
        down = sweep % 2 == 0
        both = sweep >= _SHIFTS // 2
        for row in rows if down else reversed(rows):
            _settle(
                row,
                [
                    _wish(item, item.above if both or down else (), item.below if both or not down else ())
                    for item in row
                ],
            )


def _wish(item: _Item, above: Sequence[_Item], below: Sequence[_Item]) -> float:
    """The middle of the neighbours. Passing arrows weigh more, to keep arrows straight."""
    total = weights = 0.0
    for one in (*above, *below):
        weight = 1.0 if one.box else 3.0
        total += one.x * weight
        weights += weight
    return total / weights if weights else item.x


def _settle(row: list[_Item], wanted: Sequence[float]) -> None:
    """Set places in this order and with the gaps, at the least squared distance from the wanted ones."""
    offsets = [0.0]
    for left, right in pairwise(row):
        gap = GAP if left.box and right.box else LANE
        offsets.append(offsets[-1] + left.width / 2 + gap + right.width / 2)
    blocks: list[tuple[float, float, int]] = []  # sum of the wishes, sum of the weights, items
    for item, wish, offset in zip(row, wanted, offsets, strict=False):
        weight = 1.0 if item.box else 2.0
        block = ((wish - offset) * weight, weight, 1)
        while blocks and blocks[-1][0] / blocks[-1][1] > block[0] / block[1]:
            last = blocks.pop()
            block = (last[0] + block[0], last[1] + block[1], last[2] + block[2])
        blocks.append(block)
    numbered = iter(zip(row, offsets, strict=False))
    for total, weight, count in blocks:
        for _ in range(count):
            item, offset = next(numbered)
            item.x = total / weight + offset


@dataclass(frozen=True, slots=True)
class _Band:
    """The vertical extent of a row."""

    top: float
    bottom: float

    @property
    def middle(self) -> float:
        return (self.top + self.bottom) / 2

    def top_of(self, item: _Item) -> float:
        return self.middle - item.height / 2


def _bands(rows: list[list[_Item]]) -> list[_Band]:
    bands: list[_Band] = []
    top = 0.0
    for row in rows:
        labels = bool(bands) and not any(item.box for item in row)
        top += (LABEL_GAP if labels else ROW_GAP) if bands else 0.0
        bands.append(_Band(top, top + max(item.height for item in row)))
        top = bands[-1].bottom
    return bands


def _ports(courses: Sequence[Sequence[_Item]]) -> tuple[dict[int, float], dict[int, float]]:
    """The x at which each arrow leaves and enters its boxes, ordered from left to right."""
    leaving: dict[_Item, list[int]] = {}
    entering: dict[_Item, list[int]] = {}
    for number, course in enumerate(courses):
        leaving.setdefault(course[0], []).append(number)
        entering.setdefault(course[-1], []).append(number)
    return _spread(leaving, courses, 1), _spread(entering, courses, -2)


def _spread(
    by_box: Mapping[_Item, list[int]], courses: Sequence[Sequence[_Item]], next_to: int
) -> dict[int, float]:
    ports: dict[int, float] = {}
    for box, numbers in by_box.items():
        numbers.sort(key=lambda number: courses[number][next_to].x)
        step = min(22.0, box.width * 0.7 / max(1, len(numbers) - 1))
        for place, number in enumerate(numbers):
            ports[number] = box.x + (place - (len(numbers) - 1) / 2) * step
    return ports


def _way(line: Line, course: Sequence[_Item], bands: Sequence[_Band], ports: tuple[float, float]) -> Way:
    """The course: vertical in every row, slanted between rows."""
    start, *passed, end = course
    leave, enter = ports
    points = [(leave, bands[start.row].top_of(start) + start.height), (leave, bands[start.row].bottom)]
    for item in passed:
        points += [(item.x, bands[item.row].top), (item.x, bands[item.row].bottom)]
    points += [(enter, bands[end.row].top), (enter, bands[end.row].top_of(end))]
    label = None if line.label is None else (passed[0].x, bands[passed[0].row].middle)
    return Way(tuple(points), label)
