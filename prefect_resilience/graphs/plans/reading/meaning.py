"""Checks of all nodes together: unknown names, cycles, templates that use a node too early."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, cast

from prefect_resilience.graphs.conditions.model import Condition
from prefect_resilience.graphs.plans.model import Bounds, Node
from prefect_resilience.graphs.plans.reading.fields import RESERVED_IDS
from prefect_resilience.graphs.plans.reading.mistakes import Mistake, Names, quote
from prefect_resilience.graphs.plans.templates import is_node, path_mistake, read_template, texts

UNREAD = "\0"
"""A placeholder for a name that could not be read."""

MOST_CYCLES = 100
MOST_ASKED = 2_048
"""Pairs that are checked at a time, to bound memory."""
LONGEST_CYCLE = 12
MOST_COMPUTED = 400_000
"""The most characters of templates that are more than paths. Parsing takes about 5 microseconds for each."""

_INPUT = re.compile(r"(?:\$\.)?inputs\.([^\W\d]\w*)")
"""The path of a condition that begins at an input."""

Numbered = Iterator[tuple[int, Mistake]]

KINDS = ("depends_on", "on_success", "on_failure", "handles_error")
"""The fields of a node that name other nodes."""
BEFORE = ("depends_on", "handles_error")
"""The fields that name nodes before it."""


class Edge(NamedTuple):
    """`source` comes before `target`. `place` is relative to the node that has the field."""

    source: str
    target: str
    kind: str
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


class Entry(NamedTuple):
    """A node as far as it could be read: its id, its place, its readable fields.

    `whole`: it has no mistakes of its own. `single`: the fields with one name that is not in a list.
    """

    id: str
    place: str
    node: Node
    whole: bool
    single: frozenset[str] = frozenset()

    def place_of(self, edge: Edge) -> str:
        return edge.kind if edge.kind in self.single else edge.place


class Use(NamedTuple):
    """Node number `user` uses the output of node number `used`, which must come before it."""

    used: int
    user: int
    place: str
    itself: bool
    """Whether a node may use its own output: a condition is evaluated after its node has ended."""


class Meaning:
    """The checks of all nodes of a plan together. Some nodes may be read only in part.

    `inputs` are the names of the plan's inputs; None if a later run may still give others.
    """

    def __init__(
        self, entries: Sequence[Entry], bounds: Bounds, inputs: Collection[str] | None = None
    ) -> None:
        self.entries = entries
        self.bounds = bounds
        self.inputs = inputs
        self.at: dict[str, int] = {}
        for n, entry in enumerate(entries):
            if entry.id:
                self.at.setdefault(entry.id, n)
        self.names: Names = Names(self.at)
        self.input_names: Names = Names(inputs or ())
        self.uses: list[Use] = []
        self._computed = 0
        self._is_full = False

    def mistakes(self) -> Numbered:
        """Every mistake, with the number of its node."""
        yield from self._count_branches()
        for n, entry in enumerate(self.entries):
            yield from ((n, Mistake(f"{entry.place}.{place}", says)) for place, says in self._of(n, entry))
        yield from self._in_order()

    def _count_branches(self) -> Numbered:
        nodes, branches = len(self.entries), sum(_branches(entry.node) for entry in self.entries)
        if nodes + branches > self.bounds.nodes:
            most = f"the {self.bounds.nodes:,} that bounds.nodes allows"
            yield 0, Mistake("tasks", f"{nodes:,} nodes and {branches:,} branches are more than {most}")

    def _of(self, n: int, entry: Entry) -> Iterator[tuple[str, str]]:
        """The mistakes of one node: places inside it, and sentences."""
        first = self.at.get(entry.id)
        if first is not None and first != n:
            yield (
                "id",
                f"{quote(entry.id)} is already the id of {self.entries[first].place}: write another id",
            )
        for edge in edges_of(entry.node):
            yield from self._of_edge(entry, edge)
        yield from _doubles(entry.node)
        yield from self._of_fan_out(entry.node)
        yield from self._of_templates(n, entry.node)
        yield from self._of_conditions(n, entry.node)

    def _of_edge(self, entry: Entry, edge: Edge) -> Iterator[tuple[str, str]]:
        other = edge.other
        if other != UNREAD and other not in self.at:
            yield entry.place_of(edge), self._unknown(other)
        elif other == entry.id:
            yield entry.place_of(edge), _ITSELF[edge.kind].format(quote(other))

    def _unknown(self, name: str) -> str:
        return f"unknown node {quote(name)}{self.names.suggestion(name)}"

    def _of_fan_out(self, node: Node) -> Iterator[tuple[str, str]]:
        if node.map is None:
            return
        item, count = node.map.item, _branches(node)
        if count > self.bounds.fan_out:
            says = f"{count:,} items are more than the {self.bounds.fan_out:,} that bounds.fan_out allows"
            yield "map.over", says
        if not re.fullmatch(r"[^\W\d]\w*", item) or len(item) > 100:
            yield "map.as", f"{quote(item)} is not a valid name: use letters, digits and _, as in 'document'"
        elif item != "item" and item in RESERVED_IDS:
            yield "map.as", f"{item!r} has a special meaning in templates: write another name"
        elif item in self.at:
            yield "map.as", f"{item!r} is the id of {self.entries[self.at[item]].place}: write another name"

    def _of_templates(self, n: int, node: Node) -> Iterator[tuple[str, str]]:
        for place, value, names in _templates(node):
            for at, text in texts(value, place):
                template = read_template(text)
                self._computed += len(text) if template.tree else 0
                if self._computed > MOST_COMPUTED:
                    if not self._is_full:
                        yield at, f"the templates of the plan compute more than {MOST_COMPUTED:,} characters"
                    self._is_full = True
                    return
                yield from ((at, says) for says in template.mistakes)
                for path in template.paths:
                    if wrong := path_mistake(path, self.at, names, self.names):
                        yield at, f"{{{{ {path} }}}}: {wrong}"
                    if is_node(path, names) and path.root in self.at:
                        self.uses.append(Use(self.at[path.root], n, at, itself=False))
                    if path.root == "inputs" and not path.node and path.steps:
                        yield from self._of_input(at, str(path.steps[0]))

    def _of_conditions(self, n: int, node: Node) -> Iterator[tuple[str, str]]:
        for place, condition in _conditions(node):
            name = condition.source_task
            if name in self.at:
                self.uses.append(Use(self.at[name], n, f"{place}.source_task", itself=True))
            elif name is not None:
                yield f"{place}.source_task", self._unknown(name)
            if match := _INPUT.match(condition.path or ""):
                yield from self._of_input(f"{place}.path", match[1])

    def _of_input(self, place: str, name: str) -> Iterator[tuple[str, str]]:
        if self.inputs is not None and name not in self.inputs:
            says = (
                f"unknown input {quote(name)}{self.input_names.suggestion(name)}; pass it, or declare it in"
            )
            yield place, f"{says} the plan's inputs"

    def _in_order(self) -> Numbered:
        """Cycles, and outputs that are used before they exist."""
        written: dict[tuple[int, int], tuple[int, str]] = {}
        for n, entry in enumerate(self.entries):
            for edge in edges_of(entry.node):
                other = self.at.get(edge.other)
                if other is not None and other != n:
                    place = f"{entry.place}.{entry.place_of(edge)}"
                    pair = (other, n) if edge.other == edge.source else (n, other)
                    written.setdefault(pair, (n, place))
        order = Order(len(self.entries), written)
        for cycle in order.cycles(MOST_CYCLES):
            n, place = written[cycle[-1], cycle[0]]
            yield n, Mistake(place, self._circle(cycle))
        yield from self._too_early(order)

    def _circle(self, cycle: Sequence[int]) -> str:
        ids = [self.entries[n].id for n in (*cycle, cycle[0])]
        shown = ids if len(ids) <= LONGEST_CYCLE else [*ids[:6], f"... {len(ids) - 9} more ...", *ids[-3:]]
        return f"{quote(ids[0])} would wait for itself: {' -> '.join(shown)}; remove one of these edges"

    def _too_early(self, order: Order) -> Numbered:
        pairs = [(use.used, use.user) for use in self.uses if use.used != use.user]
        early = order.not_before(pairs)
        after = _opposite_pairs(order, early)
        reported: set[Use] = set()
        for use in self.uses:
            if use in reported:
                continue
            reported.add(use)
            used, user = (quote(self.entries[n].id) for n in (use.used, use.user))
            if use.used == use.user:
                if not use.itself:
                    says = f"{user} uses its own output, which does not exist before it has run"
                    yield use.user, Mistake(f"{self.entries[use.user].place}.{use.place}", says)
            elif (use.used, use.user) in early:
                says = (
                    f"{used} runs after {user}, so its output does not exist yet"
                    if (use.used, use.user) in after
                    else f"{used} may not have ended when {user} runs: add {used} to depends_on"
                )
                yield use.user, Mistake(f"{self.entries[use.user].place}.{use.place}", says)


def _opposite_pairs(order: Order, early: Collection[tuple[int, int]]) -> set[tuple[int, int]]:
    """The pairs that are in the opposite order."""
    some = [(then, first) for first, then in list(early)[:1000]]
    return {(first, then) for then, first in set(some) - order.not_before(some)}


_ITSELF = {
    "depends_on": "{} depends on itself: remove it",
    "on_success": "{} routes to itself: name another node",
    "on_failure": "{} routes to itself: name another node, or write a retry_policy",
    "transitions": "{} routes to itself: name another node, or write a retry_policy",
    "handles_error": "{} handles its own error: name another node, or write a retry_policy",
}


def _branches(node: Node) -> int:
    """The number of branches of a node, 0 if it is not known yet."""
    over: Any = node.map.over if node.map else None
    return len(cast("list[Any]", over)) if isinstance(over, list) else 0


def _doubles(node: Node) -> Iterator[tuple[str, str]]:
    for name in ("retry_policy", "timeout_ms"):
        if node.execution and getattr(node, name) is not None and getattr(node.execution, name) is not None:
            yield f"execution.{name}", f"{name} is written here and in the node itself: write one of them"


def _templates(node: Node) -> Iterator[tuple[str, object, frozenset[str]]]:
    """The parts of a node that may have templates: place, value, and the names allowed beside nodes."""
    yield "input", node.templated, node.names
    if node.map:
        yield "map.over", node.map.over, frozenset()
    if node.cache is not True and node.cache is not False and node.cache.key:
        yield "cache.key", node.cache.key, node.names


def _conditions(node: Node) -> Iterator[tuple[str, Condition]]:
    """Every condition of a node, nested ones too, with its place."""
    waiting = [("condition", node.condition)]
    waiting += [(f"transitions[{n}].condition", way.condition) for n, way in enumerate(node.transitions)]
    while waiting:
        place, condition = waiting.pop(0)
        if condition is None:
            continue
        yield place, condition
        if condition.operator == "not":
            waiting += [(f"{place}.condition", part) for part in condition.conditions]
        else:
            waiting += [(f"{place}.conditions[{n}]", part) for n, part in enumerate(condition.conditions)]


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
