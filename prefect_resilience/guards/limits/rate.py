"""`RateLimit`: a limit on the calls that start in a period of time."""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from prefect_resilience.base.drive import Steps, sleep_for
from prefect_resilience.base.durations import Duration, Seconds
from prefect_resilience.guards import limits
from prefect_resilience.guards.limits.guarding import NamedLimit, RateLimitedError, Ticket, prefect_name
from prefect_resilience.guards.limits.line import (
    Pace,
    for_place,
    in_line,
    stand_in_line,
    start,
    start_if_free,
    wait_of,
)
from prefect_resilience.guards.limits.shared import (
    ApiAway,
    SharedLimit,
    run_going_on,
    take_slot,
    wait_for_slot,
)

LEAST_PERIOD = 0.001
GRACE_SECONDS = 0.25
"""How long a caller may wait beyond `max_wait` while the callers before it wait for the API."""

SHORTEST_PAUSE, LONGEST_PAUSE = 0.01, 1.0
"""Seconds between two requests for a slot of the fleet's limit."""


class RateLimit(NamedLimit):
    """At most `calls` calls in any `per` seconds, in order of arrival.

        RateLimit(60, per="1m", max_wait=10, name="llm:{provider}")

    The calls are spaced evenly, `per / calls` apart. With a `burst`, that many calls may start at once after
    a time without calls; a period then has up to `calls + burst - 1` (the generic cell rate algorithm).

    In a flow or task run, and with a `name`, the fleet shares the rate, by Prefect's global concurrency
    limit "rate-limit:<name>", which is created or updated when a process first needs it. Elsewhere, or if
    the API does not answer for too long (see `Bulkhead`), each process has the full rate. Between processes
    there is no order of arrival.

    `per` and `max_wait` are in seconds (also "500ms", "1m", a timedelta); `max_wait=None` waits for ever. A
    call that would have to wait longer in this process raises `RateLimitedError` at once; for the fleet's
    rate it waits for `max_wait`. The error's `retry_after` has the seconds until a call may be made. Raises
    `ConfigurationError` for invalid options.
    """

    by_position: ClassVar[tuple[str, ...]] = ("calls", "per", "burst", "max_wait", "name")

    calls: int = Field(strict=True, ge=1, description="The maximum number of calls per period.")
    per: Seconds = Field(default=1.0, ge=LEAST_PERIOD, description="The period, in seconds.")
    burst: int | None = Field(
        default=None,
        strict=True,
        ge=1,
        description="The maximum number of calls that start at once; null: 1.",
    )
    max_wait: Seconds | None = Field(
        default=None, description="The longest wait, in seconds; null: no limit."
    )
    name: str | None = Field(default=None, description="The name under which the fleet shares the limit.")

    if TYPE_CHECKING:

        def __init__(
            self,
            calls: int,
            per: Duration = 1.0,
            burst: int | None = None,
            max_wait: Duration | None = None,
            name: str | None = None,
        ) -> None: ...

    @property
    def pace(self) -> Pace:
        """The seconds from one call to the next, and how many calls may start at once."""
        return Pace(self.per / self.calls, self.burst or 1)

    def acquire(self) -> Steps[Ticket]:
        """Wait until a call may be made. Raises RateLimitedError, at once if the wait is known."""
        name = self.final_name()
        key, pace = f"rate:{self._key(name)}", self.pace
        shared = self._fleet_limit(name)
        if shared is None and start_if_free(key, pace):
            return Ticket()
        came = monotonic()
        self._refuse_beyond(came, wait_of(key, pace, in_line(key)), name)
        patience = None if self.max_wait is None else self.max_wait + GRACE_SECONDS
        turn = yield from stand_in_line(key, 1, patience)
        if turn is None:
            raise self._refusal(name, wait_of(key, pace))
        try:
            yield from self._wait(key, shared, came, name)
            start(key, pace)
        finally:
            turn.leave()
        return Ticket()

    def finish(self, ticket: Ticket, error: BaseException | None = None, **_: Any) -> Steps[None]:
        """Does nothing: a rate limit holds no place."""
        yield from ()

    def _wait(self, key: str, shared: SharedLimit | None, came: float, name: str | None) -> Steps[None]:
        """Wait until this process's rate and the fleet's rate allow a call."""
        while (wait := wait_of(key, self.pace)) > 0:
            self._refuse_beyond(came, wait, name)
            yield from sleep_for(wait)
        if shared is None:
            return
        # The API does not say when in the interval the next slot becomes free, so ask repeatedly.
        interval = self.pace.interval
        pause = max(SHORTEST_PAUSE, min(interval / 8, LONGEST_PAUSE))
        question = partial(shared.ask, lambda client: take_slot(client, shared.name))
        try:
            is_taken = yield from wait_for_slot(shared.name, question, came, self.max_wait, pause, pause)
        except ApiAway:
            return
        if not is_taken:
            raise self._refusal(name, interval)

    def _refuse_beyond(self, came: float, wait: float, name: str | None) -> None:
        if wait > 0 and wait > for_place(self.max_wait, monotonic() - came, None):
            raise self._refusal(name, wait)

    def _refusal(self, name: str | None, wait: float) -> RateLimitedError:
        return RateLimitedError(name, self.calls, self.per, wait)

    def _fleet_limit(self, name: str | None) -> SharedLimit | None:
        if name is None or run_going_on() is None:
            return None
        return SharedLimit(
            prefect_name("rate-limit", name), self.burst or 1, self.calls / self.per, limits.prefect_client
        )
