"""Inject: an action returns it to add nodes to the running plan."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prefect_resilience.graphs.plans.model import Cache, CheckedActions, Node, Plan
from prefect_resilience.graphs.plans.reading.meaning import Entry, Meaning
from prefect_resilience.graphs.plans.reading.mistakes import Mistake, PlanError
from prefect_resilience.graphs.plans.reading.validate import read_node
from prefect_resilience.graphs.plans.templates import references


@dataclass(frozen=True)
class Inject:
    """Add `nodes` to the plan, with `output` as the output of the node that returns this.

    A new node is a `Node`, or a mapping as in a plan's JSON. New nodes may depend on any node of the plan and
    route to each other; the nodes in `before` wait for all of them. They are checked like a plan: if they
    have a mistake or exceed the plan's bounds, the node that returned this fails.
    """

    nodes: Sequence[Node | Mapping[str, Any]]
    output: Any = None
    before: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", tuple(self.nodes))
        before: Any = self.before
        object.__setattr__(self, "before", (before,) if isinstance(before, str) else tuple(before))


def read_added(
    inject: Inject,
    *,
    by: str,
    nodes: Mapping[str, Node],
    ended: Container[str],
    plan: Plan,
    actions: CheckedActions,
) -> list[Node]:
    """The nodes to add, read and checked. Raises PlanError with places such as `inject[0].type`.

    nodes: the nodes of the plan so far. ended: the ids of the nodes that have ended.
    """
    entries: list[Entry] = []
    mistakes: list[Mistake] = []
    for n, written in enumerate(inject.nodes):
        entry, wrong = read_node(written, f"inject[{n}]")
        entries.append(entry)
        mistakes += wrong
    earlier = [_entry_of(node) for node in nodes.values()]
    whole = [_after(entry, {by}, ended) if entry.whole else entry for entry in entries]
    mistakes += [mistake for _, mistake in Meaning([*earlier, *whole], plan.bounds).mistakes()]
    for entry in entries:
        if entry.whole:
            mistakes += actions.mistakes(entry.node, entry.place)
    if mistakes:
        raise PlanError(mistakes, f"the Inject of {by!r}")
    return [entry.node for entry in entries]


def _entry_of(node: Node) -> Entry:
    """A node of the plan that was checked before: only its id is needed."""
    return Entry(node.id, "the plan", Node.model_construct(id=node.id, type=node.type), True)


def _after(entry: Entry, by: set[str], ended: Container[str]) -> Entry:
    """The node with dependencies on the ended nodes that its templates use: it may use their outputs."""
    node = entry.node
    looked_at = references([node.input, node.map and node.map.over], names=node.names) | by
    sources = {name for name in looked_at if name in by or name in ended} - {node.id}
    if isinstance(node.cache, Cache) and node.cache.key:
        sources |= {name for name in references(node.cache.key, names=node.names) if name in ended}
    behind = node.model_copy(update={"depends_on": (*node.depends_on, *sorted(sources - {*node.depends_on}))})
    return entry._replace(node=behind)
