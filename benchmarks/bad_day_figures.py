"""What a day came to: the columns of the table, out of what the callers and the services wrote down."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.bad_day_calls import Attempt, Seen
from benchmarks.bad_day_script import SERVICES, Call, Form, Span, is_dead, returns
from benchmarks.bad_day_services import SECOND, Request

END = math.inf


@dataclass
class Round:
    """One day as one rival lived it. `begins` is in seconds since the epoch, `load` the machine's."""

    rival: str
    begins: float
    calls: Sequence[Call]
    seen: Seen
    requests: Sequence[Request]
    load: float
    has_circuits: bool


@dataclass(frozen=True)
class Figures:
    """One row. Shares are in percent, times in seconds; None where there is nothing to be counted."""

    rival: str
    success: float
    by_own: float
    by_second: float
    hit: int
    recovered: float | None
    dead_asked: int
    dead_reached: int
    dead: float | None
    opened_asked: int
    opened_reached: int
    after_opening: float | None
    wasted: float
    recovery_p95: float | None
    load_at_return: float
    has_circuits: bool
    openings: int
    rate: float
    late_p95: float
    machine_load: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def percentile(values: Iterable[float], share: float) -> float | None:
    """The smallest value that at least `share` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def percent(part: float, whole: float) -> float | None:
    return 100 * part / whole if whole else None


@dataclass
class Fate:
    """What became of one call: its attempts in their order."""

    attempts: list[Attempt] = field(default_factory=list[Attempt])

    @property
    def failed_at(self) -> float | None:
        """When its own service first failed it."""
        return min((a.ended for a in self.attempts if not a.ok and a.asked != SECOND), default=None)

    @property
    def answer(self) -> Attempt | None:
        return next((attempt for attempt in self.attempts if attempt.ok), None)


def figures(day: Round, form: Form) -> Figures:
    """The row of one rival."""
    fates = fates_of(day)
    answered = [fate.answer for number, fate in fates.items() if day.seen.outcomes.get(number)]
    second = sum(answer is not None and answer.asked == SECOND for answer in answered)
    hit = {number: fate for number, fate in fates.items() if fate.failed_at is not None}
    spans = recoveries(hit, day.seen.outcomes)
    refusing = open_spans(day) if day.has_circuits else None
    dead_asked, dead_reached = at_dead_services(day, form)
    opened_asked, opened_reached = at_dead_services(day, form, refusing) if refusing is not None else (0, 0)
    rate, late = kept(day)
    return Figures(
        rival=day.rival,
        success=100 * len(answered) / len(day.calls),
        by_own=100 * (len(answered) - second) / len(day.calls),
        by_second=100 * second / len(day.calls),
        hit=len(hit),
        recovered=percent(len(spans), len(hit)),
        dead_asked=dead_asked,
        dead_reached=dead_reached,
        dead=percent(dead_reached, dead_asked),
        opened_asked=opened_asked,
        opened_reached=opened_reached,
        after_opening=percent(opened_reached, opened_asked),
        wasted=sum(attempt.ended - attempt.began for attempt in day.seen.attempts if not attempt.ok),
        recovery_p95=percentile(spans, 0.95),
        load_at_return=load_at_return(day.requests, form),
        has_circuits=day.has_circuits,
        openings=sum(len(found) for found in (refusing or {}).values()),
        rate=rate,
        late_p95=late,
        machine_load=day.load,
    )


def fates_of(day: Round) -> dict[int, Fate]:
    fates = {call.number: Fate() for call in day.calls}
    for attempt in sorted(day.seen.attempts, key=lambda attempt: attempt.began):
        fates[attempt.number].attempts.append(attempt)
    return fates


def recoveries(hit: Mapping[int, Fate], outcomes: Mapping[int, bool]) -> list[float]:
    """Seconds from the first failure to the answer, of each call that failed and still succeeded."""
    return [
        answer.ended - failed_at
        for number, fate in hit.items()
        if outcomes.get(number)
        and (answer := fate.answer) is not None
        and (failed_at := fate.failed_at) is not None
    ]


def open_spans(day: Round) -> dict[str, list[Span]]:
    """When each circuit was not closed, in seconds of the day: from the first process that says so to the
    first that says that it is closed again."""
    spans: dict[str, list[Span]] = {service: [] for service in SERVICES}
    opened: dict[str, float] = {}
    for change in sorted(day.seen.changes, key=lambda change: change.at):
        at = change.at - day.begins
        if change.state == "open":
            opened.setdefault(change.service, at)
        elif change.state == "closed" and change.service in opened:
            spans[change.service].append((opened.pop(change.service), at))
    for service, at in opened.items():
        spans[service].append((at, END))
    return spans


def at_dead_services(
    day: Round, form: Form, while_: Mapping[str, Sequence[Span]] | None = None
) -> tuple[int, int]:
    """How many calls the schedule has for services that are dead at that moment, and how many requests
    reached those; with `while_` only what falls into these spans too."""

    def counts(service: str, at: float) -> bool:
        if not is_dead(service, at, form):
            return False
        return while_ is None or any(begins < at < ends for begins, ends in while_[service])

    asked = sum(counts(call.service, call.at) for call in day.calls)
    reached = sum(counts(request.service, request.at) for request in day.requests)
    return asked, reached


def load_at_return(requests: Iterable[Request], form: Form) -> float:
    """The busiest span of `form.peak` seconds after any return, over what is usual in one."""
    arrivals: dict[str, list[float]] = {service: [] for service in SERVICES}
    for request in requests:
        if request.service in arrivals:
            arrivals[request.service].append(request.at)
    usual = form.usual_rate * form.peak
    return max(
        busiest([at for at in sorted(arrivals[service]) if back <= at < until], form.peak) / usual
        for service, (back, until) in returns(form)
    )


def busiest(moments: Sequence[float], seconds: float) -> int:
    """The most of these ordered moments that any span of so many seconds holds."""
    return max((bisect_left(moments, at + seconds) - number for number, at in enumerate(moments)), default=0)


def kept(day: Round) -> tuple[float, float]:
    """The calls a second that were really begun, and the 95th percentile of how late they were."""
    begun = day.seen.begun
    late = [begun[call.number] - day.begins - call.at for call in day.calls]
    took = max(begun.values()) - min(begun.values())
    return (len(begun) - 1) / took, percentile(late, 0.95) or 0.0
