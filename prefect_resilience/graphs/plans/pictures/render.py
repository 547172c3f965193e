"""A plan as SVG and as mermaid, before a run and after."""

from __future__ import annotations

import json
from collections.abc import Iterable

from prefect_resilience.graphs.plans.model import Node, Plan
from prefect_resilience.graphs.plans.pictures import svg
from prefect_resilience.graphs.plans.pictures.picture import (
    SIGNS,
    Arrow,
    Box,
    BoxStatus,
    Picture,
    one_line,
    picture_of,
)
from prefect_resilience.graphs.plans.pictures.svg import FAINT, INK, LOOKS, ROUTE, SMALL
from prefect_resilience.graphs.plans.result import PlanResult

# Mermaid is drawn by Prefect's V2 UI, GitHub and others.
#
# It rejects more than 500 arrows or 50,000 characters, so large plans are cut.

MOST_ARROWS = 450
MOST_CHARACTERS = 45_000

_NO_MARKUP = str.maketrans("<>&", "‹›＆")
"""Mermaid removes markup from a title and has no escapes for these characters there."""
_WIDEST = 320
_TITLE = "#808080"
"""Readable on the dark and on the light background of the UIs."""
_LONGEST_TITLE = 64


def text_of(picture: Picture) -> str:
    """The flowchart: boxes, arrows, then their styles."""
    names = {box.id: f"n{number}" for number, box in enumerate(picture.boxes)}
    lines = ["---", *_title(picture), "config:"]
    lines += ["  themeVariables:", f'    textColor: "{_TITLE}"']
    lines += ["  flowchart:", f"    wrappingWidth: {_WIDEST}", "---", "flowchart TD"]
    lines += [f"    {names[box.id]}{_box(box)}" for box in picture.boxes]
    if picture.note:
        lines.append(f'    note["{_safe(picture.note)}"]')
    lines += [f"    {names[arrow.source]} {_arrow(arrow)} {names[arrow.target]}" for arrow in picture.arrows]
    return "\n".join([*lines, *_looks(picture, names)]) + "\n"


def _box(box: Box) -> str:
    """The label in a rectangle; with round ends for a conditional node."""
    sign = SIGNS[box.status]
    head = f"{sign} {box.head}" if sign else box.head
    label = "<br/>".join(_safe(text) for text in (head, *box.lines))
    return f'(["{label}"])' if box.conditional else f'["{label}"]'


def _arrow(arrow: Arrow) -> str:
    line = "==>" if arrow.route and arrow.taken else "-.->" if arrow.route or arrow.taken is False else "-->"
    label = "<br/>".join(_safe(text) for text in arrow.labels)
    return f'{line}|"{label}"|' if label else line


def _looks(picture: Picture, names: dict[str, str]) -> Iterable[str]:
    used: dict[BoxStatus, list[str]] = {}
    for box in picture.boxes:
        used.setdefault(box.status, []).append(names[box.id])
    for status, members in used.items():
        colour, ground, border = LOOKS[status]
        dashes = ",stroke-dasharray:5 3" if status == "skipped" else ""
        ink = SMALL if status == "skipped" else INK
        look = f"fill:{ground},stroke:{colour},stroke-width:{border:g}px,color:{ink}{dashes}"
        yield f"    classDef {status} {look}"
        yield f"    class {','.join(members)} {status}"
    lines: dict[str, list[str]] = {}
    for number, arrow in enumerate(picture.arrows):
        lines.setdefault(_line_look(arrow), []).append(str(number))
    for look, numbers in lines.items():
        yield f"    linkStyle {','.join(numbers)} {look}"


def _line_look(arrow: Arrow) -> str:
    if arrow.taken is False:
        return f"stroke:{FAINT},stroke-width:1px,color:#767676"
    colour = ROUTE if arrow.route else SMALL
    width = "1.5px" if not arrow.taken else "4px" if arrow.route else "2.5px"
    return f"stroke:{colour},stroke-width:{width},color:{ROUTE if arrow.route else INK}"


def _safe(text: str) -> str:
    """A text in a label. Characters other than letters, digits, spaces and harmless ones become numbers."""
    return "".join(
        letter if letter.isalnum() or letter in _HARMLESS else f"#{ord(letter)};" for letter in text
    )


_HARMLESS = frozenset(" ,:;!?/()=+")


def _title(picture: Picture) -> Iterable[str]:
    """A short title: mermaid shrinks the whole picture to fit a long one."""
    whole = " - ".join(text for text in (picture.title, picture.verdict) if text)
    if len(whole) > _LONGEST_TITLE:
        whole = picture.verdict or one_line(picture.title, _LONGEST_TITLE)
    return [f"title: {json.dumps(whole.translate(_NO_MARKUP), ensure_ascii=False)}"] if whole else []


MOST_BOXES = 300
"""The most nodes that are drawn. The picture says how many were left out."""


def plan_to_svg(plan: Plan, result: PlanResult | None = None, *, added: Iterable[Node] = ()) -> str:
    """The plan as an SVG document, with the outcome if there is a result.

    The result may be of a run that is still running. `added` are the injected nodes.
    """
    return svg.draw(picture_of(plan, result, added=added, most_boxes=MOST_BOXES))


def plan_to_mermaid(plan: Plan, result: PlanResult | None = None, *, added: Iterable[Node] = ()) -> str:
    """The plan as a mermaid flowchart. Large plans are cut to mermaid's limits."""
    nodes = tuple(added)
    most = MOST_BOXES
    while True:
        picture = picture_of(plan, result, added=nodes, most_boxes=most, most_arrows=MOST_ARROWS)
        text = text_of(picture)
        if len(text) <= MOST_CHARACTERS or most <= 1:
            return text
        most = max(1, most * MOST_CHARACTERS // len(text) - 1)
