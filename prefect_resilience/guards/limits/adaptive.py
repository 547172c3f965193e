"""`AdaptiveLimit`: a limit on concurrent calls that finds its number itself."""

from __future__ import annotations

import threading
import time
from math import inf, log10, sqrt
from typing import TYPE_CHECKING, ClassVar, Self, cast

from pydantic import Field, model_validator

from prefect_resilience.base.drive import Steps
from prefect_resilience.base.durations import Duration, Seconds
from prefect_resilience.base.process import per_process
from prefect_resilience.errors.classify.classify import classify
from prefect_resilience.errors.exceptions import NotBegun
from prefect_resilience.errors.taxonomy import ErrorCategory, ErrorInfo
from prefect_resilience.guards.limits.guarding import AdaptiveLimitFullError, Limit, LimitRefused, Ticket
from prefect_resilience.guards.limits.line import HeldPlace, overdue_places, stand_in_line
from prefect_resilience.guards.timeouts.overdue import begins, still_runs

# How an adaptive limit finds its number: TCP Vegas, as Netflix' concurrency-limits applies it to calls.
#
# Brakmo and Peterson, "TCP Vegas: End to End Congestion Avoidance on a Global Internet", IEEE Journal on
# Selected Areas in Communications 13(8), 1995; `VegasLimit` and `WindowedLimit` of Netflix'
# concurrency-limits.
#
# Calls that wait inside the service make latency grow with the number of calls (Little's law: calls in
# flight = throughput x latency). So `limit * (1 - base / latency)` calls of a window wait there, where
# `base` is the latency of a service in which none waits. Fewer than `FEW` of them: the limit grows; more
# than `MANY`: it falls. While nothing waits, it grows by a factor (slow start), later by `MANY`.
#
# The base is measured. Vegas takes the smallest latency; it is replaced from time to time, because the
# service may have become slower. For that the limit is halved for a window, as in Netflix' `GradientLimit`:
# otherwise calls that wait would count as normal, and the limit would drift upward. A window in which less
# than half of the limit was used shows the base, too.
#
# An overload that the service reports, or a timeout, is what a lost packet is for TCP: the limit falls at
# once, and from then on grows slowly beyond that (TCP's `ssthresh`). It grows only in windows in which it
# was reached.

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


OVERLOAD = frozenset({ErrorCategory.RATE_LIMIT, ErrorCategory.UNAVAILABLE, ErrorCategory.TIMEOUT})
"""Errors that say that the service has too much to do."""

MOST_NUMBERS = 1024
"""Beyond this many limits in a process, the oldest one begins again."""


class AdaptiveTicket(Ticket):
    """A place, the number of its limit, and when the place was taken."""

    __slots__ = ("began", "vegas")

    def __init__(self, place: HeldPlace, vegas: Vegas) -> None:
        super().__init__(place)
        self.vegas: Vegas = vegas
        self.began: float = time.monotonic()


class AdaptiveLimit(Limit):
    """At most as many concurrent calls as the service can work on; finds that number itself.

        AdaptiveLimit()

    The number is found by TCP Vegas (Brakmo and Peterson, 1995), as in `VegasLimit` of Netflix'
    concurrency-limits: it begins at `initial`, stays between `minimum` and `maximum`, and settles where 2 to
    4 calls wait in the service. It grows while fewer do and all places are in use, and falls while more do.
    It falls by a tenth when more than 4 % of the calls fail with `rate_limit`, `unavailable` or `timeout`.
    Other errors do not count. Now and then it is halved for a moment, to measure calls that wait for nothing.

    A number that falls interrupts no call. Callers wait in order of arrival, and `max_wait`, and places of
    overdue calls, are as in `Bulkhead`. If no place becomes free in time, `AdaptiveLimitFullError` is raised.

        >>> limit = AdaptiveLimit(5, max_wait=0)
        >>> limit.call(str.upper, "draft"), limit.current
        ('DRAFT', 5)

    Each process finds a number of its own. Tasks of a process share it if they have the same object.
    Raises `ConfigurationError` for invalid options.
    """

    by_position: ClassVar[tuple[str, ...]] = ("initial", "minimum", "maximum")

    initial: int = Field(default=20, strict=True, ge=1, description="The number of calls at first.")
    minimum: int = Field(default=1, strict=True, ge=1, description="The smallest number.")
    maximum: int = Field(default=200, strict=True, ge=1, description="The largest number.")
    max_wait: Seconds | None = Field(
        default=None, description="The longest wait for a place, in seconds; null: no limit."
    )

    if TYPE_CHECKING:

        def __init__(
            self, initial: int = 20, minimum: int = 1, maximum: int = 200, *, max_wait: Duration | None = None
        ) -> None: ...

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.minimum <= self.initial <= self.maximum:
            raise ValueError(
                f"AdaptiveLimit(initial={self.initial}, minimum={self.minimum}, maximum={self.maximum}): "
                "write minimum <= initial <= maximum"
            )
        return self

    @property
    def current(self) -> int:
        """The number of concurrent calls that this process allows now."""
        vegas = _numbers.by_key.get(self._key())
        return self.initial if vegas is None else vegas.number

    def acquire(self) -> Steps[Ticket]:
        """Wait for a place. Raises AdaptiveLimitFullError."""
        key = self._key()
        vegas = _numbers.by_key.get(key) or _numbers.add(key, self)
        came = time.monotonic()
        line = f"adaptive:{key}"
        place = yield from stand_in_line(line, vegas.number, self.max_wait)
        if place is None:
            waited = time.monotonic() - came
            raise AdaptiveLimitFullError(None, vegas.number, waited, overdue_places(line))
        try:
            return begins(AdaptiveTicket(place, vegas))
        except BaseException:
            place.leave()
            raise

    def finish(
        self,
        ticket: Ticket,
        error: BaseException | None = None,
        *,
        info: ErrorInfo | None = None,
        took: float | None = None,
    ) -> Steps[None]:
        """Count the call, and release its place; if it still runs after its attempt, when it has ended."""
        ticket = cast("AdaptiveTicket", ticket)
        place = cast("HeldPlace", ticket.place)
        now = time.monotonic()
        dropped = error is not None and is_overload(error, info)
        if error is None or dropped:
            took = now - ticket.began if took is None else took
            with _numbers.lock:
                changed = ticket.vegas.count(took, place.in_use(), dropped, now)
            if changed:
                place.allow(ticket.vegas.number)
        if still_runs(ticket, error, place.leave):
            place.overdue()
        else:
            place.leave()
        yield from ()


def is_overload(error: BaseException, info: ErrorInfo | None = None) -> bool:
    """Whether the error says that the service has too much to do. A limit inside says nothing about it."""
    if isinstance(error, LimitRefused | NotBegun) or not isinstance(error, Exception):
        return False
    return (info or classify(error)).category in OVERLOAD


class _Numbers:
    """The numbers of this process, by the limits' keys: a limit's copies and pickles have the same key."""

    def __init__(self) -> None:
        self.by_key: dict[str, Vegas] = {}
        # Re-entrant: the garbage collector may end a coroutine, which leaves its place, at any time.
        self.lock = threading.RLock()

    def add(self, key: str, limit: AdaptiveLimit) -> Vegas:
        with self.lock:
            while len(self.by_key) >= MOST_NUMBERS:
                del self.by_key[next(iter(self.by_key))]
            return self.by_key.setdefault(key, Vegas(limit.initial, limit.minimum, limit.maximum))


_numbers = per_process(_Numbers)
