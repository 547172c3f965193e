"""The graph of a plan: who waits for whom, who leads where, and what comes before what."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from prefect_resilience.graphs.conditions.model import Condition
from prefect_resilience.graphs.plans.model import Node, Plan

EdgeKind = Literal["depends_on", "on_success", "on_failure", "handles_error", "transitions"]


class Edge(NamedTuple):
    """`source` comes before `target`. `place` is where it is written, from the node that says it.

    condition: what decides about it, of the source's output: for `on_success` it holds, for `on_failure` it
    does not (or the source failed). `priority` is a transition's.
    """

    source: str
    target: str
    kind: EdgeKind
    place: str
    condition: Condition | None = None
    priority: int = 0

    @property
    def routes(self) -> bool:
        """Whether the source leads to the target, which then runs only if led to."""
        return self.kind != "depends_on"


def edges_of(node: Node) -> Iterator[Edge]:
    """What one node says about others."""
    for n, name in enumerate(node.depends_on):
        yield Edge(name, node.id, "depends_on", f"depends_on[{n}]")
    for n, name in enumerate(node.on_success):
        yield Edge(node.id, name, "on_success", f"on_success[{n}]", node.condition)
    for n, name in enumerate(node.on_failure):
        yield Edge(node.id, name, "on_failure", f"on_failure[{n}]", node.condition)
    for n, name in enumerate(node.handles_error):
        yield Edge(name, node.id, "handles_error", f"handles_error[{n}]")
    for n, way in enumerate(node.transitions):
        yield Edge(node.id, way.to, "transitions", f"transitions[{n}].to", way.condition, way.priority)


def edges(plan: Plan) -> list[Edge]:
    """Every edge of the plan, in the order in which it is written."""
    return [edge for node in plan.tasks for edge in edges_of(node)]


def routers(plan: Plan) -> dict[str, tuple[Edge, ...]]:
    """The conditional nodes, in the plan's order, and the edges that may lead to each."""
    found: dict[str, list[Edge]] = {}
    for edge in edges(plan):
        if edge.routes:
            found.setdefault(edge.target, []).append(edge)
    return {node.id: tuple(found[node.id]) for node in plan.tasks if node.id in found}


def order(plan: Plan) -> list[str]:
    """The ids such that every node comes after those before it; otherwise in the plan's order."""
    ids = [node.id for node in plan.tasks]
    at = {name: n for n, name in enumerate(ids)}
    return [ids[n] for n in Order(len(ids), ((at[e.source], at[e.target]) for e in edges(plan))).order]


class Order:
    """The order of `count` numbered nodes with edges (before, after), and the cycles among them."""

    def __init__(self, count: int, pairs: Iterable[tuple[int, int]]) -> None:
        self.after: list[list[int]] = [[] for _ in range(count)]
        self.before: list[list[int]] = [[] for _ in range(count)]
        for first, then in pairs:
            self.after[first].append(then)
            self.before[then].append(first)
        self.order: list[int] = self._sorted()
        self.knots: list[list[int]] = []
        """Nodes that wait for each other in a circle, each knot in the order of the nodes."""
        if len(self.order) < count:
            for group in self._groups(set(range(count)).difference(self.order)):
                self.order.extend(group)
                if len(group) > 1 or group[0] in self.after[group[0]]:
                    self.knots.append(sorted(group))
        self.place: list[int] = [0] * count
        for n, node in enumerate(self.order):
            self.place[node] = n
        self.knot_of: dict[int, int] = {node: n for n, knot in enumerate(self.knots) for node in knot}

    def _sorted(self) -> list[int]:
        """Kahn's algorithm: all that is neither in a circle nor behind one."""
        waits = [len(before) for before in self.before]
        ready = [node for node, count in enumerate(waits) if not count]
        for node in ready:  # grows while it is walked through
            for then in self.after[node]:
                waits[then] -= 1
                if not waits[then]:
                    ready.append(then)
        return ready

    def _groups(self, inside: set[int]) -> list[list[int]]:
        """Tarjan's algorithm: the groups of nodes that reach each other, first ones first."""
        found: list[list[int]] = []
        number: dict[int, int] = {}
        lowest: dict[int, int] = {}
        stack: list[int] = []
        on_stack: set[int] = set()
        for root in sorted(inside):
            if root in number:
                continue
            walk: list[tuple[int, Iterator[int]]] = []
            self._enter(root, number, lowest, stack, on_stack, walk)
            while walk:
                node, ways = walk[-1]
                for then in ways:
                    if then not in number:
                        self._enter(then, number, lowest, stack, on_stack, walk)
                        break
                    if then in on_stack:
                        lowest[node] = min(lowest[node], number[then])
                else:
                    walk.pop()
                    if walk:
                        above = walk[-1][0]
                        lowest[above] = min(lowest[above], lowest[node])
                    if lowest[node] == number[node]:
                        found.append(_taken(stack, on_stack, node))
        return found[::-1]

    def _enter(
        self,
        node: int,
        number: dict[int, int],
        lowest: dict[int, int],
        stack: list[int],
        on_stack: set[int],
        walk: list[tuple[int, Iterator[int]]],
    ) -> None:
        number[node] = lowest[node] = len(number)
        stack.append(node)
        on_stack.add(node)
        walk.append((node, iter(self.after[node])))

    def cycles(self, knot: Sequence[int], most: int = 20) -> Iterator[list[int]]:
        """Cycles of a knot, each once, from its first node; those that share their way back are one."""
        inside = set(knot)
        seen: set[int] = set()
        told: set[frozenset[int]] = set()
        path: list[int] = [knot[0]]
        at = {knot[0]: 0}
        ways = [iter(self.after[knot[0]])]
        seen.add(knot[0])
        while path and len(told) < most:
            for then in ways[-1]:
                if then in at:
                    cycle = path[at[then] :]
                    if frozenset(cycle) not in told:
                        told.add(frozenset(cycle))
                        yield _from_first(cycle)
                        if len(told) == most:
                            return
                elif then in inside and then not in seen:
                    seen.add(then)
                    at[then] = len(path)
                    path.append(then)
                    ways.append(iter(self.after[then]))
                    break
            else:
                del at[path.pop()]
                ways.pop()

    def not_before(self, asked: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
        """Of pairs (first, then), those where `first` need not have ended when `then` runs."""
        failed: set[tuple[int, int]] = set()
        far: list[tuple[int, int]] = []
        for first, then in dict.fromkeys(asked):
            knot = self.knot_of.get(first)
            if knot is not None and knot == self.knot_of.get(then):
                continue
            if self.place[first] >= self.place[then]:
                failed.add((first, then))
            elif first not in self.before[then]:
                far.append((first, then))
        far.sort(key=lambda pair: self.place[pair[0]])
        for part in _in_parts(far):
            reached = self._reached(part)
            failed.update(pair for pair in part if pair not in reached)
        return failed

    def _reached(self, asked: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
        """Of pairs, those whose first node reaches the other: each first node is one bit, handed on."""
        bit: dict[int, int] = {}
        for first, _ in asked:
            bit.setdefault(first, 1 << len(bit))
        start = min(self.place[first] for first, _ in asked)
        end = max(self.place[then] for _, then in asked)
        masks: dict[int, int] = {}
        at = start
        while at <= end:
            node = self.order[at]
            group = self.knots[self.knot_of[node]] if node in self.knot_of else (node,)
            mask = 0
            for member in group:
                for before in self.before[member]:
                    mask |= masks.get(before, 0) | bit.get(before, 0)
            if mask:
                masks.update(dict.fromkeys(group, mask))
            at += len(group)
        return {(first, then) for first, then in asked if masks.get(then, 0) & bit[first]}


def _taken(stack: list[int], on_stack: set[int], root: int) -> list[int]:
    """The group on top of the stack, down to its root."""
    cut = len(stack) - 1
    while stack[cut] != root:
        cut -= 1
    group = stack[cut:]
    del stack[cut:]
    on_stack.difference_update(group)
    return group


def _from_first(cycle: list[int]) -> list[int]:
    """A cycle, begun with its first node."""
    start = cycle.index(min(cycle))
    return cycle[start:] + cycle[:start]


def _in_parts(pairs: Sequence[tuple[int, int]], most: int = 2048) -> Iterator[list[tuple[int, int]]]:
    """Pairs in parts with at most so many different first nodes. They are sorted by those."""
    part: list[tuple[int, int]] = []
    firsts: set[int] = set()
    for pair in pairs:
        if pair[0] not in firsts and len(firsts) == most:
            yield part
            part, firsts = [], set()
        firsts.add(pair[0])
        part.append(pair)
    if part:
        yield part
