"""How long outages last, from lengths that are often known only within bounds. Pure.

While a circuit is open no call sees an outage end. Where in such a gap it ended is not even: if most outages
are short, it is likelier to be early. The lengths of all outages of a service say how likely, as a Weibull
distribution that is fitted by maximum likelihood to intervals (Odell et al., Biometrics 48, 1992).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LEAST_OUTAGES = 8
"""Fewer outages say too little of how long others last: then every length within the bounds is as likely."""

SHAPES = tuple(0.5 * 1.15**step for step in range(18))
SCALES = 40


@dataclass(frozen=True, slots=True)
class OutageLengths:
    """A Weibull distribution of seconds."""

    shape: float
    scale: float

    def longer(self, seconds: float) -> float:
        """The share of outages that last longer."""
        return math.exp(-((max(0.0, seconds) / self.scale) ** self.shape))

    def within(self, low: float, high: float, chance: float) -> float:
        """The length between two bounds below which the share `chance` of those between them is."""
        most, least = self.longer(low), self.longer(high)
        if most - least < 1e-12:
            return low + (high - low) * chance
        share = max(1e-300, most - (most - least) * chance)
        return min(high, max(low, self.scale * (-math.log(share)) ** (1 / self.shape)))


def lengths_of(bounds: Sequence[tuple[float, float]]) -> OutageLengths | None:
    """The distribution of lengths between bounds, (low, high) in seconds each; an outage that had not ended
    has no upper bound (infinite). None for too few outages."""
    if len(bounds) < LEAST_OUTAGES:
        return None
    known = [(low, max(high, low + 1.0)) for low, high in bounds]
    shortest = max(1.0, min(low for low, _ in known))
    longest = max(max(low for low, _ in known), 2 * shortest)
    scales = [shortest * (2 * longest / shortest) ** (step / (SCALES - 1)) for step in range(SCALES)]
    found = [OutageLengths(shape, scale) for shape in SHAPES for scale in scales]
    return max(found, key=lambda one: _likelihood(one, known))


def _likelihood(lengths: OutageLengths, bounds: Sequence[tuple[float, float]]) -> float:
    return sum(
        math.log(max(1e-12, lengths.longer(low) - (0.0 if math.isinf(high) else lengths.longer(high))))
        for low, high in bounds
    )
