"""How long calls take: the distribution of what was seen, and of what the timeout cut off. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from prefect_resilience.operations.tuning.calls import quantile

TAIL_FROM = 0.9
LEAST_SEEN = 50
"""With fewer successes nothing is said of calls that take longer than the timeout."""


@dataclass(frozen=True, slots=True)
class Latency:
    """The seconds until a success. `seen` is ordered; the calls that took longer than `cut_at` were cut.

    cut: the share of the calls that were cut. slow: the share of all calls that were cut and would have
    succeeded later; they take `cut_at` plus an exponential time of the mean `tail`. The other cut ones hang.
    """

    seen: tuple[float, ...]
    calls: int = 0
    cut_at: float | None = None
    cut: float = 0.0
    slow: float = 0.0
    tail: float = 0.0

    def draw(self, chance: float) -> float:
        """The seconds for `chance` in [0, 1); infinite for a call that never answers."""
        if self.seen and chance < 1 - self.cut:
            return quantile(self.seen, chance / (1 - self.cut))
        left, hangs = 1 - chance, self.cut - self.slow
        if self.cut_at is None or left <= hangs or not self.slow:
            return math.inf
        return self.cut_at - self.tail * math.log((left - hangs) / self.slow)

    def at(self, share: float) -> float | None:
        """The quantile of the calls that succeed, as far as it was seen; None if it was not."""
        place = share * (1 - self.cut + self.slow)
        if not self.seen or place > 1 - self.cut:
            return None
        return quantile(self.seen, place / (1 - self.cut))


def latency_of(seconds: Sequence[float], cut: int, cut_at: float | None) -> Latency:
    """The latency of successes that took `seconds`, where `cut` more calls were cut at `cut_at`.

    The times over the 90th percentile are taken as exponential. Its mean follows from the times below the
    cut alone, so it also says how many slow calls the cut must have hit; the other ones hang.
    """
    ordered = sorted(seconds)
    calls = len(ordered) + cut
    share = cut / calls if calls else 0.0
    if not cut or cut_at is None or len(ordered) < LEAST_SEEN:
        return Latency(tuple(ordered), calls, cut_at, share)
    begins = quantile(ordered, TAIL_FROM)
    over = [value - begins for value in ordered if value > begins]
    room = cut_at - begins
    if not over or room <= 0:
        return Latency(tuple(ordered), calls, cut_at, share)
    mean = mean_of_cut(sum(over) / len(over), room)
    longer = math.exp(-min(700.0, room / mean))
    slow = min(float(cut), len(over) * longer / (1 - longer))
    return Latency(tuple(ordered), calls, cut_at, share, slow / calls, mean)


def mean_of_cut(seen: float, room: float) -> float:
    """The mean of an exponential distribution cut at `room`, where `seen` is the mean below it.

    It solves seen = mean - room / (exp(room / mean) - 1), the maximum of the likelihood. From half of the
    room on every mean is too short; then the result is 10 times the room.
    """
    low, high = 1e-9, 10 * room
    for _ in range(60):
        middle = (low + high) / 2
        exponent = min(700.0, room / middle)
        if middle - room / math.expm1(exponent) < seen:
            low = middle
        else:
            high = middle
    return (low + high) / 2
