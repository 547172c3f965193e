"""When a service was in an outage, found from the calls of all tasks behind it. Pure.

A model of two states, up and in an outage, each with its failure rate. The most likely sequence of states
is found by Viterbi's algorithm; then the rates are estimated again from it, until nothing changes. A change
of state has a price that grows with the number of calls, so that failures by chance are not taken for an
outage (less than one false alarm in 20 records). While a circuit is open there are no calls: then the end of
an outage is only known to lie between two of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from prefect_resilience.operations.tuning.calls import ServiceCall, quantile, shares

ROUNDS = 4
LEAST_RUNS = 3
"""An outage is seen by this many runs at least; fewer may fail by chance, or for a reason of their own."""

REPEATED = 0.25
"""The weight of a retry of a run that has just failed: it may fail for the run's own reason."""

FALSE_ALARMS = 0.05


@dataclass(frozen=True, slots=True)
class ServiceOutage:
    """One outage. It began between `start_low` and `start_high` and ended between `end_low` and `end_high`.

    rate: the share of the calls in it that failed. censored: it still went on at the end of the record.
    seen: the calls that reached the service in it; runs: the runs that saw a failure.
    unseen: the longest time in it without a call, such as while the circuit was open.
    """

    start_low: float
    start_high: float
    end_low: float
    end_high: float
    rate: float
    categories: tuple[tuple[str, float], ...]
    retry_after: float | None
    seen: int
    runs: int
    unseen: float
    censored: bool = False

    @property
    def start(self) -> float:
        return (self.start_low + self.start_high) / 2

    @property
    def end(self) -> float:
        return (self.end_low + self.end_high) / 2

    @property
    def length(self) -> float:
        return self.end - self.start


def outages_of(
    calls: Sequence[ServiceCall], until: float, expected: Sequence[float] | None = None
) -> list[ServiceOutage]:
    """The outages among calls that are ordered by their start; `until` is the end of the record.

    expected: the share of each call's failures that something else explains, such as the load.
    """
    chosen = [place for place, call in enumerate(calls) if call.succeeded or call.troubled]
    if not chosen:
        return []
    relevant = [calls[place] for place in chosen]
    explained = [0.0] * len(chosen) if expected is None else [expected[place] for place in chosen]
    weights = _weights(relevant)
    spans: list[tuple[int, int]] = []
    down = 0.7
    for _ in range(ROUNDS):
        up, down = _rates(relevant, spans, down)
        found = _spans(relevant, weights, explained, up, down)
        if found == spans:
            break
        spans = found
    return [_outage(relevant, first, last, down, until) for first, last in spans]


def _weights(calls: Sequence[ServiceCall]) -> list[float]:
    failed: set[int] = set()
    weights: list[float] = []
    for call in calls:
        weights.append(REPEATED if not call.succeeded and call.run in failed else 1.0)
        if call.succeeded:
            failed.discard(call.run)
        else:
            failed.add(call.run)
    return weights


def _rates(
    calls: Sequence[ServiceCall], spans: Sequence[tuple[int, int]], down: float
) -> tuple[float, float]:
    """The failure rates of the first calls of runs outside and inside of the spans."""
    failures = sum(not call.succeeded for call in calls)
    inside = sum(last - first + 1 for first, last in spans)
    failed_inside = sum(not calls[at].succeeded for first, last in spans for at in range(first, last + 1))
    outside = len(calls) - inside
    if not spans:
        # Before the first look most failures may belong to outages: begin with a low usual rate.
        return min(0.3, max(0.002, 0.3 * failures / len(calls))), down
    up = (failures - failed_inside + 0.5) / (outside + 1)
    return min(0.5, max(0.0005, up)), min(0.98, max(2 * up, 0.3, (failed_inside + 0.7) / (inside + 1)))


def price_of_outage(calls: int) -> float:
    """The evidence that it takes to call something an outage, in nats."""
    return math.log(max(20.0, calls) / FALSE_ALARMS)


def _spans(
    calls: Sequence[ServiceCall], weights: Sequence[float], explained: Sequence[float], up: float, down: float
) -> list[tuple[int, int]]:
    """The spans of calls (first and last failure) that are most likely outages."""
    price = price_of_outage(len(calls))
    spans: list[tuple[int, int]] = []
    score, best, began, best_at = 0.0, 0.0, 0, -1
    for at, call in enumerate(calls):
        usual = min(down, max(up, explained[at]))
        if call.succeeded:
            score += math.log((1 - down) / (1 - usual))
        else:
            if score <= 0:
                score, best, began = 0.0, 0.0, at
            score += math.log(down / usual) * weights[at]
            if score > best:
                best, best_at = score, at
        if score <= 0 or best - score > price:
            if best > price:
                spans.append((began, best_at))
            score, best = 0.0, 0.0
    if best > price:
        spans.append((began, best_at))
    return [
        (first, last)
        for first, last in spans
        if len({calls[at].run for at in range(first, last + 1) if not calls[at].succeeded}) >= LEAST_RUNS
    ]


def _outage(calls: Sequence[ServiceCall], first: int, last: int, usual: float, until: float) -> ServiceOutage:
    inside = calls[first : last + 1]
    failures = [call for call in inside if not call.succeeded]
    asked = sorted(call.retry_after for call in failures if call.retry_after is not None)
    before = calls[first - 1].start if first else inside[0].start
    # What was asked again only after the record's end may have been well long before.
    after = next((call.start for call in calls[last + 1 :]), None)
    gaps = [later.start - earlier.start for earlier, later in pairwise(inside)]
    # It begins and ends with a failure because we looked for them: only the calls between say how often.
    rate = (len(failures) - 2 + usual) / (len(inside) - 1) if len(failures) < len(inside) else 1.0
    return ServiceOutage(
        start_low=min(before, inside[0].start),
        start_high=inside[0].start,
        end_low=inside[-1].start,
        end_high=max(until, inside[-1].start) if after is None else after,
        rate=rate,
        categories=shares(call.category for call in failures),
        retry_after=quantile(asked, 0.5) if 2 * len(asked) >= len(failures) else None,
        seen=len(inside),
        runs=len({call.run for call in failures}),
        unseen=max(gaps, default=0.0),
        censored=after is None,
    )
