"""The limits that `adaptive_limit.py` compares, each a `Limiter` of its simulated service.

`FailsafeGo` and `Gradient2` are written after the documentation of failsafe-go's `adaptivelimiter` and of
Netflix' concurrency-limits, with their default options, for this comparison alone: a 90th percentile
of an exact window instead of a t-digest, and no queue of its own, since the simulation has one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from statistics import fmean, median, pstdev

from prefect_resilience.guards.limits.adaptive import Vegas

INITIAL, LEAST, MOST = 20, 1, 200


class Fixed:
    """A number that does not depend on what the calls see."""

    def __init__(self, number: Callable[[float], int]) -> None:
        self._number = number

    def limit(self, now: float) -> int:
        return self._number(now)

    def ended(self, now: float, latency: float, in_flight: int, refused: bool) -> None:
        pass


class Adaptive:
    """The machine of `AdaptiveLimit` with its default options."""

    def __init__(self) -> None:
        self.vegas = Vegas(INITIAL, LEAST, MOST)

    def limit(self, now: float) -> int:
        return self.vegas.number

    def ended(self, now: float, latency: float, in_flight: int, refused: bool) -> None:
        self.vegas.count(latency, in_flight, refused, now)


class Average:
    """An exponential moving average that is a plain mean during its warm-up."""

    def __init__(self, age: int, warm_up: int = 10) -> None:
        self._factor, self._warm_up = 2 / (age + 1), warm_up
        self._first: list[float] = []
        self.value = 0.0

    def add(self, value: float) -> float:
        if len(self._first) < self._warm_up:
            self._first.append(value)
            self.value = fmean(self._first)
        else:
            self.value += self._factor * (value - self.value)
        return self.value


class Correlation:
    """How two numbers go together over the last `size` pairs, and the variation of the second."""

    def __init__(self, size: int = 50, warm_up: int = 10) -> None:
        self._pairs: deque[tuple[float, float]] = deque(maxlen=size)
        self._warm_up = warm_up

    def add(self, first: float, second: float) -> tuple[float, float]:
        self._pairs.append((first, second))
        if len(self._pairs) < self._warm_up:
            return 0.0, 0.0
        xs, ys = zip(*self._pairs, strict=True)
        x, y, dx, dy = fmean(xs), fmean(ys), pstdev(xs), pstdev(ys)
        if dx / x < 0.01 or dy / y < 0.01:
            return 0.0, dy / y
        return (fmean(a * b for a, b in self._pairs) - x * y) / (dx * dy), dy / y


class FailsafeGo:
    """failsafe-go: recent against baseline latency, and whether more calls bring more throughput."""

    def __init__(self) -> None:
        self._limit = float(INITIAL)
        self._recent: list[float] = []
        self._most_in_flight = 0
        self._quantiles: deque[float] = deque(maxlen=5)
        self._smoothed, self._baseline = Average(5), Average(10)
        self._throughputs, self._latencies = Correlation(), Correlation()
        self._next = 0.0

    def limit(self, now: float) -> int:
        return int(self._limit)

    def ended(self, now: float, latency: float, in_flight: int, refused: bool) -> None:
        if not refused:  # a dropped call only gives its place back
            self._recent.append(latency)
            self._most_in_flight = max(self._most_in_flight, in_flight)
        if now > self._next and len(self._recent) >= 50:
            self._update(in_flight >= self.limit(now))
            self._next = now + min(max(2 * min(self._recent), 1.0), 30.0)
            self._recent, self._most_in_flight = [], 0

    def _update(self, full: bool) -> None:
        self._quantiles.append(sorted(self._recent)[int(0.9 * len(self._recent))])
        recent = self._smoothed.add(median(self._quantiles))
        baseline, most = self._baseline.add(recent), self._most_in_flight
        queue = math.ceil(self._limit * (1 - baseline / recent))
        throughput, variation = self._throughputs.add(most, most / recent)
        slower, _ = self._latencies.add(most, recent)
        digits = max(1, int(math.log10(self._limit)))
        overloaded = full and (
            throughput < 0 or (throughput < 0.3 and slower > 0.5) or (variation < 0.2 and slower > 0.5)
        )
        change = 0
        if queue > 6 * digits or overloaded:
            change = -digits
        elif queue < 3 * digits:
            change = digits
        most_allowed = 5.0 * most
        wanted = self._limit + change
        if wanted > most_allowed:
            wanted = self._limit - digits if self._limit > most_allowed else most_allowed
        self._limit = min(max(wanted, float(LEAST)), float(MOST))


class Gradient2:
    """Netflix' Gradient2: each window's mean latency against an average over 600 windows."""

    def __init__(self) -> None:
        self._limit = float(INITIAL)
        self._long = Average(600)
        self._window: list[float] = []
        self._most_in_flight = 0
        self._next = 0.0

    def limit(self, now: float) -> int:
        return int(self._limit)

    def ended(self, now: float, latency: float, in_flight: int, refused: bool) -> None:
        self._window.append(latency)
        self._most_in_flight = max(self._most_in_flight, in_flight)
        if now < self._next or len(self._window) < 10:
            return
        short = fmean(self._window)
        long = self._long.add(short)
        if long / short > 2:
            self._long.value *= 0.95
        if self._most_in_flight >= self._limit / 2:
            gradient2 = max(0.5, min(1.0, 1.5 * long / short))
            self._limit = 0.8 * self._limit + 0.2 * (self._limit * gradient2 + 4)
            self._limit = min(max(self._limit, float(LEAST)), float(MOST))
        self._window, self._most_in_flight, self._next = [], 0, now + 1.0
