"""The graph of a plan: its edges, their order, and cycles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from prefect_resilience.graphs.plans.model import Node

MOST_ASKED = 2_048
"""Pairs that are checked at a time, to bound memory."""

EdgeKind = Literal["depends_on", "on_success", "on_failure", "handles_error", "transitions"]
KINDS: tuple[EdgeKind, ...] = ("depends_on", "on_success", "on_failure", "handles_error")
"""The fields of a node that name other nodes."""
BEFORE = ("depends_on", "handles_error")
"""The fields that name nodes before it."""


class Edge(NamedTuple):
    """`source` comes before `target`. `place` is relative to the node that has the field."""

    source: str
    target: str
    kind: EdgeKind
    place: str

    @property
    def other(self) -> str:
        """The named node; the node with the field is at the other end of the edge."""
        return self.source if self.kind in BEFORE else self.target


def edges_of(node: Node) -> Iterator[Edge]:
    """The edges that one node names."""
    for kind in KINDS:
        for n, name in enumerate(getattr(node, kind)):
            source, target = (name, node.id) if kind in BEFORE else (node.id, name)
            yield Edge(source, target, kind, f"{kind}[{n}]")
    for n, way in enumerate(node.transitions):
        yield Edge(node.id, way.to, "transitions", f"transitions[{n}].to")


class Order:
    """The order of `count` numbered nodes with edges (before, after), and the cycles among them.

    `order` leaves out nodes in cycles and all nodes after them.
    """

    def __init__(self, count: int, pairs: Iterable[tuple[int, int]]) -> None:
        self.after: list[list[int]] = [[] for _ in range(count)]
        self.before: list[list[int]] = [[] for _ in range(count)]
        for first, then in pairs:
            self.after[first].append(then)
            self.before[then].append(first)
        waits = [len(before) for before in self.before]
        self.order: list[int] = [node for node, count in enumerate(waits) if not count]
        for node in self.order:  # grows during the loop: Kahn's algorithm
            for then in self.after[node]:
                waits[then] -= 1
                if not waits[then]:
                    self.order.append(then)
        self._stuck: list[int] = [node for node, count in enumerate(waits) if count]
        self._place: dict[int, int] = {node: n for n, node in enumerate(self.order)}

    def cycles(self, most: int) -> Iterator[list[int]]:
        """Up to `most` cycles, each from its first node. Cycles with the same closing edge count as one."""
        visited: set[int] = set()
        cycles: set[frozenset[int]] = set()
        for root in self._stuck:
            path, at, ways = [root], {root: 0}, [iter(self.after[root])]
            while path and root not in visited:
                for then in ways[-1]:
                    if then in at:
                        cycle = path[at[then] :]
                        if frozenset(cycle) not in cycles:
                            cycles.add(frozenset(cycle))
                            start = cycle.index(min(cycle))
                            yield cycle[start:] + cycle[:start]
                            if len(cycles) == most:
                                return
                    elif then not in visited:
                        at[then] = len(path)
                        path.append(then)
                        ways.append(iter(self.after[then]))
                        break
                else:
                    visited.add(path[-1])
                    del at[path.pop()]
                    ways.pop()

    def not_before(self, asked: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
        """The pairs (first, then) for which `first` may still run when `then` runs.

        Pairs with nodes in or after cycles are ignored.
        """
        failed: set[tuple[int, int]] = set()
        far: list[tuple[int, int]] = []
        for first, then in dict.fromkeys(asked):
            if first not in self._place or then not in self._place:
                continue
            if self._place[first] >= self._place[then]:
                failed.add((first, then))
            elif first not in self.before[then]:
                far.append((first, then))
        far.sort(key=lambda pair: self._place[pair[0]])
        for part in (far[at : at + MOST_ASKED] for at in range(0, len(far), MOST_ASKED)):
            reached = self._reachable(part)
            failed.update(pair for pair in part if pair not in reached)
        return failed

    def _reachable(self, asked: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
        """The pairs in which the first node reaches the other. Each first node is one bit of a mask."""
        bit: dict[int, int] = {}
        for first, _ in asked:
            bit.setdefault(first, 1 << len(bit))
        start, end = self._place[asked[0][0]], max(self._place[then] for _, then in asked)
        masks: dict[int, int] = {}
        for node in self.order[start : end + 1]:
            mask = 0
            for before in self.before[node]:
                mask |= masks.get(before, 0) | bit.get(before, 0)
            if mask:
                masks[node] = mask
        return {(first, then) for first, then in asked if masks.get(then, 0) & bit[first]}
