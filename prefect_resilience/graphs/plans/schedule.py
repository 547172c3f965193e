"""Which node of a plan may run now, and which is skipped: events in, decisions out.

The rules, for a node that waits:

- What others may lead to (their `on_success`, `on_failure`, `transitions`, its own `handles_error`) is
  *conditional*: it waits until one of its routers leads to it, and is skipped once all of them have settled
  and none did.
- Then its trigger rule is asked. A dependency that failed and led to the node counts as met: a handler may
  depend on what it handles.
- The rule is asked when every dependency has settled (`any_success`: as soon as one succeeded), so that
  neither what runs nor the reason of a skip depends on the order in which the others end. Only what led to
  a node first, of several at the same time, is a matter of chance, and with it the error that it sees.

Whatever a node waits for comes earlier in the graph, so that a plan without a cycle always comes to its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from prefect_resilience.errors.context import ErrorContext
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.graphs.plans.model import Node
from prefect_resilience.graphs.plans.seats import (
    Seat,
    Status,
    after_failure,
    after_success,
    check_addition,
    joined,
    link,
    not_led_to,
    not_met,
)


class Ended(NamedTuple):
    """How a node ended: whether it produced a value, its error if it did not, the nodes that it leads to."""

    produced: bool
    error: ErrorContext | None = None
    routed_to: tuple[str, ...] = ()


class Skip(NamedTuple):
    """A node that will not run, and why."""

    node: str
    reason: str


class Step(NamedTuple):
    """What an event makes of the plan: the nodes to run now, and those that never will."""

    ready: tuple[str, ...] = ()
    skipped: tuple[Skip, ...] = ()


class Schedule:
    """The course of a plan: `start`, then `settle` for every node that was ready, until it is `over`.

    A node is ready once or skipped once. Whoever is given ready nodes runs them, at the same time if he
    likes. Not for several threads at once. Mistakes in its use raise `ConfigurationError`.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        nodes = tuple(nodes)
        self._seats = {node.id: Seat(node.id, node.trigger_rule) for node in nodes}
        if len(self._seats) < len(nodes):
            raise ConfigurationError("two nodes of the plan have the same id")
        link(nodes, self._seats)
        self._open = len(nodes)
        self._running = 0
        self._started = False
        self._stopped: str | None = None

    @property
    def over(self) -> bool:
        """Whether every node has settled."""
        return not self._open

    def start(self) -> Step:
        """The nodes that wait for nothing."""
        if self._started:
            raise ConfigurationError("the plan has been started already")
        self._started = True
        return self._advance(list(self._seats.values()))

    def settle(self, node_id: str, ended: Ended) -> Step:
        """A ready node has ended for good."""
        seat = self._seat(node_id)
        if seat.status is not Status.RUNNING:
            raise ConfigurationError(f"node {node_id!r} cannot end, because it {_IS[seat.status]}")
        self._check_routes(seat, ended.routed_to)
        seat.routed_to = ended.routed_to
        self._running -= 1
        if ended.produced:
            self._settled(seat, Status.SUCCEEDED)
            seat.behind = after_success(seat.behind)
        else:
            self._settled(seat, Status.FAILED)
            seat.behind = after_failure(seat.behind, seat.id, ended.error)
        return self._advance(_told(seat))

    def add(self, nodes: Sequence[Node], *, by: str, before: Iterable[str] = ()) -> Step:
        """Nodes that `by` adds while the plan goes on; all of them come before the waiting nodes `before`.

        They may depend on any node, handle its error, and lead to each other or to conditional nodes that
        wait. One that neither depends on anything nor is led to is ready at once. A ConfigurationError
        refuses all of them.
        """
        if not self._started:
            raise ConfigurationError(f"{by!r} adds nodes before the plan has been started")
        before = tuple(dict.fromkeys(before))
        check_addition(nodes, self._seats, by=by, before=before)
        new = {node.id: Seat(node.id, node.trigger_rule) for node in nodes}
        self._seats.update(new)
        self._open += len(new)
        link(nodes, self._seats)
        for name in before:
            for seat in new.values():
                self._seats[name].depend_on(seat)
        if self._stopped is not None:
            return self.stop(self._stopped)
        return self._advance(list(new.values()))

    def stop(self, reason: str) -> Step:
        """Skip every node that has not started, now or later; those that run are still to be settled."""
        self._started = True
        self._stopped = reason
        skips: list[Skip] = []
        for seat in self._seats.values():
            if seat.status is Status.WAITING:
                self._settled(seat, Status.SKIPPED)
                skips.append(Skip(seat.id, reason))
        return Step(skipped=tuple(skips))

    def error_seen_by(self, node_id: str) -> ErrorContext | None:
        """The node's `state._last_error` when it was made ready or skipped: see `trails`."""
        return self._seat(node_id).seen

    def took_over(self, node_id: str) -> tuple[str, ...]:
        """Of the nodes that this one led to, those that ran or still may: a skipped one took nothing over."""
        led_to = self._seat(node_id).routed_to
        return tuple(name for name in led_to if self._seats[name].status is not Status.SKIPPED)

    def _seat(self, node_id: str) -> Seat:
        try:
            return self._seats[node_id]
        except KeyError:
            raise ConfigurationError(f"{node_id!r} is no node of the plan") from None

    def _check_routes(self, seat: Seat, routed_to: tuple[str, ...]) -> None:
        for name in routed_to:
            if self._seat(name) not in (seat.targets or ()):
                raise ConfigurationError(f"node {seat.id!r} leads to {name!r}, which the plan does not say")

    def _advance(self, told: list[Seat]) -> Step:
        """Decide about the nodes that were told something; a skip tells others in turn."""
        ready: list[str] = []
        skips: list[Skip] = []
        for seat in told:  # grows while it is walked through
            if seat.status is not Status.WAITING:
                continue
            reason = _decision(seat)
            if reason is None:
                continue
            _look_back(seat)
            if reason:
                self._settled(seat, Status.SKIPPED)
                skips.append(Skip(seat.id, reason))
                told.extend(_told(seat))
            else:
                seat.status = Status.RUNNING
                self._running += 1
                ready.append(seat.id)
        if self._open and not self._running:
            waiting = next(seat.id for seat in self._seats.values() if seat.status is Status.WAITING)
            raise ConfigurationError(f"node {waiting!r} waits for itself: the plan has a cycle")
        return Step(tuple(ready), tuple(skips))

    def _settled(self, seat: Seat, status: Status) -> None:
        seat.status = status
        self._open -= 1


_IS = {
    Status.WAITING: "has not been made ready",
    Status.SUCCEEDED: "has succeeded",
    Status.FAILED: "has failed",
    Status.SKIPPED: "was skipped",
}


def _told(seat: Seat) -> list[Seat]:
    """Tell those that wait for a settled node; the ones to decide about. All are told before any is asked."""
    produced = seat.status is Status.SUCCEEDED
    led_to = frozenset(seat.routed_to)
    for follower in seat.followers:
        follower.waits -= 1
        if produced or follower.id in led_to:
            follower.values += 1
    if seat.targets is None:
        return list(seat.followers)
    for target in seat.targets:
        target.routers_left -= 1
        if target.id in led_to:
            target.led_to_by(seat)
    return [*seat.followers, *seat.targets]


def _decision(seat: Seat) -> str | None:
    """None: it waits. "": it may run. Anything else: it is skipped, for this reason."""
    if seat.routers and not seat.led_by:
        return None if seat.routers_left else not_led_to(seat)
    if seat.rule == "any_success" and seat.values:
        return ""
    if seat.waits:
        return None
    if not seat.deps or seat.rule == "always":
        return ""
    needed = len(seat.deps) if seat.rule == "all_success" else 1
    return "" if seat.values >= needed else not_met(seat)


def _look_back(seat: Seat) -> None:
    """Join the trails of what led to a node and of what it depends on.

    What nothing led to passes on what its routers saw. Of what has not settled nothing is taken, and where
    one success is enough nothing of the others either: how far they are is a matter of chance.
    """
    if seat.routers and not seat.led_by:
        ways = seat.routers
    elif seat.rule == "any_success" and seat.values:
        ways = seat.led_by
    else:
        ways = [*seat.led_by, *seat.deps]
    seat.behind = joined(way.behind for way in ways)
    seat.seen = seat.behind.error if seat.behind else None
