"""How the processes of a fleet share the work of counting, so that a circuit's store has a bounded load.

**The fleet.** A process that merges adds the seconds since its last merge, at most MEMORY, to the document's
`demand`: a sum in which a weight w of age t counts as w * exp(-t / MEMORY). So demand / MEMORY estimates the
number of busy processes.

**Turns.** A process merges what it counted at the end of its turn. In a fleet of at most FEW processes a turn
lasts `sync_interval`. In a larger one it lasts longer, so that all processes together merge MERGES times a
second. The longest turn is enough for COUNTED processes, and these count every call.

**The share.** In a still larger fleet a process counts in a turn with the probability

    share = COUNTED / (demand / MEMORY)

The turn is drawn before it begins and does not depend on any outcome: what is counted is a fair sample, and
the window's rate has no bias. The weight of such a turn is divided by its share (Horvitz and Thompson, 1952).
A process that finds a smaller share in the document than the one it was drawn with gives its counts up with
the probability that corrects the difference, so that a fleet that starts at once finds its share within a
few merges.

**News** is published when the state, a lease or the share changes, and every REPEAT seconds while there is
anything to merge. A process without news for a while loads the document. The time of that, and the time when
it asks for a probe, are drawn so that a few processes of a fleet come first, and more and more until one has
succeeded (`asks_in`, `looks_in`): the others get the news.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from prefect_resilience.guards.circuits.machine import CircuitDocument, Event, Record

MERGES = 12.0
"""Merges a second of a whole fleet. Each costs the store three operations."""

FEW = 6.0
"""Processes that merge as often as their policy says."""

LONGEST_TURN = 5.0
COUNTED = MERGES * LONGEST_TURN
"""Processes up to which every call is counted."""

ASKS = 48.0
"""Processes of a fleet that ask for a probe in the first second."""

LOOKS = 12.0
"""Processes of a fleet that look in the first second after LOOK_AFTER."""

MEMORY = 5.0
PUBLISHED = ("generation", "reason", "retry_at", "leases")
"""A change of these fields is published at once."""

REPEAT = 2.5
LOOK_AFTER = 3.5
LOOK_WITHIN = 10.0
"""Seconds without news after which every process looks."""

CLEARLY = 1.5
"""The factor by which the share must change to be published."""

FAILURES_AT_ONCE = 10.0
"""Of one process in a small fleet: how many failures it merges at once, each alone; in a larger one fewer.
The others wait for the turn's end."""


def add_weight(document: CircuitDocument, weight: float, now: float) -> CircuitDocument:
    """`document` after a merge of this weight."""
    return {**document, "demand": {"sum": _demand(document, now) + weight, "at": now}}


def fleet_of(document: CircuitDocument, now: float) -> float:
    """The number of busy processes; while the circuit is not closed, as it was before."""
    demand = document["demand"]
    return (
        _demand(document, now if demand is None or document["state"] == "closed" else demand["at"]) / MEMORY
    )


def share_of(document: CircuitDocument, now: float) -> float:
    """The probability with which a process counts in a turn, at `now`."""
    if document["state"] != "closed" or document["demand"] is None:
        return document["share"]
    return COUNTED / max(COUNTED, fleet_of(document, now))


def _demand(document: CircuitDocument, now: float) -> float:
    demand: dict[str, float] = document["demand"] or {"sum": 0.0, "at": now}
    return demand["sum"] * math.exp(-max(0.0, now - demand["at"]) / MEMORY)


def announce(
    before: CircuitDocument, after: CircuitDocument, weight: float, now: float
) -> tuple[CircuitDocument, bool]:
    """`after` a merge of this weight, with the share and the time of its news, and whether to publish it."""
    if weight:
        after = add_weight(after, weight, now)
    if before["state"] != "closed" and after["state"] == "closed" and after["demand"]:
        # Nothing was merged meanwhile, but the fleet is as large as before.
        after = {**after, "demand": {**after["demand"], "at": now}}
    share = share_of(after, now)
    if share < 1 and max(share, after["share"]) < CLEARLY * min(share, after["share"]):
        share = after["share"]
    changed = any(after[name] != before[name] for name in PUBLISHED) or share != before["share"]
    silent = not 0 <= now - after["published_at"] < REPEAT
    # In a large fleet the first process that looks publishes, so that the others need not look.
    if changed or (silent and (after != before or fleet_of(after, now) > FEW)):
        return {**after, "share": share, "published_at": now}, True
    return after, False


def asks_in(fleet: float, draw: float) -> float:
    """Seconds from the moment when a probe is free until this process asks for it; `draw` is in [0, 1)."""
    return _first_few(max(0.0, fleet - FEW) / ASKS, draw)


def looks_in(fleet: float, draw: float) -> float:
    """Seconds without news after which this process looks."""
    return min(LOOK_WITHIN, LOOK_AFTER + _first_few(max(FEW, fleet) / LOOKS, draw))


def polls_in(fleet: float, interval: float) -> float:
    """Seconds between two looks of a process that gets no news."""
    return max(interval, min(LOOK_WITHIN, max(0.0, fleet - FEW) / ASKS))


def _first_few(seconds: float, draw: float) -> float:
    """A time t by which the part (2**t - 1) / `seconds` of the fleet has come: few at first."""
    return math.log2(1 + draw * seconds)


@dataclass(frozen=True, slots=True)
class Turn:
    """When this process counts, by `monotonic()`. `share` is the probability with which it was drawn.

    Before `begins` it sits out (`counts` is False): its outcomes are dropped. `is_prompt`: failures may be
    merged before it ends. Of a fleet that has just grown they would come before the successes of many turns.
    """

    share: float
    begins: float
    ends: float
    counts: bool
    is_prompt: bool = True

    @property
    def due(self) -> float:
        """When it ends, or begins: nothing happens before."""
        return self.ends if self.counts else self.begins

    def goes_on(self, share: float, at: float, is_news: bool) -> bool:
        """Whether it goes on after this process, or another one (news), wrote a document with this share.

        It is counted to its end, whatever its outcomes: otherwise the sample would depend on them. A smaller
        share draws it again.
        """
        if not self.counts:
            return self.share == share
        return random.random() * self.share < share and (is_news or (self.share < 1 and at < self.ends))


def turn_of(share: float, fleet: float, at: float, interval: float) -> Turn:
    """The next turn in which this process counts, drawn at the time `at`."""
    # Processes that began at the same time do not merge at the same time for ever.
    lasts = min(LONGEST_TURN, fleet / MERGES) * random.uniform(0.75, 1.25) if fleet > FEW else 0.0
    lasts = max(interval, lasts)
    if share >= 1:
        return Turn(1.0, at, at + lasts, counts=True)
    # The number of turns that it sits out has a geometric distribution.
    skipped = int(math.log1p(-random.random()) / math.log1p(-share))
    begins = at + lasts * (skipped + random.random())
    return Turn(share, begins, begins + lasts, counts=False)


def turn_at(turn: Turn, at: float) -> Turn:
    """The turn at the time `at`, after its beginning. If that is long ago, there was no call: draw again."""
    lasts = turn.ends - turn.begins
    if at < turn.ends or random.random() < turn.share:
        return Turn(turn.share, at, at + lasts, counts=True)
    return turn_of(turn.share, 0.0, at, lasts)


def is_counted(event: Event) -> bool:
    """Whether `event` has the outcomes of a turn, not of a probe."""
    return isinstance(event, Record) and event.owner is None


def thin(
    batch: list[Event], share: float, document: CircuitDocument, now: float
) -> tuple[list[Event], float]:
    """`batch`, drawn with the probability `share`, as a draw with the document's share if that is smaller."""
    wanted = share_of(document, now)
    if wanted >= share or document["state"] != "closed":
        return batch, share
    if random.random() * share < wanted:
        return batch, wanted
    return [event for event in batch if not is_counted(event)], wanted


class FailureBudget:
    """How many failures may be merged at once, each alone: a token bucket. For one thread at a time.

    All processes together merge MERGES of them a second, besides those at the ends of turns.
    """

    def __init__(self) -> None:
        self._left = FAILURES_AT_ONCE
        self._at = 0.0

    def take(self, fleet: float, now: float) -> bool:
        """Whether a failure may be merged at `now`."""
        most = max(1.0, FAILURES_AT_ONCE * FEW / max(FEW, fleet))
        earned = max(0.0, now - self._at) * MERGES / min(max(FEW, fleet), COUNTED)
        self._left, self._at = min(most, self._left + earned), now
        if self._left < 1:
            return False
        self._left -= 1
        return True
