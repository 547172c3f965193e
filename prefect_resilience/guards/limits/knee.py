"""The knee of latency over a limit on concurrent calls: where calls begin to wait in the service."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from typing import NamedTuple


class Level(NamedTuple):
    """What was measured at a limit: the logarithms of the limit and of the latency, and for how many calls it
    counts. A limit of -inf: no call waited."""

    limit: float
    latency: float
    weight: float


class Fit(NamedTuple):
    """Calls wait beyond `knee`, and take `base` below it; both are logarithms. The knee is inf if none
    waited."""

    base: float
    knee: float

    def at(self, limit: float) -> float:
        """The latency at a limit; both are logarithms."""
        return self.base + max(0.0, limit - self.knee)


def fitted(levels: Sequence[Level], bias: float = 0.0) -> Fit:
    """The base and the knee that explain the latencies best, by weighted least squares.

    Latency is the base up to the knee, and grows with the limit beyond it. `bias`: added to the sum of
    squares of the explanation that no call waited.

    Example:
        >>> from math import exp, log
        >>> measured = [(10, 0.1), (20, 0.1), (30, 0.15)]
        >>> fit = fitted([Level(log(limit), log(latency), 50) for limit, latency in measured])
        >>> round(exp(fit.knee), 1), round(exp(fit.base), 2)
        (20.0, 0.1)
    """
    ordered = sorted(levels)
    best, least = Fit(ordered[0].latency, inf), inf
    for split in range(len(ordered), 0, -1):
        fit = _split(ordered, split)
        cost = sum(one.weight * (one.latency - fit.at(one.limit)) ** 2 for one in ordered)
        cost += bias if fit.knee == inf else 0.0
        if cost < least - 1e-12:
            best, least = fit, cost
    return best


def _split(levels: Sequence[Level], split: int) -> Fit:
    """The best fit whose knee lies after so many of the levels."""
    flat, steep = levels[:split], levels[split:]
    base = _mean((one.latency, one.weight) for one in flat)
    if not steep:
        return Fit(base, inf)
    knee = base + _mean((one.limit - one.latency, one.weight) for one in steep)
    lower, upper = flat[-1].limit, steep[0].limit
    if lower <= knee <= upper:
        return Fit(base, knee)
    knee = upper if knee > upper or lower == -inf else lower
    return Fit(_mean((one.latency - max(0.0, one.limit - knee), one.weight) for one in levels), knee)


def _mean(values: Iterable[tuple[float, float]]) -> float:
    pairs = list(values)
    return sum(value * weight for value, weight in pairs) / sum(weight for _, weight in pairs)
