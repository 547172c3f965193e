"""`AdaptiveLimit`: a limit on concurrent calls that finds its number itself."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, ClassVar, Self, cast

from pydantic import Field, model_validator

from prefect_resilience.base.drive import Steps
from prefect_resilience.base.durations import Duration, Seconds
from prefect_resilience.base.process import per_process
from prefect_resilience.errors.classify.classify import classify
from prefect_resilience.errors.taxonomy import ErrorCategory, ErrorInfo
from prefect_resilience.guards.limits import gradient
from prefect_resilience.guards.limits.gradient import Finding, LimitBounds, State
from prefect_resilience.guards.limits.guarding import AdaptiveLimitFullError, Limit, LimitRefused, Ticket
from prefect_resilience.guards.limits.line import HeldPlace, overdue_places, stood_in_line
from prefect_resilience.guards.timeouts.overdue import begins, still_runs

OVERLOAD = frozenset({ErrorCategory.RATE_LIMIT, ErrorCategory.UNAVAILABLE, ErrorCategory.TIMEOUT})
"""Errors that say that the service has too much to do."""

MOST_STATES = 1024
"""Beyond this many limits in a process, the oldest one begins again."""


class AdaptiveTicket(Ticket):
    """A place, what is known of its limit, and when the place was taken."""

    __slots__ = ("parts",)

    def __init__(self, place: HeldPlace, found: LimitFinder) -> None:
        self.parts: tuple[HeldPlace, LimitFinder, float] = (place, found, time.monotonic())


class AdaptiveLimit(Limit):
    """At most as many concurrent calls as the service can work on; finds that number itself.

        AdaptiveLimit(name="llm:{provider}")

    The number begins at `initial` and stays between `minimum` and `maximum`. It grows while all places are in
    use and calls are as fast as with fewer of them. It falls when calls wait in the service, and when more
    than 4 % of them fail with `rate_limit`, `unavailable` or `timeout`. Other errors do not count. While it
    is in use, the limit alternates between the number and 10 to 25 % more, to see where calls begin to wait.

    A number that falls interrupts no call. Callers wait in order of arrival, and `max_wait`, and places of
    overdue calls, are as in `Bulkhead`. If no place becomes free in time, `AdaptiveLimitFullError` is raised.

        >>> limit = AdaptiveLimit(5, max_wait=0)
        >>> limit.call(str.upper, "draft"), limit.current
        ('DRAFT', 5)

    Each process finds a number of its own. Limits of this process with the same `name` are one limit.
    Raises `ConfigurationError` for invalid options.
    """

    by_position: ClassVar[tuple[str, ...]] = ("initial", "minimum", "maximum", "name")

    initial: int = Field(default=20, strict=True, ge=1, description="The number of calls at first.")
    minimum: int = Field(default=1, strict=True, ge=1, description="The smallest number.")
    maximum: int = Field(default=200, strict=True, ge=1, description="The largest number.")
    max_wait: Seconds | None = Field(
        default=None, description="The longest wait for a place, in seconds; null: no limit."
    )
    name: str | None = Field(
        default=None, description="The name under which calls of this process share the limit."
    )

    if TYPE_CHECKING:

        def __init__(
            self,
            initial: int = 20,
            minimum: int = 1,
            maximum: int = 200,
            name: str | None = None,
            *,
            max_wait: Duration | None = None,
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
        found = _found.by_key.get(self._key(self.settled_name()))
        return self.initial if found is None else found.number

    def entered(self) -> Steps[Ticket]:
        """Wait for a place. Raises AdaptiveLimitFullError."""
        name = self.settled_name()
        key = self._key(name)
        bounds = LimitBounds(self.initial, self.minimum, self.maximum)
        found = _found.by_key.get(key)
        if found is None or found.bounds != bounds:
            found = _found.of(key, bounds)
        came = time.monotonic()
        line = f"adaptive:{key}"
        place = yield from stood_in_line(line, found.number, self.max_wait)
        if place is None:
            waited = time.monotonic() - came
            raise AdaptiveLimitFullError(name, found.number, waited, overdue_places(line))
        try:
            return begins(AdaptiveTicket(place, found))
        except BaseException:
            place.leave()
            raise

    def left(
        self,
        ticket: Ticket,
        error: BaseException | None = None,
        *,
        info: ErrorInfo | None = None,
        took: float | None = None,
    ) -> Steps[None]:
        """Count the call, and release its place; if it still runs after its attempt, when it has ended."""
        place, found, began = cast("AdaptiveTicket", ticket).parts
        now = time.monotonic()
        dropped = error is not None and overloaded(error, info)
        took = now - began if took is None else took
        if (error is None or dropped) and found.ended(took, place.full(), dropped, now):
            place.allow(found.number)
        if still_runs(ticket, error, place.leave):
            place.overdue()
        else:
            place.leave()
        yield from ()


def overloaded(error: BaseException, info: ErrorInfo | None = None) -> bool:
    """Whether the error says that the service has too much to do. A limit inside says nothing about it."""
    if isinstance(error, LimitRefused) or not isinstance(error, Exception):
        return False
    return (info or classify(error)).category in OVERLOAD


class LimitFinder(Finding):
    """What this process has found for one limit."""

    __slots__ = ("_lock", "number")

    def __init__(self, bounds: LimitBounds) -> None:
        super().__init__(bounds)
        self.number: int = gradient.places(self.state)
        # Re-entrant: the garbage collector may end a coroutine, which leaves its place, at any time.
        self._lock = threading.RLock()

    def become(self, state: State) -> None:
        """Begin a new window in this state."""
        super().become(state)
        self.number = gradient.places(state)

    def rebound(self, bounds: LimitBounds) -> None:
        """Use these options from now on: the later one of two limits with one name counts."""
        with self._lock:
            self.bounds = bounds
            self.become(gradient.within(self.state, bounds))

    def ended(self, latency: float, full: bool, dropped: bool, now: float) -> bool:
        """Count a call that has ended at `now`, by the monotonic clock. Returns whether the number may be
        another one."""
        with self._lock:
            return super().ended(latency, full, dropped, now)


class _AllFound:
    """What this process has found, by the limits' keys."""

    def __init__(self) -> None:
        self.by_key: dict[str, LimitFinder] = {}
        self._lock = threading.RLock()

    def of(self, key: str, bounds: LimitBounds) -> LimitFinder:
        found = self.by_key.get(key)
        if found is None:
            with self._lock:
                while len(self.by_key) >= MOST_STATES:
                    del self.by_key[next(iter(self.by_key))]
                found = self.by_key.setdefault(key, LimitFinder(bounds))
        if found.bounds != bounds:
            found.rebound(bounds)
        return found


_found = per_process(_AllFound)
