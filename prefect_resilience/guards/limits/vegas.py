"""How an adaptive limit finds its number: TCP Vegas, as Netflix' concurrency-limits applies it to calls.

Brakmo and Peterson, "TCP Vegas: End to End Congestion Avoidance on a Global Internet", IEEE Journal on
Selected Areas in Communications 13(8), 1995; `VegasLimit` and `WindowedLimit` of Netflix' concurrency-limits.

Calls that wait inside the service make latency grow with the number of calls (Little's law: calls in flight =
throughput x latency). So `limit * (1 - base / latency)` calls of a window wait there, where `base` is the
latency of a service in which none waits. Fewer than `FEW` of them: the limit grows; more than `MANY`: it
falls. While nothing waits, it grows by a factor (slow start), later by `MANY`.

The base is measured. Vegas takes the smallest latency; it is replaced from time to time, because the service
may have become slower. For that the limit is halved for a window, as in Netflix' `GradientLimit`: otherwise
calls that wait would count as normal, and the limit would drift upward. A window in which less than half of
the limit was used shows the base, too.

An overload that the service reports, or a timeout, is what a lost packet is for TCP: the limit falls at once,
and from then on grows slowly beyond that (TCP's `ssthresh`). It grows only in windows in which it was
reached.
"""

from __future__ import annotations

from math import inf, log10, sqrt

FEW, MANY = 2.0, 4.0
"""Vegas' alpha and beta: the number of calls that may wait in the service. Above a limit of 10 they are
multiplied by its decimal logarithm, as in Netflix' `VegasLimit`."""

SLOW_START = sqrt(2)
"""The growth in a window at first: Vegas doubles in two round trips."""

CUT = 0.9
"""The limit after too many dropped calls, in parts of the one before: `backoffRatio` of Netflix' limits."""

DROPPED = 0.04
"""The share of calls that may fail with an overload or a timeout. Vegas has no such share: TCP takes each
lost packet for congestion, but few services never fail."""

PROBE_PART, PROBE_AFTER, PROBE_SOON = 0.5, 60, 10
"""To measure the base, the limit falls to this part for a window: after so many windows, or after so many
while the last measurement was clearly below the one before, and at first."""

CLEARLY = 0.9

SHORTEST = 1e-6
"""A call takes at least so many seconds: a coarse clock may show none."""

WINDOW_CALLS, WINDOW_SECONDS, WINDOW_TURNS = 30, 0.5, 2
"""A window takes at least so many calls, so many seconds, and so many calls for each place."""


class Vegas:
    """A limit, and the calls of the window. Not for several threads at once.

    Example:
        >>> vegas = Vegas(initial=20, minimum=1, maximum=200)
        >>> for call in range(100):
        ...     changed = vegas.count(0.1, in_flight=20, dropped=False, now=call / 100)
        >>> vegas.number
        28
    """

    def __init__(self, initial: int, minimum: int, maximum: int) -> None:
        self._minimum = float(minimum)
        self._maximum = float(maximum)
        self.limit: float = float(initial)
        self.base: float = inf
        self._threshold: float = inf
        self._fast: bool = True
        self._before_probe: float = 0.0
        self._windows: int = PROBE_AFTER - PROBE_SOON
        self._skipped: int = self.number
        self._begin(-inf)

    @property
    def number(self) -> int:
        """The number of concurrent calls."""
        return int(self.limit)

    def count(self, latency: float, in_flight: int, dropped: bool, now: float) -> bool:
        """Count a call that ended at `now`, in seconds. `in_flight`: the calls then, with this one.
        `dropped`: the service was overloaded, or did not answer in time. Returns whether the number is
        another one."""
        if self._skipped > 0:  # it began before the limit changed
            self._skipped -= 1
            self._since = now
            return False
        self._most = max(self._most, in_flight)
        if dropped:
            self._dropped += 1
        else:
            self._succeeded += 1
            self._seconds += latency
            self._squares += latency * latency
        calls = self._succeeded + self._dropped
        if calls < WINDOW_CALLS:
            return False
        overloaded = self._dropped > DROPPED * calls
        is_short = calls < WINDOW_TURNS * self.limit or now - self._since < WINDOW_SECONDS
        if is_short and not overloaded:
            return False
        before = self.number
        self._move(self._reduce() if overloaded else self._next())
        if self.number != before:
            self._skipped = max(before, self.number)
        self._begin(now)
        return self.number != before

    def _begin(self, now: float) -> None:
        self._since = now
        self._succeeded = self._dropped = self._most = 0
        self._seconds = self._squares = 0.0

    def _move(self, limit: float) -> None:
        self.limit = min(max(limit, self._minimum), self._maximum)

    def _reduce(self) -> float:
        self._fast, self._before_probe = False, 0.0
        self._threshold = self.limit * CUT
        return self._threshold

    def _next(self) -> float:
        """The limit after a window without an overload."""
        latency = max(self._seconds / self._succeeded, SHORTEST)
        variance = max(self._squares / self._succeeded - latency * latency, 0.0)
        if self._before_probe:
            return self._after_probe(latency)
        # With the standard error, so that chance does not lower the base from window to window.
        self.base = min(self.base, latency + sqrt(variance / self._succeeded))
        if self._most * 2 < self.limit:
            self.base = latency
            return self.limit
        self._windows += 1
        if self._windows >= PROBE_AFTER and self.limit > self._minimum:
            self._before_probe, self._fast = self.limit, False
            return self.limit * PROBE_PART
        step = max(1.0, log10(self.limit))
        waiting = self.limit * (1 - self.base / latency)
        if waiting > MANY * step:
            self._fast = False
            return self.limit - step
        if waiting >= FEW * step:
            self._fast = False
            return self.limit
        if self._most < self.number:  # nothing shows that the service could take more
            return self.limit
        if self._fast:
            return self.limit * SLOW_START
        is_idle = waiting < step and self.limit < self._threshold
        return self.limit + (MANY * step if is_idle else step)

    def _after_probe(self, latency: float) -> float:
        """The limit before the measurement of the base."""
        self._windows = PROBE_AFTER - PROBE_SOON if latency < CLEARLY * self.base else 0
        self.base = latency
        limit, self._before_probe = self._before_probe, 0.0
        return limit
