"""The bad day itself: what five services do to their callers in two minutes, and when they are called.

Everything here is decided by the seed, the call's number and the time, so that each of those who live
through the day meets the same one. Times are seconds since the day began, on a day of `DAY_SECONDS`; a `Form`
says how long the day really is.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

RIVALS: tuple[str, ...] = ("no retries", "retries", "interlock + tenacity", "prefect-resilience")
WITH_CIRCUITS = RIVALS[2:]
SERVICES = ("catalog", "prices", "reviews", "stock", "ratings")
DAY_SECONDS = 120.0
HANGING = 0.5
"""The share of requests to a service that is out which get no answer at all; the others get a 503 at once."""

LIMIT = 0.6
"""What a service that limits its callers lets through, of its usual load."""

Kind = Literal["503", "limit", "slow", "cut", "outage", "down"]
Span = tuple[float, float]


@dataclass(frozen=True)
class Form:
    """How long the day lasts, how much is asked, and what callers set in seconds.

    timeout: for one request. first_delay: before the first of RETRIES retries; it doubles. open_for: how long
    a circuit stays open. peer_window: the window of the peer's circuit, whose processes each count alone.
    retry_after: what a service that limits its callers asks for. peak: load is counted in spans this long.
    """

    name: str
    seconds: float
    calls: int
    processes: int
    timeout: float
    first_delay: float
    open_for: float
    peer_window: int
    retry_after: int
    peak: float

    @property
    def stretch(self) -> float:
        """Real seconds for one of the script's."""
        return self.seconds / DAY_SECONDS

    @property
    def usual_rate(self) -> float:
        """Calls a second to one service."""
        return self.calls / len(SERVICES) / self.seconds


RETRIES = 3
JITTER = 0.2
FULL = Form("full", 120.0, 2000, 4, 2.0, 1.0, 30.0, 10, 2, 3.0)
SHORT = Form("short", 2.0, 50, 2, 3.0, 0.05, 0.5, 2, 1, 0.3)
"""Its timeout outlasts its day: no machine that stops for a moment costs a call all of its attempts."""


@dataclass(frozen=True)
class Trouble:
    """What a `share` of the requests to one service meets between two moments."""

    service: str
    kind: Kind
    begins: float
    ends: float
    share: float = 1.0


TROUBLES: tuple[Trouble, ...] = (
    Trouble("catalog", "503", 8, 12, 0.6),
    Trouble("catalog", "503", 34, 39, 0.7),
    Trouble("catalog", "503", 63, 67, 0.6),
    Trouble("catalog", "503", 95, 100, 0.7),
    Trouble("prices", "limit", 20, 32),
    Trouble("prices", "limit", 75, 87),
    Trouble("reviews", "slow", 14, 24, 0.4),
    Trouble("reviews", "cut", 45, 53, 0.4),
    Trouble("reviews", "slow", 70, 80, 0.4),
    Trouble("reviews", "cut", 98, 106, 0.4),
    Trouble("stock", "outage", 30, 50),
    *(Trouble("ratings", "down", begins, begins + 3) for begins in (66, 72, 78, 84, 90)),
)


@dataclass(frozen=True)
class Call:
    """One call: it begins `at` real seconds after the day, whatever became of the calls before it."""

    number: int
    service: str
    at: float
    process: int


def schedule(form: Form, seed: int) -> list[Call]:
    """Every call of the day in its order: one in each slot of each service, at a moment of chance in it."""
    chance = random.Random(f"schedule-{seed}")
    each = form.calls // len(SERVICES)
    slot = form.seconds / each
    moments = sorted(
        ((number + chance.random()) * slot, service) for service in SERVICES for number in range(each)
    )
    return [
        Call(number, service, at, number % form.processes) for number, (at, service) in enumerate(moments)
    ]


def trouble_at(service: str, at: float, form: Form) -> Trouble | None:
    """What the script has for a service at this moment of the real day."""
    moment = at / form.stretch
    for trouble in TROUBLES:
        if trouble.service == service and trouble.begins <= moment < trouble.ends:
            return trouble
    return None


def chance_of(seed: int, service: str, number: int, nth: int) -> float:
    """In [0, 1): the luck of the nth request that a call makes to its service."""
    return random.Random(f"{seed}-{service}-{number}-{nth}").random()


def dead_spans(service: str, form: Form) -> list[Span]:
    """When nobody gets an answer from a service, in real seconds."""
    return [
        (trouble.begins * form.stretch, trouble.ends * form.stretch)
        for trouble in TROUBLES
        if trouble.service == service and trouble.kind in {"outage", "down"}
    ]


def is_dead(service: str, at: float, form: Form) -> bool:
    return any(begins <= at < ends for begins, ends in dead_spans(service, form))


def returns(form: Form) -> Iterator[tuple[str, Span]]:
    """Each time that a service comes back, and the span until it dies again or the day is over."""
    for service in SERVICES:
        spans = dead_spans(service, form)
        ends = [begins for begins, _ in spans[1:]] + [form.seconds]
        for (_, back), until in zip(spans, ends, strict=False):
            yield service, (back, until)
