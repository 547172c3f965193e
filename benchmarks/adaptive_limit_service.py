"""A simulated service for `adaptive_limit.py`: servers with a queue in front, and callers behind a limit.

Discrete events. Calls arrive at random (Poisson) and wait in order of arrival for a place of the limit, for
at most `max_wait` seconds; then they are lost. A call that has a place goes to the service, which has so many
servers and one queue, or refuses what its servers cannot take. Its work is lognormal.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

REFUSES_AFTER = 0.005
"""Seconds until a refusal arrives."""

LOOK = 0.5
"""Seconds between two looks at the limits, for the plot."""


class Limiter(Protocol):
    """A limit on concurrent calls, as the simulation uses it."""

    def limit(self, now: float) -> int:
        """The number of calls that may be in flight."""
        ...

    def ended(self, now: float, latency: float, in_flight: int, refused: bool) -> None:
        """A call has ended; `in_flight` counts it, too."""
        ...


@dataclass(frozen=True)
class Shape:
    """What happens to a service: at a time in seconds, its servers, the mean seconds of work of a call, and a
    delay that takes no server; and how many calls arrive in a second. `varies`: the sigma of the
    lognormal work of a call."""

    name: str
    servers: Callable[[float], int]
    work: Callable[[float], float]
    rate: float
    delay: Callable[[float], float] = lambda at: 0.0
    refuses: bool = False
    max_wait: float = 1.0
    seconds: float = 180.0
    varies: float = 0.5

    def right(self, at: float) -> int:
        """The limit with which every server is busy and no call waits in the service."""
        return round(self.servers(at) * (1 + self.delay(at) / self.work(at)))


@dataclass
class Outcome:
    """What the callers saw: for each call that succeeded, when it ended, its seconds in the
    service, and those with the wait for a place."""

    ended: list[float] = field(default_factory=list)
    latency: list[float] = field(default_factory=list)
    response: list[float] = field(default_factory=list)
    lost: int = 0
    refused: int = 0
    limits: list[tuple[float, int]] = field(default_factory=list)


@dataclass(slots=True)
class Call:
    """A call on its way: its work in parts of the mean, when it came and when it got a place."""

    size: float
    came: float
    began: float = 0.0


class Run:
    """A service behind a limit. The same seed brings the same calls."""

    def __init__(self, shape: Shape, limiter: Limiter, seed: int) -> None:
        self.shape, self.limiter = shape, limiter
        self.at = 0.0
        self.outcome = Outcome()
        self._random = random.Random(seed)
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._planned = count()
        self._waiting: deque[Call] = deque()
        self._in_flight = 0
        self._queue: deque[Call] = deque()
        self._serving = 0

    def plan(self, at: float, what: Callable[..., None], *args: Any) -> None:
        """Call `what(*args)` at this time."""
        heapq.heappush(self._heap, (at, next(self._planned), what, args))

    def go(self) -> Outcome:
        self.plan(0.0, self._arrives)
        self.plan(0.0, self._look)
        while self._heap and self._heap[0][0] < self.shape.seconds:
            self.at, _, what, args = heapq.heappop(self._heap)
            what(*args)
        return self.outcome

    def _look(self) -> None:
        self.outcome.limits.append((self.at, self.limiter.limit(self.at)))
        self._admit()  # a fixed limit may have grown, or servers may have come back
        self.plan(self.at + LOOK, self._look)

    def _arrives(self) -> None:
        varies = self.shape.varies
        size = self._random.lognormvariate(-(varies**2) / 2, varies)  # its mean is 1
        self._waiting.append(Call(size, self.at))
        self._admit()
        self.plan(self.at + self._random.expovariate(self.shape.rate), self._arrives)

    def _admit(self) -> None:
        while self._waiting and self._in_flight < self.limiter.limit(self.at):
            call = self._waiting.popleft()
            if self.at - call.came > self.shape.max_wait:
                self.outcome.lost += 1
                continue
            self._in_flight += 1
            call.began = self.at
            if self.shape.refuses and self._serving >= self.shape.servers(self.at):
                self.plan(self.at + REFUSES_AFTER, self._ends, call, True)
            else:
                self._queue.append(call)
                self._serve()
        self._serve()

    def _serve(self) -> None:
        while self._queue and self._serving < self.shape.servers(self.at):
            call = self._queue.popleft()
            self._serving += 1
            self.plan(self.at + call.size * self.shape.work(self.at), self._served, call)

    def _served(self, call: Call) -> None:
        self._serving -= 1
        self._serve()
        self.plan(self.at + self.shape.delay(self.at), self._ends, call, False)

    def _ends(self, call: Call, refused: bool) -> None:
        latency = self.at - call.began
        if refused:
            self.outcome.refused += 1
        else:
            self.outcome.ended.append(self.at)
            self.outcome.latency.append(latency)
            self.outcome.response.append(self.at - call.came)
        before = self._in_flight
        self._in_flight -= 1
        self.limiter.ended(self.at, latency, before, refused)
        self._admit()
