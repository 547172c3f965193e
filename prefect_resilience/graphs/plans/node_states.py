"""The state of each node in a schedule, its links, added nodes, and the reasons of skips."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from graphlib import CycleError, TopologicalSorter
from itertools import islice
from typing import NamedTuple

from prefect_resilience.errors.context import ErrorContext
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.graphs.plans.model import Node, TriggerRule

Failures = Mapping[str, ErrorContext | None]

# Which error a node sees: the error of a failure before it that no success has followed.
#
# A failure is *healed* for a node if there is a succeeded node on a path from the failed node to it. So nodes
# after a handler do not see the error that it handled, even if they also depend on the failed node.

MOST = 16
"""A trail has at most this many failures of each kind, the nearest first, to keep long plans linear."""


class Trail(NamedTuple):
    """The failures on the paths to a node: their errors by the id of the failed node.

    open: the failures that no success has followed; the node sees the first one. healed: the others.
    """

    open: Failures
    healed: Failures

    @property
    def error(self) -> ErrorContext | None:
        """The error that the node sees."""
        return next(iter(self.open.values()), None)


def join_trails(trails: Iterable[Trail | None]) -> Trail | None:
    """The trail of a node with several incoming paths; None if nothing failed on them."""
    failures = [trail for trail in trails if trail is not None]
    if len(failures) < 2:
        return failures[0] if failures else None
    healed = _merge([trail.healed for trail in failures])
    opened = _merge([trail.open for trail in failures])
    return Trail({name: error for name, error in opened.items() if name not in healed}, healed)


def after_success(trail: Trail | None) -> Trail | None:
    """The trail after a node that succeeded: all failures are healed."""
    if trail is None or not trail.open:
        return trail
    return Trail({}, _merge([trail.open, trail.healed]))


def after_failure(trail: Trail | None, node_id: str, error: ErrorContext | None) -> Trail:
    """The trail after a node that failed: its own error is seen."""
    earlier = Trail({}, {}) if trail is None else trail
    return Trail(_merge([{node_id: error}, earlier.open]), earlier.healed)


def _merge(kinds: Sequence[Failures]) -> Failures:
    """All failures in this order, up to `MOST`; the first mapping itself if nothing is added."""
    merged = dict(kinds[0])
    for more in kinds[1:]:
        for name, error in more.items():
            merged.setdefault(name, error)
    return kinds[0] if len(merged) == len(kinds[0]) else dict(islice(merged.items(), MOST))


MOST_NAMES = 5


class Status(IntEnum):
    """The status of a node. From `SUCCEEDED` on it has settled."""

    WAITING = 0
    RUNNING = 1
    SUCCEEDED = 2
    FAILED = 3
    SKIPPED = 4


@dataclass(slots=True, eq=False)
class NodeState:
    """A node in the schedule: counts of the nodes it waits for, and the nodes that wait for it."""

    id: str
    rule: TriggerRule
    status: Status = Status.WAITING
    deps: list[NodeState] = field(default_factory=list["NodeState"])
    waits: int = 0
    """Dependencies that have not settled."""
    values: int = 0
    """Dependencies that produced a value, or that failed and led here."""
    followers: list[NodeState] = field(default_factory=list["NodeState"])
    routers: list[NodeState] = field(default_factory=list["NodeState"])
    routers_left: int = 0
    routed_by: list[NodeState] = field(default_factory=list["NodeState"])
    targets: dict[NodeState, None] = field(default_factory=dict["NodeState", None])
    """The nodes that it may route to."""
    routed_to: tuple[str, ...] = ()
    last_error: ErrorContext | None = None
    trail: Trail | None = None
    """The trail of the nodes that come after it."""

    def depend_on(self, dep: NodeState) -> None:
        self.deps.append(dep)
        if dep.status < Status.SUCCEEDED:
            self.waits += 1
            dep.followers.append(self)
        else:
            self.values += dep.status is Status.SUCCEEDED

    def may_lead_to(self, target: NodeState) -> None:
        """Link a possible target. A second link to the same target is ignored."""
        if target not in self.targets:
            self.targets[target] = None
            target.routers.append(self)
            target.routers_left += self.status < Status.SUCCEEDED


def link(nodes: Iterable[Node], states: Mapping[str, NodeState]) -> None:
    """Link the state of each node with the states of the nodes that it names."""
    for node in nodes:
        state = states[node.id]
        for dep in dict.fromkeys(node.depends_on):
            state.depend_on(states[dep])
        for router in node.handles_error:
            states[router].may_lead_to(state)
        for target in node.targets:
            state.may_lead_to(states[target])


def check_addition(nodes: Sequence[Node], states: Mapping[str, NodeState], *, by: str) -> None:
    """Raise ConfigurationError for nodes that cannot be added to a running plan. Changes nothing."""
    new = {node.id: node for node in nodes}
    for node in nodes:
        for name in node.targets:
            if name not in new:
                _check_target(node.id, name, states)
    _check_order(new, states, by)


def _check_target(node_id: str, name: str, states: Mapping[str, NodeState]) -> None:
    if states[name].status is not Status.WAITING:
        raise ConfigurationError(
            f"the added node {node_id!r} routes to {name!r}, which has started: choose nodes that wait"
        )
    if not states[name].routers:
        raise ConfigurationError(
            f"the added node {node_id!r} routes to {name!r}, which runs without a route: choose added nodes, "
            f"or nodes that the plan routes to"
        )


def _check_order(new: Mapping[str, Node], states: Mapping[str, NodeState], by: str) -> None:
    """Raise ConfigurationError for cycles among the new nodes and the waiting nodes."""
    order: TopologicalSorter[str] = TopologicalSorter()
    for state in states.values():
        if state.status is Status.WAITING:
            order.add(state.id, *(earlier.id for earlier in (*state.deps, *state.routers)))
    for node in new.values():
        order.add(node.id, *node.depends_on, *node.handles_error)
        for target in node.targets:
            order.add(target, node.id)
    try:
        order.prepare()
    except CycleError as cycle:
        round_trip = " -> ".join(cycle.args[1])
        raise ConfigurationError(f"{by!r} adds nodes that wait for each other: {round_trip}") from None


def not_led_to(state: NodeState) -> str:
    """The reason why no router chose a conditional node."""
    reasons = [_why_not(router) for router in state.routers[:MOST_NAMES]]
    return f"no node routed to it: {name_some(reasons, len(state.routers))}"


def _why_not(router: NodeState) -> str:
    stands = _in_words(router)
    if not router.routed_to:
        return stands
    targets = name_some(router.routed_to[:MOST_NAMES], len(router.routed_to))
    return f"{stands} and routed to {targets}"


def not_met(state: NodeState) -> str:
    """The reason why the trigger rule of a node does not hold. Every dependency has settled."""
    lacking = state.deps
    if state.rule == "all_success":
        lacking = [
            dep for dep in lacking if not (dep.status is Status.SUCCEEDED or state.id in dep.routed_to)
        ]
    words = name_some([_in_words(dep) for dep in lacking[:MOST_NAMES]], len(lacking))
    match state.rule:
        case "all_success":
            return f"not all of its dependencies succeeded: {words}"
        case "any_success":
            return f"none of its dependencies succeeded: {words}"
        case _:
            return f"none of its dependencies produced a value: {words}"


def _in_words(state: NodeState) -> str:
    return f"{state.id} {_WORDS[state.status]}"


_WORDS = {
    Status.SUCCEEDED: "succeeded",
    Status.FAILED: "failed",
    Status.SKIPPED: "was skipped",
}


def name_some(said: Sequence[str], total: int) -> str:
    """The first of `total` names or sentences, and how many more there are."""
    return ", ".join(said) + (f" and {total - len(said)} more" if total > len(said) else "")
