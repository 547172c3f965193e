"""`Bulkhead`: a limit on concurrent calls."""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from prefect_resilience.base.drive import Steps, drive
from prefect_resilience.base.durations import Duration, Seconds
from prefect_resilience.guards import limits
from prefect_resilience.guards.limits.guarding import BulkheadFullError, NamedLimit, Ticket, prefect_name
from prefect_resilience.guards.limits.leases import Lease, give_back
from prefect_resilience.guards.limits.line import overdue_places, stand_in_line
from prefect_resilience.guards.limits.shared import ApiAway, SharedLimit, run_going_on, wait_for_slot
from prefect_resilience.guards.timeouts.overdue import begins, still_runs
from prefect_resilience.guards.timeouts.threads import start_call


class Bulkhead(NamedLimit):
    """At most `max_concurrent` calls at a time; the others wait in order of arrival.

        Bulkhead(5, max_wait=2, name="llm:{provider}")

    In a flow or task run, and with a `name`, the fleet shares the places: they are slots of Prefect's global
    concurrency limit "bulkhead:<name>", which is created or updated when a process first needs it. Elsewhere
    each process has places of its own. Between processes there is no order of arrival. A process that is
    killed loses its places after 60 to 80 s.

    While the API does not answer (503, no connection, no answer in time), a call retries the request for up
    to `max_wait`, for 2 s at least; without a `max_wait`, for 60 s. Then the limit holds in this process
    alone, with a warning in the log, until the API answers again.

    A place is held until its call has really ended. An overdue call keeps its place while it goes on after
    its attempt: in a thread abandoned at the deadline, or in one that `asyncio.to_thread` started for a
    coroutine that was cancelled. Its retries wait for a place like any other call.

    `max_wait` is in seconds (also "500ms" or a timedelta); None waits for ever, 0 not at all. If no place
    becomes free in that time, `BulkheadFullError` is raised and the call is not made. While overdue calls
    hold every place, None waits for 60 s. Raises `ConfigurationError` for invalid options.
    """

    by_position: ClassVar[tuple[str, ...]] = ("max_concurrent", "max_wait", "name")

    max_concurrent: int = Field(strict=True, ge=1, description="The maximum number of concurrent calls.")
    max_wait: Seconds | None = Field(
        default=None, description="The longest wait for a place, in seconds; null: no limit."
    )
    name: str | None = Field(default=None, description="The name under which the fleet shares the limit.")

    if TYPE_CHECKING:

        def __init__(
            self, max_concurrent: int, max_wait: Duration | None = None, name: str | None = None
        ) -> None: ...

    def acquire(self) -> Steps[Ticket]:
        """Wait for a place. Raises BulkheadFullError."""
        name = self.final_name()
        began = monotonic()
        place = yield from stand_in_line(self._line(name), self.max_concurrent, self.max_wait)
        if place is None:
            raise self._refusal(name, began)
        lease = None
        try:
            if name is not None and run_going_on() is not None:
                # The place in this process stays taken: it bounds the requests, and works without the API.
                lease = yield from self._take_lease(name, began)
            return begins(Ticket(place, lease))
        except BaseException:
            _give_back(Ticket(place, lease))
            raise

    def finish(self, ticket: Ticket, error: BaseException | None = None, **_: Any) -> Steps[None]:
        """Release the place; if the call still runs after its attempt, when it has ended."""
        if not still_runs(ticket, error, partial(_give_back, ticket)):
            yield from _release_ticket(ticket, error)
        elif ticket.place is not None:
            ticket.place.overdue()

    def _line(self, name: str | None) -> str:
        return f"bulkhead:{self._key(name)}"

    def _refusal(self, name: str | None, began: float) -> BulkheadFullError:
        overdue = overdue_places(self._line(name))
        return BulkheadFullError(name, self.max_concurrent, monotonic() - began, overdue)

    def _take_lease(self, name: str, came: float) -> Steps[Lease | None]:
        """A lease in the fleet; None if the API does not answer for too long."""
        shared = SharedLimit(prefect_name("bulkhead", name), self.max_concurrent, 0.0, limits.prefect_client)
        lease = Lease(shared, limits.lease_holder(run_going_on()))
        try:
            if (yield from wait_for_slot(shared.name, lease.take, came, self.max_wait)):
                return lease
        except ApiAway:
            return None
        except BaseException:
            start_call(lease.release)  # the API may still grant it a slot
            raise
        raise self._refusal(name, came)


def _give_back(ticket: Ticket) -> None:
    """Release the place of an overdue call that has ended. Does not wait for the API."""
    if ticket.lease is not None:
        start_call(drive, _release_ticket(ticket, None))
    elif ticket.place is not None:
        ticket.place.leave()


def _release_ticket(ticket: Ticket, error: BaseException | None) -> Steps[None]:
    try:
        if ticket.lease is not None:
            yield from give_back(ticket.lease, error)
    finally:
        if ticket.place is not None:
            ticket.place.leave()
