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

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from prefect_resilience.errors.context import ErrorContext
from prefect_resilience.graphs.plans.model import Node
from prefect_resilience.graphs.plans.node_states import (
    NodeState,
    Status,
    after_failure,
    after_success,
    check_addition,
    join_trails,
    link,
    not_led_to,
    not_met,
)


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
