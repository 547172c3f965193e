"""`Bulkhead`: how many calls may be going on at a time."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from random import random
from time import monotonic
from typing import TYPE_CHECKING, Any

import httpx
from pydantic import Field, field_validator

from prefect_resilience.drive import Sequence, drive
from prefect_resilience.durations import Duration, seconds
from prefect_resilience.limits.guarding import Limit, Ticket
from prefect_resilience.limits.leases import Lease, LeaseRequest, given_back
from prefect_resilience.limits.line import overdue_places, stood_in_line
from prefect_resilience.limits.names import prefect_name
from prefect_resilience.limits.outages import FIRST_PAUSE, LONGEST_PAUSE, ApiAway, ApiBusy, answered
from prefect_resilience.limits.overdue import begins, still_runs
from prefect_resilience.limits.patience import for_place
from prefect_resilience.limits.refusals import BulkheadFullError
from prefect_resilience.limits.shared import SharedLimit, run_going_on
from prefect_resilience.limits.spans import count
from prefect_resilience.limits.threads import start_call
from prefect_resilience.limits.waiting import slept

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.settings import Settings

__all__ = ["Bulkhead", "BulkheadFullError", "prefect_client"]

API_SECONDS, CONNECT_SECONDS = 5.0, 2.0
"""The longest that one request to Prefect's API may take, and each of its four tries to connect."""


class Bulkhead(Limit):
    """At most `max_concurrent` calls at a time; the others wait in order of arrival.

        Bulkhead(5, max_wait=2, name="llm:{provider}")

    In a flow or task run, and with a `name`, the places are those of Prefect's global concurrency limit
    "bulkhead:<name>" and so shared by the fleet; the limit is created or updated when a process first needs
    it. Elsewhere they are this process's. Between processes there is no order of arrival. A process that is
    killed loses its places after 60 to 80 s.

    While the API does not answer (503, no connection, no answer in time), a call asks it again for up to
    `max_wait`, for 2 s at least; without a `max_wait`, for 60 s. Then the limit holds in this process alone,
    with a warning in the log, until the API answers again.

    A place is held until its call has really ended. An overdue call keeps it while it goes on after its
    attempt: a thread that was left at its deadline, or one that `asyncio.to_thread` started for a coroutine
    that was cancelled. Its retries wait for a place like any other call.

    `max_wait` is in seconds (also "500ms" or a timedelta); None waits for ever, 0 not at all. A call for
    which no place becomes free in that time raises `BulkheadFullError` and is not made. While overdue calls
    hold every place, None waits for 60 s. Raises `ConfigurationError` for what cannot be meant.
    """

    max_concurrent: int = Field(description="How many calls may be going on at a time.")
    max_wait: float | None = Field(default=None, description="Seconds to wait for a place; null is for ever.")
    name: str | None = Field(default=None, description="What the fleet knows the limit by.")

    def __init__(
        self,
        max_concurrent: int | None = None,
        max_wait: Duration | None = None,
        name: str | None = None,
        **more: Any,
    ) -> None:
        given = {"max_concurrent": max_concurrent, "max_wait": max_wait, "name": name}
        super().__init__(**given, **more)

    @field_validator("max_concurrent", mode="before")
    @classmethod
    def _is_a_count(cls, value: object) -> int:
        return count("Bulkhead's max_concurrent", value, "Bulkhead(5)")

    @field_validator("max_wait", mode="before")
    @classmethod
    def _is_a_seconds(cls, value: object) -> float | None:
        return None if value is None else seconds("Bulkhead's max_wait", value)

    def entered(self) -> Sequence[Ticket]:
        """Wait for a place. Raises BulkheadFullError."""
        name = self.settled_name()
        began = monotonic()
        place = yield from stood_in_line(self._line(name), self.max_concurrent, self.max_wait)
        if place is None:
            raise self._refusal(name, began)
        lease = None
        try:
            if name is not None and run_going_on() is not None:
                # Its place in this process is kept, too: it bounds the askers, and holds without the API.
                lease = yield from self._leased(name, began)
        except BaseException:
            place.leave()
            raise
        ticket = Ticket(place, lease)
        begins(ticket)
        return ticket

    def left(self, ticket: Ticket, error: BaseException | None = None) -> Sequence[None]:
        """Give the place back, or leave it to the call while that still runs after its attempt."""
        if not still_runs(ticket, error, partial(_give_back, ticket)):
            yield from _given_back(ticket, error)
        elif ticket.place is not None:
            ticket.place.overdue()

    def _line(self, name: str | None) -> str:
        return f"bulkhead:{self._key(name)}"

    def _refusal(self, name: str | None, began: float) -> BulkheadFullError:
        overdue = overdue_places(self._line(name))
        return BulkheadFullError(name, self.max_concurrent, monotonic() - began, overdue)

    def _leased(self, name: str, came: float) -> Sequence[Lease]:
        """A place in the fleet; one without a slot when the API does not answer for too long."""
        shared = SharedLimit(prefect_name("bulkhead", name), self.max_concurrent, 0.0, prefect_client)
        request, pause = LeaseRequest(shared, _holder()), FIRST_PAUSE
        while True:
            try:
                lease = yield from answered(shared.name, request.ask, came, self.max_wait)
            except ApiAway:
                return request.without_slot()
            except BaseException:
                request.abandon()
                raise
            if lease is not None:
                return lease
            left = for_place(self.max_wait, monotonic() - came, None)
            if left <= 0:
                raise self._refusal(name, came)
            yield from slept(min(left, pause * (0.5 + random())))
            pause = min(pause * 1.5, LONGEST_PAUSE)


def _give_back(ticket: Ticket) -> None:
    """An overdue call has ended. Does not wait for the API."""
    if ticket.lease is not None:
        start_call(drive, _given_back(ticket, None))
    elif ticket.place is not None:
        ticket.place.leave()


def _given_back(ticket: Ticket, error: BaseException | None) -> Sequence[None]:
    try:
        if ticket.lease is not None:
            yield from given_back(ticket.lease, error)
    finally:
        if ticket.place is not None:
            ticket.place.leave()


def _holder() -> Any:
    """Who Prefect shows as the holder of a place: the run that is going on."""
    from prefect.client.schemas.objects import ConcurrencyLeaseHolder

    run = run_going_on()
    return None if run is None else ConcurrencyLeaseHolder.model_validate({"type": run[0], "id": run[1]})


@contextmanager
def prefect_client() -> Generator[SyncPrefectClient, None, None]:
    """A client of the API of the current run, kept by the process, that does not try again by itself."""
    from prefect.client.orchestration import get_client
    from prefect.context import SettingsContext, get_settings_context
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_KEY, PREFECT_API_URL

    context = get_settings_context()
    with SettingsContext(profile=context.profile, settings=_without_retries(context.settings)):
        key = (PREFECT_API_URL.value(), str(PREFECT_API_KEY.value()), str(PREFECT_API_AUTH_STRING.value()))
        client = _clients.get(key)
        if client is None:
            timeout = httpx.Timeout(API_SECONDS, connect=CONNECT_SECONDS)
            hooks = {"response": [_refuse_busy]}
            client = get_client(httpx_settings={"timeout": timeout, "event_hooks": hooks}, sync_client=True)
            client = _clients.setdefault(key, client.__enter__())
        try:
            yield client
        except Exception as error:
            if getattr(error, "response", None) is None and getattr(error, "http_exc", None) is None:
                _clients.pop(key, None)  # no answer at all: the next one connects anew
            raise


def _refuse_busy(response: httpx.Response) -> None:
    """Tell a busy API before Prefect's client sleeps on it."""
    if response.status_code in (408, 429, 502, 503):
        raise ApiBusy(f"{response.status_code} of {response.request.method} {response.request.url.path}")


def _without_retries(settings: Settings) -> Settings:
    """The same settings without the client's retries, which would hold up a call for a minute."""
    global _quick
    from prefect.settings import PREFECT_CLIENT_MAX_RETRIES

    if _quick is None or _quick[0] is not settings:
        _quick = (settings, settings.copy_with_update(updates={PREFECT_CLIENT_MAX_RETRIES: 0}))
    return _quick[1]


_clients: dict[tuple[str | None, str, str], SyncPrefectClient] = {}
_quick: tuple[Settings, Settings] | None = None  # making them takes longer than a request

if hasattr(os, "register_at_fork"):
    # A forked child that wrote into its parent's connections would garble both.
    os.register_at_fork(after_in_child=_clients.clear)
