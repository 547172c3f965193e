"""The content of a picture of a plan: boxes, arrows, a title, a verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Literal, cast

from prefect_resilience.base.text import lasting
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.graphs.plans.model import Node, Plan
from prefect_resilience.graphs.plans.node_states import leads
from prefect_resilience.graphs.plans.result import NodeResult, PlanResult
from prefect_resilience.graphs.plans.routes import in_order

BoxStatus = Literal["succeeded", "failed", "handled", "skipped", "waiting"]

SIGNS: dict[BoxStatus, str] = {"succeeded": "✓", "failed": "✗", "handled": "↷", "skipped": "–", "waiting": ""}

_LINE = 38
"""Characters of a line in a box or at an arrow; the whole text is in the tooltip."""
_TOOLTIP = 600


@dataclass(frozen=True, slots=True)
class Box:
    """A node. `lines` are in small print. `conditional`: it runs only if another node chooses it."""

    id: str
    head: str
    lines: tuple[str, ...]
    status: BoxStatus
    conditional: bool
    tooltip: str


@dataclass(frozen=True, slots=True)
class Arrow:
    """A route or dependency. `taken` is None until it is known."""

    source: str
    target: str
    route: bool
    labels: tuple[str, ...]
    taken: bool | None
    tooltip: str


@dataclass(frozen=True, slots=True)
class Picture:
    """The content to draw. `verdict` is empty before a run. `note` says what was left out."""

    title: str
    verdict: str
    note: str
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    ran: bool


def one_line(text: str, most: int) -> str:
    """`text` without secrets on one line of at most `most` characters; a cut is shown by `…`."""
    line = " ".join(redact(text[: most * 8]).split())
    line = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in line)
    return line if len(line) <= most else line[: most - 1].rstrip() + "…"


def picture_of(
    plan: Plan,
    result: PlanResult | None = None,
    *,
    added: Iterable[Node] = (),
    most_boxes: int = 300,
    most_arrows: int = 450,
) -> Picture:
    """The picture of a plan, with the outcome if there is a result.

    `added` are the injected nodes. Other nodes that only the result has are shown without dependencies.
    With more than `most_boxes` nodes, the failed ones are kept, then those at the beginning of the plan.
    """
    ends: Mapping[str, NodeResult] = {} if result is None else result.nodes
    nodes = {node.id: node for node in plan.tasks}
    new = {node.id: node for node in added if node.id not in nodes}
    new |= {name: Node(id=name, type=name) for name in ends if name not in nodes and name not in new}
    everything = {**nodes, **new}
    kept = _kept(everything, ends, most_boxes)
    conditional = {name for node in everything.values() for name in leads(node)}
    conditional |= {node.id for node in everything.values() if node.handles_error}
    boxes = [_box(node, ends.get(node.id), node.id in conditional, node.id in new) for node in kept.values()]
    arrows = _arrows(kept, ends)
    shown = set(sorted(arrows, key=lambda arrow: (not arrow.route, not arrow.taken))[:most_arrows])
    return Picture(
        title=one_line(plan.name or plan.intent, 90),
        verdict="" if result is None else _verdict(result, len(everything)),
        note=_note(len(kept), len(everything), len(shown), len(arrows)),
        boxes=tuple(boxes),
        arrows=tuple(arrow for arrow in arrows if arrow in shown),
        ran=result is not None,
    )


def _kept(nodes: Mapping[str, Node], ends: Mapping[str, NodeResult], most: int) -> Mapping[str, Node]:
    if len(nodes) <= most:
        return nodes
    failed = [name for name, end in ends.items() if end.status in ("failed", "handled") and name in nodes]
    names = dict.fromkeys([*failed, *nodes])
    chosen = set(list(names)[:most])
    return {name: node for name, node in nodes.items() if name in chosen}


def _note(boxes: int, nodes: int, shown: int, arrows: int) -> str:
    said: list[str] = []
    if boxes < nodes:
        said.append(
            f"{boxes:,} of {nodes:,} nodes are drawn: those that failed, then the first of the others."
        )
    if shown < arrows:
        said.append(f"{shown:,} of {arrows:,} arrows between them are drawn.")
    return " ".join(said)


def _verdict(result: PlanResult, nodes: int) -> str:
    said = counts_of(result)
    if len(result.nodes) < nodes:
        said.append(f"{nodes - len(result.nodes):,} not run")
    begun = [end for end in result.nodes.values() if end.started_at is not None]
    took = ""
    if begun:
        starts = [end.started_at.timestamp() for end in begun if end.started_at is not None]
        ends = [start + (end.duration or 0) for start, end in zip(starts, begun, strict=True)]
        took = f" in {lasting(max(ends) - min(starts))}"
    return f"{'succeeded' if result.succeeded else 'failed'}{took}: {', '.join(said) or 'nothing ran'}"


def counts_of(result: PlanResult) -> list[str]:
    """How many nodes there are of each status: "3 succeeded"."""
    counted = Counter(end.status for end in result.nodes.values())
    order = ("succeeded", "handled", "failed", "skipped")
    return [f"{counted[status]:,} {status}" for status in order if counted[status]]


def _box(node: Node, end: NodeResult | None, conditional: bool, added: bool) -> Box:
    status: BoxStatus = "waiting" if end is None else end.status
    kind = one_line(node.type, _LINE) if node.type != node.id else ""
    marks = [kind, _fan_out(node, end), "" if node.trigger_rule == "all_settled" else node.trigger_rule]
    marks.append("added while it ran" if added else "")
    lines = [" · ".join(mark for mark in marks if mark), *_ending(end)]
    told = [f"{node.id} ({node.type})" if kind else node.id, node.description]
    told += ["runs only if a node routes to it" if conditional and end is None else "", *_story(end)]
    return Box(
        id=node.id,
        head=one_line(node.id, _LINE),
        lines=tuple(line for line in lines if line),
        status=status,
        conditional=conditional,
        tooltip=". ".join(one_line(part, _TOOLTIP).rstrip(".") for part in told if part),
    )


def _fan_out(node: Node, end: NodeResult | None) -> str:
    """`×12`, or the list that the fan-out goes over."""
    if node.map is None:
        return ""
    over: object = node.map.over
    for items in (None if end is None else cast("object", end.output), over):
        if isinstance(items, list | tuple):
            return f"×{len(cast('Sequence[object]', items)):,}"
    return f"× each of {one_line(str(over).strip('{} '), 24)}"


def _ending(end: NodeResult | None) -> list[str]:
    """The outcome in a few short lines."""
    if end is None:
        return []
    if end.status == "skipped":
        return _wrapped(f"skipped: {end.reason}" if end.reason else "skipped")
    went = [end.status if end.status != "succeeded" else ""]
    went.append(f"{end.attempts} attempts" if end.attempts > 1 else "")
    went.append("" if end.duration is None else lasting(end.duration))
    return [" · ".join(part for part in went if part), *_wrapped(end.error.summary() if end.error else "")]


def _wrapped(text: str) -> list[str]:
    """A text on at most three lines."""
    return wrap(one_line(text, 3 * _LINE), _LINE, max_lines=3, placeholder="…", break_on_hyphens=False)


def _story(end: NodeResult | None) -> list[str]:
    if end is None:
        return []
    return [end.status, end.reason, end.error.message if end.error else ""]


def _arrows(nodes: Mapping[str, Node], ends: Mapping[str, NodeResult]) -> list[Arrow]:
    """Every route and dependency. Several between the same two nodes are one arrow."""
    arrows: list[Arrow] = []
    labels: dict[tuple[str, str], dict[str, None]] = {}
    for node in nodes.values():
        for target, label in _ways(node):
            labels.setdefault((node.id, target), {})[label] = None
        for router in node.handles_error:
            known = labels.setdefault((router, node.id), {})
            if not known:
                known["on error"] = None
    for (source, target), known in labels.items():
        if source in nodes and target in nodes:
            arrows.append(_route(source, nodes[target], tuple(known), ends.get(source)))
    for node in nodes.values():
        for source in dict.fromkeys(node.depends_on):
            if source in nodes and (source, node.id) not in labels:
                taken = _delivered(ends.get(source), ends.get(node.id), node)
                arrows.append(Arrow(source, node.id, False, (), taken, f"{node.id} depends on {source}"))
    for source, end in ends.items():
        for target in end.routed_to:
            if source in nodes and target in nodes and (source, target) not in labels:
                arrows.append(_route(source, nodes[target], (), end))
    return arrows


def _ways(node: Node) -> list[tuple[str, str]]:
    """The targets of a node, each with its condition in words."""
    condition = node.condition
    on_success = "on success" if condition is None else condition.describe(_TOOLTIP)
    on_failure = "on error" if condition is None else "else"
    ways = [(target, on_success) for target in node.on_success]
    ways += [(target, on_failure) for target in node.on_failure]
    for way in in_order(node.transitions):
        when = "otherwise" if way.condition is None else way.condition.describe(_TOOLTIP)
        ways.append((way.to, f"{way.priority}: {when}"))
    return ways


def _route(source: str, target: Node, labels: tuple[str, ...], end: NodeResult | None) -> Arrow:
    when = " or ".join(labels)
    waits = f", which also depends on {source}" if source in target.depends_on else ""
    return Arrow(
        source=source,
        target=target.id,
        route=True,
        labels=tuple(one_line(label, _LINE) for label in labels[:3]),
        taken=None if end is None else target.id in end.routed_to,
        tooltip=one_line(f"{source} routes to {target.id}{waits}{': ' if when else ''}{when}", _TOOLTIP),
    )


def _delivered(source: NodeResult | None, target: NodeResult | None, node: Node) -> bool | None:
    """Whether a dependency provided a value."""
    if source is None or target is None:
        return None
    if target.status == "skipped":
        return False
    return source.status == "succeeded" or (node.trigger_rule == "always" and source.status != "skipped")
