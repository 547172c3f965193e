"""When one process counts and merges: its turns, and the failures that it merges at once."""

from __future__ import annotations

import random
from dataclasses import dataclass

from prefect_resilience.guards.circuits import sharing
from prefect_resilience.guards.circuits.machine import CircuitDocument, Event, Record


@dataclass(frozen=True, slots=True)
class Turn:
    """When this process counts, by `monotonic()`. `share` is the probability with which it was drawn.

    Before `begins` it sits out (`counts` is False): its outcomes are dropped.
    """

    share: float
    begins: float
    ends: float
    counts: bool


def turn_of(share: float, at: float, interval: float) -> Turn:
    """The next turn in which this process counts, drawn at the time `at`."""
    if share >= 1:
        return Turn(1.0, at, at + interval, counts=True)
    lasts = max(sharing.SLOT, interval)
    begins = at + lasts * (sharing.turns_until(share, random.random()) + random.random())
    return Turn(share, begins, begins + lasts, counts=False)


def begun(turn: Turn, at: float) -> Turn:
    """The turn at the time `at`, after its beginning. If that is long ago, there was no call: draw again."""
    lasts = turn.ends - turn.begins
    if at < turn.ends or random.random() < turn.share:
        return Turn(turn.share, at, at + lasts, counts=True)
    return turn_of(turn.share, at, lasts)


def is_counted(event: Event) -> bool:
    """Whether `event` has the outcomes of a turn, not of a probe."""
    return isinstance(event, Record) and event.owner is None


def thinned(
    batch: list[Event], share: float, document: CircuitDocument, now: float
) -> tuple[list[Event], float]:
    """`batch`, drawn with the probability `share`, as a draw with the document's share if that is smaller."""
    wanted = sharing.share_of(document, now)
    if wanted >= share or document["state"] != "closed":
        return batch, share
    if random.random() * share < wanted:
        return batch, wanted
    return [event for event in batch if not is_counted(event)], wanted


class FailureBudget:
    """How many failures may be merged at once, each alone: a token bucket. For one thread at a time."""

    def __init__(self) -> None:
        self._left = float(sharing.FAILURES_AT_ONCE)
        self._at = 0.0

    def take(self, turn: Turn, now: float) -> bool:
        """Whether a failure may be merged at `now`; in a large fleet one in a turn."""
        most = sharing.FAILURES_AT_ONCE if turn.share >= 1 else 1
        self._left = min(most, self._left + max(0.0, now - self._at) * sharing.FAILURES_PER_SECOND)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
