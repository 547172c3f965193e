"""Checks of all nodes together: unknown names, cycles, templates that use a node too early."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple, cast

from prefect_resilience.base.plain import shortly
from prefect_resilience.graphs.conditions.model import Condition
from prefect_resilience.graphs.plans.model import Bounds, Cache, Execution, Node
from prefect_resilience.graphs.plans.reading.fields import RESERVED_IDS
from prefect_resilience.graphs.plans.reading.mistakes import Names, Place, Wrong, place_text, shorten
from prefect_resilience.graphs.plans.templates import is_node, path_mistake, read_template, texts

UNREAD = "\0"
"""A placeholder for a name that could not be read."""

MOST_CYCLES = 25
MOST_ASKED = 2_048
"""Pairs that are checked at a time, to bound memory."""
LONGEST_CYCLE = 300
MOST_COMPUTED = 400_000
"""The most characters of templates that are more than paths. Parsing takes about 5 microseconds for each."""

_INPUT = re.compile(r"(?:\$\.)?inputs\.([^\W\d]\w*)")
"""The path of a condition that begins at an input."""

KINDS = ("depends_on", "on_success", "on_failure", "handles_error")
"""The fields of a node that name other nodes."""
BEFORE = ("depends_on", "handles_error")
"""The fields that name nodes before it."""


class Edge(NamedTuple):
    """`other` is named at `place` in a node; it comes before that node if the edge is `backward`."""

    other: str
    backward: bool
    place: Place


def edges_of(node: Node) -> Iterator[Edge]:
    """The edges that one node names."""
    for kind in KINDS:
        for n, name in enumerate(getattr(node, kind)):
            yield Edge(name, kind in BEFORE, (kind, n))
    for n, way in enumerate(node.transitions):
        yield Edge(way.to, False, ("transitions", n, "to"))


class Entry(NamedTuple):
    """A node as far as it could be read: its id, its place, its readable fields.

    `whole`: it has no mistakes of its own.
    """

    id: str
    place: Place
    node: Node
    whole: bool


class Use(NamedTuple):
    """Node number `user` uses the output of node number `used`, which must come before it."""

    used: int
    user: int
    place: Place
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

    def mistakes(self) -> Iterator[Wrong]:
        """Every mistake, with its place."""
        nodes, branches = len(self.entries), sum(_branches(entry.node) for entry in self.entries)
        if nodes + branches > self.bounds.nodes:
            most = f"the {self.bounds.nodes:,} that bounds.nodes allows"
            yield ("tasks",), f"{nodes:,} nodes and {branches:,} branches are more than {most}"
        for n, entry in enumerate(self.entries):
            yield from (((*entry.place, *place), says) for place, says in self._of(n, entry))
        yield from self._in_order()

    def _of(self, n: int, entry: Entry) -> Iterator[Wrong]:
        """The mistakes of one node: places inside it, and sentences."""
        if self.at.get(entry.id, n) != n:
            yield ("id",), f"{shortly(entry.id)} is already the id of {self._place_of(entry.id)}"
        for edge in edges_of(entry.node):
            if edge.other != UNREAD and edge.other not in self.at:
                yield edge.place, self._unknown(edge.other)
        yield from _doubles(entry.node)
        yield from self._of_fan_out(entry.node)
        yield from self._of_templates(n, entry.node)
        yield from self._of_conditions(n, entry.node)

    def _place_of(self, name: str) -> str:
        place = place_text(self.entries[self.at[name]].place) or "a node of the plan"
        return f"{place}: write another name"

    def _unknown(self, name: str) -> str:
        return f"unknown node {shortly(name)}{self.names.suggestion(name)}"

    def _of_fan_out(self, node: Node) -> Iterator[Wrong]:
        if node.map is None:
            return
        item, count = node.map.item, _branches(node)
        if count > self.bounds.fan_out:
            says = f"{count:,} items are more than the {self.bounds.fan_out:,} that bounds.fan_out allows"
            yield ("map", "over"), says
        if not re.fullmatch(r"[^\W\d]\w*", item) or len(item) > 100:
            says = f"{shortly(item)} is not a valid name: use letters, digits and _, as in 'document'"
            yield ("map", "as"), says
        elif item != "item" and item in RESERVED_IDS:
            yield ("map", "as"), f"{item!r} has a special meaning in templates: write another name"
        elif item in self.at:
            yield ("map", "as"), f"{item!r} is the id of {self._place_of(item)}"

    def _of_templates(self, n: int, node: Node) -> Iterator[Wrong]:
        for place, value, names in _templates(node):
            for at, text in texts(value, place):
                template = read_template(text)
                self._computed += len(text) if template.tree else 0
                if self._computed > MOST_COMPUTED:
                    yield at, f"the templates of the plan compute more than {MOST_COMPUTED:,} characters"
                    return
                yield from ((at, says) for says in template.mistakes)
                for path in template.paths:
                    if wrong := path_mistake(path, self.at, names, self.names):
                        yield at, f"{{{{ {path} }}}}: {wrong}"
                    if is_node(path, names) and path.root in self.at:
                        self.uses.append(Use(self.at[path.root], n, at, itself=False))
                    if path.root == "inputs" and not path.node and path.steps:
                        yield from self._of_input(at, str(path.steps[0]))

    def _of_conditions(self, n: int, node: Node) -> Iterator[Wrong]:
        for place, condition in _conditions(node):
            name = condition.source_task
            if name in self.at:
                self.uses.append(Use(self.at[name], n, (*place, "source_task"), itself=True))
            elif name is not None:
                yield (*place, "source_task"), self._unknown(name)
            if match := _INPUT.match(condition.path or ""):
                yield from self._of_input((*place, "path"), match[1])

    def _of_input(self, place: Place, name: str) -> Iterator[Wrong]:
        if self.inputs is not None and name not in self.inputs:
            near = self.input_names.suggestion(name)
            yield place, f"unknown input {shortly(name)}{near}; pass it, or declare it in the plan's inputs"

    def _in_order(self) -> Iterator[Wrong]:
        """Cycles, and outputs that are used before they exist."""
        before: dict[int, dict[int, Place]] = {n: {} for n in range(len(self.entries))}
        for n, entry in enumerate(self.entries):
            for edge in edges_of(entry.node):
                other = self.at.get(edge.other)
                if other is not None:
                    first, then = (other, n) if edge.backward else (n, other)
                    before[then].setdefault(first, (*entry.place, *edge.place))
        order = Order(before)
        for cycle, place in order.cycles:
            yield place, self._circle(cycle)
        early = order.not_before({(use.used, use.user) for use in self.uses if use.used != use.user})
        for use in dict.fromkeys(self.uses):
            used, user = (shortly(self.entries[n].id) for n in (use.used, use.user))
            says = ""
            if use.used == use.user and not use.itself:
                says = f"{user} uses its own output, which does not exist before it has run"
            elif (use.used, use.user) in early:
                says = f"{used} may not have ended when {user} runs: add {used} to depends_on"
            if says:
                yield (*self.entries[use.user].place, *use.place), says

    def _circle(self, cycle: Sequence[int]) -> str:
        ids = [self.entries[n].id for n in cycle]
        way = shorten(" -> ".join(ids), LONGEST_CYCLE)
        mend = "remove one of these edges, or write a retry_policy"
        return f"{shortly(ids[0])} would wait for itself: {way}; {mend}"


def _branches(node: Node) -> int:
    """The number of branches of a node, 0 if it is not known yet."""
    over: Any = node.map.over if node.map else None
    return len(cast("list[Any]", over)) if isinstance(over, list) else 0


_NO_EXECUTION = Execution()


def _doubles(node: Node) -> Iterator[Wrong]:
    """What is written twice in different places, and transitions of another node."""
    execution = node.execution or _NO_EXECUTION
    for name in ("retry_policy", "timeout_ms"):
        if getattr(node, name) is not None and getattr(execution, name) is not None:
            says = f"{name} is written here and in the node itself: write one of them"
            yield ("execution", name), says
    if node.retries is not None and (node.retry_policy or execution.retry_policy):
        yield ("retries",), "cannot be combined with a retry_policy: leave it out"
    for n, way in enumerate(node.transitions):
        if way.from_node_id not in (None, node.id):
            says = f"{shortly(way.from_node_id)} is another node: write the transition there"
            yield ("transitions", n, "from_node_id"), says


def _templates(node: Node) -> Iterator[tuple[Place, object, frozenset[str]]]:
    """The parts of a node that may have templates: place, value, and the names allowed beside nodes."""
    yield ("input",), node.input, node.names
    if node.map:
        yield ("map", "over"), node.map.over, frozenset()
    if isinstance(node.cache, Cache) and node.cache.key:
        yield ("cache", "key"), node.cache.key, node.names


def _conditions(node: Node) -> Iterator[tuple[Place, Condition]]:
    """Every condition of a node, nested ones too, with its place."""
    waiting: list[tuple[Place, Condition | None]] = [(("condition",), node.condition)]
    waiting += [(("transitions", n, "condition"), way.condition) for n, way in enumerate(node.transitions)]
    for place, condition in waiting:  # grows during the loop
        if condition is None:
            continue
        yield place, condition
        if condition.operator == "not":
            waiting += [((*place, "condition"), part) for part in condition.conditions]
        else:
            waiting += [((*place, "conditions", n), part) for n, part in enumerate(condition.conditions)]


class Order:
    """An order of numbered nodes, from the nodes before each and the places of these edges.

    Up to `MOST_CYCLES` cycles are in `cycles`, each with the place of the edge that closes it, and are cut
    there. With more of them there is no order.
    """

    def __init__(self, before: dict[int, dict[int, Place]]) -> None:
        self.before = before
        self.cycles: list[tuple[list[int], Place]] = []
        self.order: list[int] = []
        for _ in range(MOST_CYCLES):
            try:
                self.order = [*TopologicalSorter(before).static_order()]
                break
            except CycleError as error:
                *cycle, _ = error.args[1]
                start = cycle.index(min(cycle))
                cycle = [*cycle[start:], *cycle[: start + 1]]
                self.cycles.append((cycle, before[cycle[0]].pop(cycle[-2])))

    def not_before(self, pairs: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
        """The pairs (first, then) for which `first` may still run when `then` runs."""
        place = {node: n for n, node in enumerate(self.order)}
        far = [pair for pair in pairs if place and pair[0] not in self.before[pair[1]]]
        far.sort(key=lambda pair: place[pair[0]])
        failed: set[tuple[int, int]] = set()
        for part in (far[at : at + MOST_ASKED] for at in range(0, len(far), MOST_ASKED)):
            # Each first node is one bit of a mask, which the nodes after it inherit.
            bits = {first: 1 << n for n, first in enumerate(dict.fromkeys(first for first, _ in part))}
            masks: dict[int, int] = {}
            for node in self.order[place[part[0][0]] :]:
                mask = bits.get(node, 0)
                for earlier in self.before[node]:
                    mask |= masks.get(earlier, 0)
                if mask:
                    masks[node] = mask
            failed.update((first, then) for first, then in part if not masks.get(then, 0) & bits[first])
        return failed
