"""`Bulkhead`: how many calls may be going on at a time."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from random import random
from time import monotonic
from typing import TYPE_CHECKING, Any

import httpx
from pydantic import Field, field_validator

from prefect_resilience.drive import Blocking, Sequence
from prefect_resilience.limits.guarding import Limit, Ticket
from prefect_resilience.limits.leases import Lease, LeaseRequest, given_back
from prefect_resilience.limits.line import stood_in_line
from prefect_resilience.limits.names import prefect_name
from prefect_resilience.limits.refusals import BulkheadFullError
from prefect_resilience.limits.shared import ApiAway, ApiBusy, SharedLimit, run_going_on
from prefect_resilience.limits.spans import count, span
from prefect_resilience.limits.waiting import slept

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.settings import Settings

__all__ = ["Bulkhead", "BulkheadFullError", "prefect_client"]

API_SECONDS, CONNECT_SECONDS = 5.0, 2.0
"""The longest that one request to Prefect's API may take, and each of its four tries to connect."""

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
"""Seconds between two askings of the API for a place."""


class Bulkhead(Limit):
    """At most `max_concurrent` calls at a time; the others wait in order of arrival.

        Bulkhead(5, max_wait=2, name="llm:{provider}")

    In a flow or task run, and with a `name`, the places are those of Prefect's global concurrency limit
    "bulkhead:<name>" and so shared by the fleet; the limit is created or updated when a process first needs
    it. Elsewhere, and while the API cannot be reached, they are this process's. Between processes there is
    no order of arrival. A process that is killed loses its places after 60 to 80 s.

    `max_wait` is in seconds (also "500ms" or a timedelta); None waits for ever, 0 not at all. A call for
    which no place becomes free in that time raises `BulkheadFullError` and is not made. Raises
    `ConfigurationError` for what cannot be meant.
    """

    max_concurrent: int = Field(description="How many calls may be going on at a time.")
    max_wait: float | None = Field(default=None, description="Seconds to wait for a place; null is for ever.")
    name: str | None = Field(default=None, description="What the fleet knows the limit by.")

    def __init__(
        self,
        max_concurrent: int | None = None,
        max_wait: float | str | timedelta | None = None,
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
    def _is_a_span(cls, value: object) -> float | None:
        return None if value is None else span("Bulkhead's max_wait", value)

    def entered(self) -> Sequence[Ticket]:
        """Wait for a place. Raises BulkheadFullError."""
        name = self.settled_name()
        began = monotonic()
        place = yield from stood_in_line(f"bulkhead:{name or self._own}", self.max_concurrent, self.max_wait)
        if place is None:
            raise BulkheadFullError(name, self.max_concurrent, monotonic() - began)
        run = run_going_on() if name is not None else None
        if name is None or run is None:
            return Ticket(place)
        try:
            # Its place in this process is kept, too: it bounds the askers, and is the limit without the API.
            return Ticket(place, (yield from self._leased(name, began)))
        except BaseException:
            place.leave()
            raise

    def left(self, ticket: Ticket, error: BaseException | None = None) -> Sequence[None]:
        """Give the place back."""
        try:
            if ticket.lease is not None:
                yield from given_back(ticket.lease, error)
        finally:
            if ticket.place is not None:
                ticket.place.leave()

    def _leased(self, name: str, began: float) -> Sequence[Lease | None]:
        """A place in the fleet, or None when the API cannot be asked."""
        shared = SharedLimit(prefect_name("bulkhead", name), self.max_concurrent, 0.0, prefect_client)
        pause = FIRST_PAUSE
        while True:
            request = LeaseRequest(shared, _holder)
            try:
                lease = yield Blocking(request.ask)
            except ApiAway:
                return None
            except BaseException:
                request.abandon()
                raise
            if lease is not None:
                return lease
            waited = monotonic() - began
            left = float("inf") if self.max_wait is None else self.max_wait - waited
            if left <= 0:
                raise BulkheadFullError(name, self.max_concurrent, waited)
            yield from slept(min(left, pause * (0.5 + random())))
            pause = min(pause * 1.5, LONGEST_PAUSE)


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
