"""A running estimate of percentiles of latency, in bounded memory."""

from __future__ import annotations

from math import ceil, log

GROWTH = 1.05
"""The ratio of the borders of a bucket: an estimate is at most half of that, 2.5 %, from a measured value."""

SHORTEST, LONGEST = 1e-6, 1e6
"""Seconds. What is shorter or longer counts as that."""

FORGETS = 2_000
"""After so many values, all earlier ones count half: the estimate follows a change within some thousands."""


class LatencySketch:
    """Counts of latencies in buckets that grow by 5 %. The most buckets are 567, for all latencies of 1 us to
    11 days; usually there are fewer than 100.

    The method is that of DDSketch (Masson, Rim and Lee, 2019), with a decay.

    Example:
        >>> sketch = LatencySketch()
        >>> for milliseconds in range(1, 1001):
        ...     sketch.add(milliseconds / 1000)
        >>> round(sketch.quantile(0.95), 2)
        0.94
    """

    __slots__ = ("_buckets", "_since", "_weight", "seen")

    def __init__(self) -> None:
        self._buckets: dict[int, float] = {}
        self._weight: float = 0.0
        self._since: int = 0
        self.seen: int = 0

    def add(self, seconds: float) -> None:
        """Count a latency."""
        bucket = ceil(log(min(max(seconds, SHORTEST), LONGEST)) / log(GROWTH))
        self._buckets[bucket] = self._buckets.get(bucket, 0.0) + 1.0
        self._weight += 1.0
        self.seen += 1
        self._since += 1
        if self._since == FORGETS:
            self._since = 0
            halves = {bucket: count / 2 for bucket, count in self._buckets.items()}
            self._buckets = {bucket: count for bucket, count in halves.items() if count >= 0.1}
            self._weight = sum(self._buckets.values())

    def quantile(self, share: float) -> float:
        """The latency that `share` of the calls (0 to 1) do not exceed. Raises ValueError without any."""
        if not self._buckets:
            raise ValueError("there is no latency yet")
        remaining = share * self._weight
        bucket = min(self._buckets)
        for bucket in sorted(self._buckets):
            remaining -= self._buckets[bucket]
            if remaining <= 0:
                break
        return 2 * GROWTH**bucket / (1 + GROWTH)
