"""A plan as a picture, before a run and after: what may lead where, and which way it went."""

from __future__ import annotations

from collections.abc import Iterable

from prefect_resilience.graphs.plans.model import Node, Plan
from prefect_resilience.graphs.plans.pictures import mermaid, svg
from prefect_resilience.graphs.plans.pictures.picture import picture_of
from prefect_resilience.graphs.plans.result import PlanResult

MOST_BOXES = 300
"""Nodes that are drawn; the picture says how many were left out."""


def plan_to_svg(plan: Plan, result: PlanResult | None = None, *, added: Iterable[Node] = ()) -> str:
    """The plan as an SVG document, for a file or the data URI of an image; with what became of it.

    A result may be of a run that is still going on. `added` are the nodes that were injected, to show what
    they depended on.
    """
    return svg.draw(picture_of(plan, result, added=added, most_boxes=MOST_BOXES))


def plan_to_mermaid(plan: Plan, result: PlanResult | None = None, *, added: Iterable[Node] = ()) -> str:
    """The plan as a mermaid flowchart; with what became of it. Of large plans as much as mermaid takes."""
    nodes = tuple(added)
    most = MOST_BOXES
    while True:
        picture = picture_of(plan, result, added=nodes, most_boxes=most, most_arrows=mermaid.MOST_ARROWS)
        text = mermaid.text_of(picture)
        if len(text) <= mermaid.MOST_CHARACTERS or most <= 1:
            return text
        most = max(1, most * mermaid.MOST_CHARACTERS // len(text) - 1)
