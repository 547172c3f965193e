"""Decides which nodes of a plan may run and which are skipped.

The rules, for a node that waits:

- A node that other nodes can route to (their `on_success`, `on_failure`, `transitions`, its own
  `handles_error`) is *conditional*. It waits until one of these routers chooses it, and is skipped when all
  routers have settled and none chose it.
- Then its trigger rule is checked. A dependency that failed and routed to the node counts as met: a handler
  may depend on the node that it handles.
- The rule is checked when every dependency has settled (`any_success`: as soon as one succeeded). So the
  order in which nodes end changes neither the nodes that run nor the reason of a skip. It only changes which
  of several routers is the first, and so which error the node sees.

A node waits only for earlier nodes of the graph, so a plan without a cycle always ends.
"""

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


class Ended(NamedTuple):
    """How a node ended: whether it produced a value, its error if not, and the nodes it routes to."""

    produced: bool
    error: ErrorContext | None = None
    routed_to: tuple[str, ...] = ()


class Skip(NamedTuple):
    """A node that will not run, and the reason."""

    node: str
    reason: str


class ScheduleStep(NamedTuple):
    """The effect of an event: the nodes to run now, and the nodes that will never run."""

    ready: tuple[str, ...] = ()
    skipped: tuple[Skip, ...] = ()


class Schedule:
    """The course of a plan: `start`, then `settle` for every node that was ready.

    The nodes name each other correctly and have no cycle: reading has checked this. A node is ready once or
    skipped once. The caller runs ready nodes in any order or in parallel. Not thread-safe.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        nodes = tuple(nodes)
        self._states = {node.id: NodeState(node.id, node.trigger_rule) for node in nodes}
        link(nodes, self._states)
        self._stopped: str | None = None

    def start(self) -> ScheduleStep:
        """The nodes that wait for nothing."""
        return self._advance(list(self._states.values()))

    def settle(self, node_id: str, ended: Ended) -> ScheduleStep:
        """A ready node has ended, after all its retries."""
        state = self._states[node_id]
        state.routed_to = ended.routed_to
        if ended.produced:
            state.status = Status.SUCCEEDED
            state.trail = after_success(state.trail)
        else:
            state.status = Status.FAILED
            state.trail = after_failure(state.trail, state.id, ended.error)
        return self._advance(_update_followers(state))

    def add(self, nodes: Sequence[Node], *, by: str) -> ScheduleStep:
        """Add nodes while the plan runs, on behalf of `by`.

        They may depend on any node, handle its error, and route to each other or to waiting conditional
        nodes. A node without dependencies and routers is ready at once. If one of them cannot be added any
        more, none is added and ConfigurationError is raised.
        """
        check_addition(nodes, self._states, by=by)
        new = {node.id: NodeState(node.id, node.trigger_rule) for node in nodes}
        self._states.update(new)
        link(nodes, self._states)
        if self._stopped is not None:
            return self.stop(self._stopped)
        return self._advance(list(new.values()))

    def stop(self, reason: str) -> ScheduleStep:
        """Skip every node that has not started, now or later. Running nodes must still be settled."""
        self._stopped = reason
        skips: list[Skip] = []
        for state in self._states.values():
            if state.status is Status.WAITING:
                state.status = Status.SKIPPED
                skips.append(Skip(state.id, reason))
        return ScheduleStep(skipped=tuple(skips))

    def error_seen_by(self, node_id: str) -> ErrorContext | None:
        """The node's `state._last_error` at the time it became ready or was skipped."""
        return self._states[node_id].last_error

    def took_over(self, node_id: str) -> tuple[str, ...]:
        """The nodes that this one routed to and that were not skipped."""
        led_to = self._states[node_id].routed_to
        return tuple(name for name in led_to if self._states[name].status is not Status.SKIPPED)

    def _advance(self, told: list[NodeState]) -> ScheduleStep:
        """Decide about these nodes. A skip adds the nodes that wait for the skipped node."""
        ready: list[str] = []
        skips: list[Skip] = []
        for state in told:  # grows during the loop
            if state.status is not Status.WAITING:
                continue
            reason = _decision(state)
            if reason is None:
                continue
            _look_back(state)
            if reason:
                state.status = Status.SKIPPED
                skips.append(Skip(state.id, reason))
                told.extend(_update_followers(state))
            else:
                state.status = Status.RUNNING
                ready.append(state.id)
        return ScheduleStep(tuple(ready), tuple(skips))


def _update_followers(state: NodeState) -> list[NodeState]:
    """Update the nodes that wait for a settled node and return them. All are updated before any decision."""
    produced = state.status is Status.SUCCEEDED
    led_to = frozenset(state.routed_to)
    for follower in state.followers:
        follower.waits -= 1
        if produced or follower.id in led_to:
            follower.values += 1
    for target in state.targets:
        target.routers_left -= 1
        if target.id in led_to:
            target.routed_by.append(state)
    return [*state.followers, *state.targets]


def _decision(state: NodeState) -> str | None:
    """None if the node waits, "" if it may run, else the reason to skip it."""
    if state.routers and not state.routed_by:
        return None if state.routers_left else not_led_to(state)
    if state.rule == "any_success" and state.values:
        return ""
    if state.waits:
        return None
    if not state.deps or state.rule == "always":
        return ""
    needed = len(state.deps) if state.rule == "all_success" else 1
    return "" if state.values >= needed else not_met(state)


def _look_back(state: NodeState) -> None:
    """Join the trails of the routers that chose a node and of its dependencies.

    A node that no router chose passes on the trails of its routers. Dependencies of `any_success` are left
    out, because timing decides which of them have settled.
    """
    if state.routers and not state.routed_by:
        ways = state.routers
    elif state.rule == "any_success" and state.values:
        ways = state.routed_by
    else:
        ways = [*state.routed_by, *state.deps]
    state.trail = join_trails(way.trail for way in ways)
    state.last_error = state.trail.error if state.trail else None


# -- the state of each node, its links, added nodes, and the reasons of skips

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
