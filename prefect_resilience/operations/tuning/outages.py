"""When a service was in an outage, found from the calls of all tasks behind it. Pure.

A hidden Markov model in continuous time with three states: the service is up, fails a part of its calls, or
fails all of them. How long it stays in a state is exponential, so a state may have changed in a long gap
between two calls, such as while a circuit was open, but hardly between two calls that follow each other. The
most likely sequence of states is found by Viterbi's algorithm; then the rates are estimated again from it,
until nothing changes. What the failures of an outage are evidence of must outweigh a price that grows with
the number of calls, so that failures by chance are not taken for an outage (less than one false alarm in 20
records).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress, pairwise

from prefect_resilience.operations.tuning.calls import ServiceCall, quantile, shares

ROUNDS = 4
LEAST_RUNS = 3
"""An outage is seen by this many runs at least; fewer may fail by chance, or for a reason of their own."""

FALSE_ALARMS = 0.05
UP, PARTLY, DEAD = range(3)
ALL_FAIL = 0.98
"""The share of calls that fail in an outage in which all of them seem to."""

USUAL_OUTAGE, USUAL_TIME_UP = 300.0, 8 * 3600.0
"""Seconds, as if one outage and one time without any of this length were known before the record."""

KIND_CHANGES = 0.1
"""How much more seldom an outage changes from failing all calls to failing a part of them than it ends."""

ALIKE = 10.0
"""As if so many failures in outages, and as many at other times, were known that do not differ in kind."""


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


@dataclass(frozen=True, slots=True)
class _Rates:
    """up, again, partly: the share of calls that fail while the service is up, of the retries of a run that
    has just failed then (it may fail for the run's own reason), and in outages that fail a part of the calls.
    outage, between: the mean seconds of an outage, and from its end to the next one. kinds: by category how
    much likelier it is for a failure in an outage than for another, as a logarithm."""

    up: float
    again: float = 0.5
    partly: float = 0.5
    outage: float = USUAL_OUTAGE
    between: float = USUAL_TIME_UP
    kinds: Mapping[str, float] = field(default_factory=dict[str, float])


def outages_of(
    calls: Sequence[ServiceCall], until: float, expected: Sequence[float] | None = None
) -> list[ServiceOutage]:
    """The outages among calls that are ordered by their start; `until` is the end of the record.

    expected: the share of each call's failures that something else explains, such as the load.
    """
    chosen = [call.succeeded or call.troubled for call in calls]
    relevant = list(compress(calls, chosen))
    if not relevant:
        return []
    explained = [0.0] * len(relevant) if expected is None else list(compress(expected, chosen))
    repeated = _repeated(relevant)
    failures = sum(not call.succeeded for call in relevant)
    # Before the first look most failures may belong to outages: begin with a low usual rate.
    rates = _Rates(up=min(0.3, max(0.002, 0.3 * failures / len(relevant))))
    spans: list[_Span] = []
    for _ in range(ROUNDS):
        found = _spans(relevant, repeated, explained, rates)
        if found == spans:
            break
        spans = found
        rates = _rates(relevant, repeated, spans)
    return [_outage(relevant, span, ALL_FAIL if span.dead else rates.partly, until) for span in spans]


def price_of_outage(calls: int) -> float:
    """The evidence that it takes to call something an outage, in nats."""
    return math.log(max(20.0, calls) / FALSE_ALARMS)


def _repeated(calls: Sequence[ServiceCall]) -> list[bool]:
    """Of each call, whether it is the retry of a run that has just failed."""
    failed: set[int] = set()
    repeated: list[bool] = []
    for call in calls:
        repeated.append(call.run in failed)
        if call.succeeded:
            failed.discard(call.run)
        else:
            failed.add(call.run)
    return repeated


@dataclass(frozen=True, slots=True)
class _Span:
    """The calls of an outage by their places, from its first failure to its last one. dead: in most of it
    all calls fail."""

    first: int
    last: int
    dead: bool


def _rates(calls: Sequence[ServiceCall], repeated: Sequence[bool], spans: Sequence[_Span]) -> _Rates:
    """What the calls outside and inside of the spans say."""
    tried, failed, partly = [0.5, 0.5], [0.0, 0.25], [2.0, 1.0]
    kinds: tuple[Counter[str], Counter[str]] = Counter(), Counter()
    following = iter([*spans, _Span(len(calls), len(calls), True)])
    span = next(following)
    for at, call in enumerate(calls):
        if at > span.last:
            span = next(following)
        inside = at >= span.first
        if not call.succeeded:
            kinds[inside][call.category] += 1
        if not inside:
            tried[repeated[at]] += 1
            failed[repeated[at]] += not call.succeeded
        elif not span.dead:
            partly[0] += 1
            partly[1] += not call.succeeded
    up = min(0.5, max(0.0005, (failed[0] + 0.5) / (tried[0] + 0.5)))
    down = sum(calls[one.last].start - calls[one.first].start for one in spans)
    whole = calls[-1].start - calls[0].start
    return _Rates(
        up=up,
        again=min(0.95, max(up, failed[1] / tried[1])),
        partly=min(0.85, max(2 * up, 0.25, partly[1] / partly[0])),
        outage=(down + USUAL_OUTAGE) / (len(spans) + 1),
        between=(max(0.0, whole - down) + USUAL_TIME_UP) / (len(spans) + 1),
        kinds=_kinds(*kinds),
    )


def _kinds(outside: Counter[str], inside: Counter[str]) -> dict[str, float]:
    together = outside + inside
    found: dict[str, float] = {}
    for category, number in together.items():
        alike = ALIKE * number / together.total()
        share_inside = (inside[category] + alike) / (inside.total() + ALIKE)
        found[category] = math.log(share_inside * (outside.total() + ALIKE) / (outside[category] + alike))
    return found


def _spans(
    calls: Sequence[ServiceCall], repeated: Sequence[bool], explained: Sequence[float], rates: _Rates
) -> list[_Span]:
    """The most likely outages, without those for which there is little evidence."""
    chances = _chances(calls, repeated, explained, rates)
    states = _most_likely(calls, chances, rates)
    price = price_of_outage(len(calls))
    spans: list[_Span] = []
    at = 0
    while at < len(calls):
        if states[at] == UP:
            at += 1
            continue
        first = at
        while at < len(calls) and states[at] != UP:
            at += 1
        failures = [place for place in range(first, at) if not calls[place].succeeded]
        if len({calls[place].run for place in failures}) < LEAST_RUNS:
            continue
        first, last = failures[0], failures[-1]
        evidence = sum(chances[place][states[place]] - chances[place][UP] for place in range(first, last + 1))
        if evidence > price:
            dead = 2 * sum(states[place] == DEAD for place in failures) > len(failures)
            spans.append(_Span(first, last, dead))
    return spans


Chances = tuple[float, float, float]
"""The logarithms of how likely a call's result is in each state."""


def _chances(
    calls: Sequence[ServiceCall], repeated: Sequence[bool], explained: Sequence[float], rates: _Rates
) -> list[Chances]:
    known: dict[tuple[str | None, float], Chances] = {}
    found: list[Chances] = []
    for call, is_retry, share in zip(calls, repeated, explained, strict=True):
        up = min(0.99, max(rates.again if is_retry else rates.up, share))
        kind = None if call.succeeded else call.category
        if (kind, up) not in known:
            known[kind, up] = _chances_of(kind, up, rates)
        found.append(known[kind, up])
    return found


def _chances_of(category: str | None, up: float, rates: _Rates) -> Chances:
    """category: of a failure, None for a success. up: the share of such calls that fail while it is up."""
    partly, dead = max(rates.partly, up), max(ALL_FAIL, up)
    if category is None:
        return math.log(1 - up), math.log(1 - partly), math.log(1 - dead)
    kind = rates.kinds.get(category, 0.0)
    return math.log(up), math.log(partly) + kind, math.log(dead) + kind


def _most_likely(calls: Sequence[ServiceCall], chances: Sequence[Chances], rates: _Rates) -> bytearray:
    """The states of the calls, by Viterbi's algorithm."""
    up, partly, dead = 0.0, -math.log(2), -math.log(2)
    came: list[bytearray] = [bytearray(len(calls)) for _ in range(3)]
    before = calls[0].start - 1.0
    for at, (call, chance) in enumerate(zip(calls, chances, strict=True)):
        gap = max(1e-3, call.start - before)
        before = call.start
        begins = math.log(-math.expm1(-gap / rates.between)) - math.log(2)
        ends, stays = math.log(-math.expm1(-gap / rates.outage)), -gap / rates.outage
        changes = ends + math.log(KIND_CHANGES)
        best, came[UP][at] = max((up, UP), (partly + ends, PARTLY), (dead + ends, DEAD))
        to_partly, came[PARTLY][at] = max((partly + stays, PARTLY), (up + begins, UP), (dead + changes, DEAD))
        to_dead, came[DEAD][at] = max((dead + stays, DEAD), (up + begins, UP), (partly + changes, PARTLY))
        up, partly, dead = best + chance[UP], to_partly + chance[PARTLY], to_dead + chance[DEAD]
    states = bytearray(len(calls))
    state = max((up, UP), (partly, PARTLY), (dead, DEAD))[1]
    for at in range(len(calls) - 1, -1, -1):
        states[at] = state
        state = came[state][at]
    return states


def _outage(calls: Sequence[ServiceCall], span: _Span, usual: float, until: float) -> ServiceOutage:
    first, last = span.first, span.last
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
