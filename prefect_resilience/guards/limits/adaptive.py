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
from prefect_resilience.guards.limits.guarding import AdaptiveLimitFullError, Limit, LimitRefused, Ticket
from prefect_resilience.guards.limits.line import HeldPlace, overdue_places, stand_in_line
from prefect_resilience.guards.limits.vegas import Vegas
from prefect_resilience.guards.timeouts.overdue import begins, still_runs

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
    if isinstance(error, LimitRefused) or not isinstance(error, Exception):
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
