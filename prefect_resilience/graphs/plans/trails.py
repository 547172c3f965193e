"""Which error a node sees: that of a failure on the way to it which no success has followed since.

A failure is *healed* for a node when something that succeeded lies on a way from the failed node to it: what
a handler has put right does not concern what comes after the handler, even if that waited for the failed
node too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from prefect_resilience.errors.context import ErrorContext

T = TypeVar("T")

MOST = 16
"""A trail remembers this many failures of each kind, the nearest first, so that long plans stay linear."""


class Trail(NamedTuple):
    """What comes along with the ways that lead to a node. The keys are ids of nodes that failed.

    open: the errors that are told on; the first one is seen.
    unhealed: every failure on the way that no success has followed.
    healed: every one that a success has followed.
    """

    open: Mapping[str, ErrorContext]
    unhealed: Mapping[str, None]
    healed: Mapping[str, None]

    @property
    def error(self) -> ErrorContext | None:
        """The error that is seen from here."""
        return next(iter(self.open.values()), None)


def joined(trails: Iterable[Trail | None]) -> Trail | None:
    """The trail to a node at which several ways meet; None when nothing failed on any of them."""
    told = [trail for trail in trails if trail is not None]
    if len(told) < 2:
        return told[0] if told else None
    healed = _merged([trail.healed for trail in told])
    return Trail(
        _without(healed, _merged([trail.open for trail in told])),
        _without(healed, _merged([trail.unhealed for trail in told])),
        healed,
    )


def after_success(trail: Trail | None) -> Trail | None:
    """The trail behind a node that succeeded: all is healed."""
    if trail is None or not (trail.open or trail.unhealed):
        return trail
    return Trail({}, {}, _merged([trail.unhealed, trail.healed]))


def after_failure(trail: Trail | None, node_id: str, error: ErrorContext | None) -> Trail:
    """The trail behind a node that failed: its own error is what is seen from here."""
    errors = {} if error is None else {node_id: error}
    if trail is None:
        return Trail(errors, {node_id: None}, {})
    return Trail(errors, _merged([{node_id: None}, trail.unhealed]), trail.healed)


def _merged(kinds: Sequence[Mapping[str, T]]) -> Mapping[str, T]:
    """All of them, in this order, up to the bound; the first one itself where nothing is added to it."""
    first = kinds[0]
    found = dict(first)
    for more in kinds[1:]:
        if len(found) >= MOST:
            break
        if more is not first:
            for name, value in more.items():
                found.setdefault(name, value)
    if len(found) == len(first):
        return first
    return found if len(found) <= MOST else dict(list(found.items())[:MOST])


def _without(healed: Mapping[str, None], names: Mapping[str, T]) -> Mapping[str, T]:
    if not healed or healed.keys().isdisjoint(names):
        return names
    return {name: value for name, value in names.items() if name not in healed}
