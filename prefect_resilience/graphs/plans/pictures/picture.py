"""The content of a picture of a plan: boxes, arrows, a title, a verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Literal, NamedTuple, cast

from prefect_resilience.base.text import lasting
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.graphs.plans.model import Node, Plan
from prefect_resilience.graphs.plans.node_states import leads
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
"""Characters of a line in a box or at an arrow; the whole text is in the tooltip."""
_TOOLTIP = 600
MOST_ARROWS = 450
"""Mermaid rejects more than 500."""


class Box(NamedTuple):
    """A node. `lines` are in small print. `conditional`: it runs only if another node chooses it."""

    id: str
    head: str
    lines: tuple[str, ...]
    status: BoxStatus
    conditional: bool
    tooltip: str


class Arrow(NamedTuple):
    """A route or dependency. `taken` is None until it is known."""

    source: str
    target: str
    route: bool
    labels: tuple[str, ...]
    taken: bool | None
    tooltip: str


class Picture(NamedTuple):
    """The content to draw. `verdict` is empty before a run. `note` says what was left out."""

    title: str
    verdict: str
    note: str
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]


def one_line(text: str, most: int) -> str:
    """`text` without secrets on one line of at most `most` characters; a cut is shown by `…`."""
    line = " ".join(redact(text[: most * 8]).split())
    line = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in line)
    return line if len(line) <= most else line[: most - 1].rstrip() + "…"


def picture_of(plan: Plan, result: PlanResult | None = None, most_boxes: int = 300) -> Picture:
    """The picture of a plan, with the outcome if there is a result.

    Nodes that only the result has are shown without dependencies. With more than `most_boxes` nodes, the
    failed ones are drawn, then those at the beginning of the plan.
    """
    ends = result.nodes if result else {}
    nodes = {node.id: node for node in plan.tasks}
    for node in result.added if result else ():
        nodes.setdefault(node.id, node)
    nodes |= {name: Node(id=name, type=name) for name in ends if name not in nodes}
    planned = {node.id for node in plan.tasks}
    failed = [name for name in nodes if name in ends and ends[name].status in ("failed", "handled")]
    drawn = set(list(dict.fromkeys([*failed, *nodes]))[:most_boxes])
    conditional = {name for node in nodes.values() for name in leads(node)}
    conditional |= {node.id for node in nodes.values() if node.handles_error}
    boxes = [
        _box(node, ends.get(node.id), node.id in conditional, node.id not in planned)
        for node in nodes.values()
        if node.id in drawn
    ]
    arrows = _arrows({name: node for name, node in nodes.items() if name in drawn}, ends)
    shown = sorted(arrows, key=lambda arrow: (not arrow.route, not arrow.taken))[:MOST_ARROWS]
    notes: list[str] = []
    if len(boxes) < len(nodes):
        part = f"{len(boxes):,} of {len(nodes):,} nodes are drawn"
        notes.append(f"{part}: those that failed, then the first of the others.")
    if len(shown) < len(arrows):
        notes.append(f"{len(shown):,} of {len(arrows):,} arrows between them are drawn.")
    return Picture(
        title=one_line(plan.name or plan.intent, 90),
        verdict=_verdict(result, len(nodes)) if result else "",
        note=" ".join(notes),
        boxes=tuple(boxes),
        arrows=tuple(shown),
    )


def _verdict(result: PlanResult, nodes: int) -> str:
    counts = counts_of(result)
    if len(result.nodes) < nodes:
        counts.append(f"{nodes - len(result.nodes):,} not run")
    spans = [
        (end.started_at.timestamp(), end.duration or 0) for end in result.nodes.values() if end.started_at
    ]
    took = ""
    if spans:
        last = max(start + duration for start, duration in spans)
        took = f" in {lasting(last - min(spans)[0])}"
    return f"{'succeeded' if result.succeeded else 'failed'}{took}: {', '.join(counts)}"


def counts_of(result: PlanResult) -> list[str]:
    """How many nodes there are of each status: "3 succeeded"."""
    counted = Counter(end.status for end in result.nodes.values())
    order = ("succeeded", "handled", "failed", "skipped")
    return [f"{counted[status]:,} {status}" for status in order if counted[status]]


def _box(node: Node, end: NodeResult | None, conditional: bool, added: bool) -> Box:
    kind = node.type if node.type != node.id else ""
    rule = "" if node.trigger_rule == "all_settled" else node.trigger_rule
    marks = [one_line(kind, _LINE), _fan_out(node, end), rule, "added while it ran" if added else ""]
    lines = [" · ".join(filter(None, marks)), *_ending(end)]
    about = [f"{node.id} ({kind})" if kind else node.id, node.description]
    about += [end.status, end.reason, end.error.message if end.error else ""] if end else []
    return Box(
        id=node.id,
        head=one_line(node.id, _LINE),
        lines=tuple(filter(None, lines)),
        status=end.status if end else "waiting",
        conditional=conditional,
        tooltip=". ".join(one_line(part, _TOOLTIP).rstrip(".") for part in about if part),
    )


def _fan_out(node: Node, end: NodeResult | None) -> str:
    """`×12`, or the list that the fan-out goes over."""
    if node.map is None:
        return ""
    for items in (end.output if end else None, node.map.over):
        if isinstance(items, list | tuple):
            return f"×{len(cast('Sequence[object]', items)):,}"
    return f"× each of {one_line(str(node.map.over).strip('{} '), 24)}"


def _ending(end: NodeResult | None) -> list[str]:
    """The outcome in a few short lines."""
    if end is None:
        return []
    if end.status == "skipped":
        return _wrap(f"skipped: {end.reason}" if end.reason else "skipped")
    marks = [
        end.status if end.status != "succeeded" else "",
        f"{end.attempts} attempts" if end.attempts > 1 else "",
        "" if end.duration is None else lasting(end.duration),
    ]
    return [" · ".join(filter(None, marks)), *_wrap(end.error.summary() if end.error else "")]


def _wrap(text: str) -> list[str]:
    """A text on at most three lines."""
    return wrap(one_line(text, 3 * _LINE), _LINE, max_lines=3, placeholder="…", break_on_hyphens=False)


def _arrows(nodes: Mapping[str, Node], ends: Mapping[str, NodeResult]) -> list[Arrow]:
    """Every route and dependency. Several between the same two nodes are one arrow."""
    labels: dict[tuple[str, str], list[str]] = {}
    for node in nodes.values():
        for target, label in _ways(node):
            labels.setdefault((node.id, target), []).append(label)
    for node in nodes.values():
        for router in node.handles_error:
            labels.setdefault((router, node.id), ["on error"])
    for source, end in ends.items():
        for target in end.routed_to:
            labels.setdefault((source, target), [])
    arrows = [
        _route(source, nodes[target], list(dict.fromkeys(conditions)), ends.get(source))
        for (source, target), conditions in labels.items()
        if source in nodes and target in nodes
    ]
    for node in nodes.values():
        for source in dict.fromkeys(node.depends_on):
            if source in nodes and (source, node.id) not in labels:
                taken = _is_delivered(ends.get(source), ends.get(node.id))
                arrows.append(Arrow(source, node.id, False, (), taken, f"{node.id} depends on {source}"))
    return arrows


def _ways(node: Node) -> Iterator[tuple[str, str]]:
    """The targets of a node, each with its condition in words."""
    condition = node.condition
    for target in node.on_success:
        yield target, "on success" if condition is None else condition.describe(_TOOLTIP)
    for target in node.on_failure:
        yield target, "on error" if condition is None else "else"
    for way in in_order(node.transitions):
        when = "otherwise" if way.condition is None else way.condition.describe(_TOOLTIP)
        yield way.to, f"{way.priority}: {when}"


def _route(source: str, target: Node, labels: list[str], end: NodeResult | None) -> Arrow:
    waits = f", which also depends on {source}" if source in target.depends_on else ""
    when = f": {' or '.join(labels)}" if labels else ""
    return Arrow(
        source=source,
        target=target.id,
        route=True,
        labels=tuple(one_line(label, _LINE) for label in labels[:3]),
        taken=target.id in end.routed_to if end else None,
        tooltip=one_line(f"{source} routes to {target.id}{waits}{when}", _TOOLTIP),
    )


def _is_delivered(source: NodeResult | None, target: NodeResult | None) -> bool | None:
    """Whether a dependency provided a value."""
    if source is None or target is None:
        return None
    return source.status == "succeeded" and target.status != "skipped"
