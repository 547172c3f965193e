"""A plan as a mermaid flowchart, which Prefect's V2 UI, GitHub and others draw."""

from __future__ import annotations

import json
from collections.abc import Iterator

from prefect_resilience.graphs.plans.model import Plan
from prefect_resilience.graphs.plans.pictures.picture import LOOKS, Arrow, Box, Picture, one_line, picture_of
from prefect_resilience.graphs.plans.result import PlanResult

MOST_CHARACTERS = 45_000
"""Mermaid rejects texts of more than 50,000 characters."""
_LONGEST_TITLE = 64
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
    names = {box.id: f"n{number}" for number, box in enumerate(picture.boxes)}
    title = " - ".join(filter(None, (picture.title, picture.verdict)))
    if len(title) > _LONGEST_TITLE:  # mermaid shrinks the whole picture to fit a long one
        title = picture.verdict or one_line(picture.title, _LONGEST_TITLE)
    if title:
        yield from ("---", f"title: {json.dumps(title.translate(_NO_MARKUP), ensure_ascii=False)}", "---")
    yield "flowchart TD"
    for box in picture.boxes:
        yield f"    {names[box.id]}{_box(box)}"
    if picture.note:
        yield f'    note["{_safe(picture.note)}"]'
    for arrow in picture.arrows:
        yield f"    {names[arrow.source]} {_arrow(arrow)} {names[arrow.target]}"
    for status, look in LOOKS.items():
        members = ",".join(names[box.id] for box in picture.boxes if box.status == status)
        if members:
            border = f"stroke:{look.colour},stroke-width:{look.border:g}px"
            yield f"    classDef {status} fill:{look.ground},{border},color:#1a1a1a"
            yield f"    class {members} {status}"


def _box(box: Box) -> str:
    """The label in a rectangle; with round ends for a conditional node."""
    head = f"{LOOKS[box.status].sign} {box.head}".strip()
    label = "<br/>".join(map(_safe, (head, *box.lines)))
    return f'(["{label}"])' if box.conditional else f'["{label}"]'


def _arrow(arrow: Arrow) -> str:
    line = "==>" if arrow.route and arrow.taken else "-.->" if arrow.route or arrow.taken is False else "-->"
    label = "<br/>".join(map(_safe, arrow.labels))
    return f'{line}|"{label}"|' if label else line


def _safe(text: str) -> str:
    """A text in a label. Characters other than letters, digits, spaces and harmless ones become numbers."""
    return "".join(
        letter if letter.isalnum() or letter in _HARMLESS else f"#{ord(letter)};" for letter in text
    )
