"""Whether a service fails because of its load, and at which load. Pure.

A service that is dead, or that fails a share of its calls, does so at any load. One with a limit answers as
many calls a second as it can; above that, the share of successes falls with the load L as (limit / L) **
power. The power is 1 for a limit of calls, and 2 if calls that fail cost as much as others.
Whether it has one is a question of likelihoods: the limit explains the failures of the whole record, or
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from prefect_resilience.operations.tuning.calls import ServiceCall
from prefect_resilience.operations.tuning.outages import ServiceOutage, price_of_outage

CLEARLY = 6.0
"""The load explains the failures if that is e**6 (400) times as likely as that it does not."""

POWERS = (1, 2)
SPANS = (1.0, 2.0, 5.0, 10.0, 20.0)
LEAST_FAILURES = 30
UNUSED = -2
Table = dict[int, tuple[int, int]]
"""By the number of calls in a span before a call, itself included: such calls, and those that failed."""


@dataclass(frozen=True, slots=True)
class LoadLimit:
    """The load in calls a second up to which the service answers, and how it fails above it.

    span: the seconds over which the load is counted.
    """

    per_second: float
    power: int
    span: float

    def answers(self, load: float) -> float:
        """The share of calls that succeed at a load."""
        return 1.0 if load <= self.per_second else (self.per_second / load) ** self.power


def load_limit(calls: Sequence[ServiceCall], outages: Sequence[ServiceOutage]) -> LoadLimit | None:
    """The limit that explains the failures of a service; None if they do not depend on the load.

    Both are in the order of their starts. Retries count as load, but only first calls as failures: a run
    that fails for a reason of its own has many retries, and so a load, around its failures.
    """
    relevant = [call for call in calls if call.succeeded or call.troubled]
    states = [place if place is not None else -1 for place in _places(relevant, outages)]
    partial = frozenset(place for place, one in enumerate(outages) if one.rate < 1)
    price = price_of_outage(len(relevant)) * len(partial)
    first = [call.nth == 0 for call in relevant]
    states = [state if is_first else UNUSED for state, is_first in zip(states, first, strict=True)]
    everywhere = _best(relevant, [state == -1 or state in partial for state in states])
    apart = _of_rates(relevant, states, partial)
    if everywhere and everywhere[0] - (sum(apart.values()) - price) > CLEARLY:
        return LoadLimit(*everywhere[1:])
    return None


def loads_before(calls: Sequence[ServiceCall], span: float) -> list[int]:
    """For each call the calls in the seconds before it, itself included."""
    first = 0
    found: list[int] = []
    for place, call in enumerate(calls):
        while calls[first].start < call.start - span:
            first += 1
        found.append(place - first + 1)
    return found


def _places(calls: Sequence[ServiceCall], outages: Sequence[ServiceOutage]) -> Iterable[int | None]:
    at = 0
    for call in calls:
        while at < len(outages) and call.start > outages[at].end_low:
            at += 1
        yield at if at < len(outages) and call.start >= outages[at].start_high else None


def _best(calls: Sequence[ServiceCall], taken: Sequence[bool]) -> tuple[float, float, int, float] | None:
    """The likelihood of the best limit for the calls that are taken, with the limit, its power and span."""
    if (
        sum(not call.succeeded for call, is_taken in zip(calls, taken, strict=True) if is_taken)
        < LEAST_FAILURES
    ):
        return None
    found: list[tuple[float, float, int, float]] = []
    for span in SPANS:
        table: Table = {}
        for call, number, is_taken in zip(calls, loads_before(calls, span), taken, strict=True):
            if is_taken:
                of, failed = table.get(number, (0, 0))
                table[number] = (of + 1, failed + (not call.succeeded))
        highest = max(table)
        for step in range(80):
            limit = highest * 1.06**-step
            found += [(_of_limit(table, limit, power), limit / span, power, span) for power in POWERS]
    return max(found)


def _of_limit(table: Table, limit: float, power: int) -> float:
    below = [(of, failed) for number, (of, failed) in table.items() if number <= limit]
    of, failed = sum(one[0] for one in below), sum(one[1] for one in below)
    usual = (failed + 0.5) / (of + 1)
    return sum(
        _chance(max(usual, 1 - min(1.0, (limit / number) ** power)), failed, of)
        for number, (of, failed) in table.items()
    )


def _of_rates(
    calls: Sequence[ServiceCall], states: Sequence[int], partial: frozenset[int]
) -> dict[int, float]:
    """By outage (-1: up) the likelihood of its calls if they fail at a rate that does not change."""
    counts: dict[int, tuple[int, int]] = {}
    for call, state in zip(calls, states, strict=True):
        if state == -1 or state in partial:
            of, failed = counts.get(state, (0, 0))
            counts[state] = (of + 1, failed + (not call.succeeded))
    return {state: _chance(failed / of, failed, of) for state, (of, failed) in counts.items()}


def _chance(share: float, failed: int, of: int) -> float:
    share = min(0.995, max(0.0005, share))
    return failed * math.log(share) + (of - failed) * math.log(1 - share)
