"""How the processes of a fleet share the work of counting, so that a circuit's store has a bounded load.

Pure functions of the document, the store's clock and a random number `draw` in [0, 1).

**Turns.** Time is divided into turns of SLOT seconds. In a small fleet every process counts in every turn,
and merges at its end. In a larger one a process counts in a turn with the probability `share`, which is drawn
before the turn begins and does not depend on any outcome: what is counted is a fair sample, and the window's
rate has no bias. All processes together then merge MERGES times a second, whatever the size of the fleet.

**The share.** Each process that merges a turn drawn with the probability p adds 1 / p to the document's
`demand` (Horvitz and Thompson, 1952), a sum in which a weight w of age t counts as w * exp(-t / MEMORY). So
demand / MEMORY estimates how many turns a second would be merged if no process sat any out, and

    share = min(1, MERGES / (demand / MEMORY))

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

from prefect_resilience.guards.circuits.document import CircuitDocument

Demand = dict[str, float]
"""{"sum": the decayed sum of the weights, "at": its time by the store's clock}"""

SLOT = 0.5
"""Seconds that a turn lasts."""

MERGES = 12.0
"""Merges a second of a whole fleet. Each costs the store three operations."""

ASKS = 48.0
"""Processes of a fleet that ask for a probe in the first second."""

LOOKS = 12.0
"""Processes of a fleet that look in the first second after LOOK_AFTER."""

MEMORY = 5.0
"""Seconds. A fleet counts all turns until MERGES * MEMORY of them were merged in about this time."""

PUBLISHED = ("generation", "reason", "retry_at", "leases")
"""A change of these fields is published at once."""

REPEAT = 2.5
LOOK_AFTER = 3.5
LOOK_WITHIN = 10.0
"""Seconds without news after which every process looks."""

CLEARLY = 1.5
"""The factor by which the share must change to be published."""

FAILURES_AT_ONCE = 10
FAILURES_PER_SECOND = 2.0
"""Of one process: how many failures it merges at once, each alone. More of them wait for the turn's end."""


def joined(document: CircuitDocument, weight: float, now: float) -> CircuitDocument:
    """`document` after a merge of this weight."""
    old: Demand | None = document["demand"]
    if old is None:
        return {**document, "demand": {"sum": weight, "at": now}}
    return {**document, "demand": {"sum": _decayed(old, now) + weight, "at": now}}


def resumed(document: CircuitDocument, now: float) -> CircuitDocument:
    """`document` when it has closed: nothing was merged meanwhile, but the fleet is as large as before."""
    demand = document["demand"]
    return document if demand is None else {**document, "demand": {**demand, "at": now}}


def share_of(document: CircuitDocument, now: float) -> float:
    """The probability with which a process counts in a turn, at `now`."""
    demand: Demand | None = document["demand"]
    if document["state"] != "closed" or demand is None:
        return document["share"]
    return MERGES * MEMORY / max(MERGES * MEMORY, _decayed(demand, now))


def _decayed(demand: Demand, now: float) -> float:
    return demand["sum"] * math.exp(-max(0.0, now - demand["at"]) / MEMORY)


def announced(before: CircuitDocument, after: CircuitDocument, now: float) -> tuple[CircuitDocument, bool]:
    """`after` with the share and the time of its news, and whether to publish it."""
    share = share_of(after, now)
    if max(share, after["share"]) < CLEARLY * min(share, after["share"]):
        share = after["share"]
    changed = any(after[name] != before[name] for name in PUBLISHED) or share != before["share"]
    silent = not 0 <= now - after["published_at"] < REPEAT
    # In a large fleet the first process that looks publishes, so that the others need not look.
    if changed or (silent and (after != before or share < 1)):
        return {**after, "share": share, "published_at": now}, True
    return after, False


def fleet_of(share: float) -> float:
    """The number of processes that are busy, by the share."""
    return MERGES * SLOT / share


def turns_until(share: float, draw: float) -> int:
    """The number of turns that a process sits out before the one in which it counts (geometric)."""
    return 0 if share >= 1 else int(math.log1p(-draw) / math.log1p(-share))


def asks_in(share: float, draw: float) -> float:
    """Seconds from the moment when a probe is free until this process asks for it."""
    return 0.0 if share >= 1 else _first_few(fleet_of(share) / ASKS, draw)


def looks_in(share: float, draw: float) -> float:
    """Seconds without news after which this process looks."""
    return min(LOOK_WITHIN, LOOK_AFTER + _first_few(fleet_of(share) / LOOKS, draw))


def polls_in(share: float, interval: float) -> float:
    """Seconds between two looks of a process that gets no news."""
    return interval if share >= 1 else max(interval, min(LOOK_WITHIN, fleet_of(share) / ASKS))


def _first_few(seconds: float, draw: float) -> float:
    """A time t by which the part (2**t - 1) / `seconds` of the fleet has come: few at first."""
    return math.log2(1 + draw * seconds)
