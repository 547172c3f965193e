"""Prefect's global concurrency limits, which a whole fleet shares, as far as the limits here need them.

Prefect itself is handed in as `connect`; nothing here imports it. Its own helpers (`prefect.concurrency`)
are not used: there, all callers of a process wait behind one that has to come back in up to 30 s, their time
limits begin only then, and an unavailable server is asked again for a minute. Here each request is made once.
Outages of the API come first in this file.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from random import random
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import httpx

from prefect_resilience.base.drive import Blocking, Steps, slept
from prefect_resilience.base.process import per_process
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.limits.line import FOR_EVER, for_server

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

logger: logging.Logger = logging.getLogger("prefect_resilience.limits")

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
"""Seconds, on average, between two requests of one caller."""

ASK_AGAIN_SECONDS = 5.0
"""During an outage, one caller in so many seconds asks the API."""

STALE_SECONDS = 300.0
"""An outage is forgotten after so long without a request."""


class ApiAway(Exception):
    """The API cannot be asked; the limit holds in this process alone."""


class ApiBusy(Exception):
    """The API could not answer just now: no time, no connection, no answer in time."""


@dataclass(slots=True)
class Outage:
    """An outage for one limit: `since` the first request without an answer, `last` the latest one."""

    since: float
    last: float
    alone_since: float | None = None
    ask_at: float = 0.0


class _Outages:
    """The outages that this process knows, by the limit's name."""

    def __init__(self) -> None:
        self.by_name: dict[str, Outage] = {}
        # Re-entrant: the garbage collector may end a coroutine, which releases its lease, at any time.
        self.lock = threading.RLock()


_outages = per_process(_Outages)


def silent(name: str) -> float:
    """How long the API has not answered, in seconds."""
    outage = _outages.by_name.get(name)
    return 0.0 if outage is None else monotonic() - outage.since


def began(name: str, *, for_good: bool = False) -> None:
    """A request was not answered. `for_good`: waiting for an answer does not help."""
    now = monotonic()
    with _outages.lock:
        outage = _outages.by_name.get(name)
        if outage is None or now - outage.last > STALE_SECONDS:
            if len(_outages.by_name) >= MOST_NAMES:
                _outages.by_name.clear()
            outage = _outages.by_name[name] = Outage(now, now)
        outage.last = now
        if for_good:
            outage.since = -FOR_EVER


def ended(name: str) -> None:
    """A request was answered."""
    outage = _outages.by_name.pop(name, None) if _outages.by_name else None
    if outage is not None and outage.alone_since is not None:
        logger.info(
            "Prefect's API answers again: the limit %r is shared again, after %.0f s in this process alone",
            name,
            monotonic() - outage.alone_since,
        )


def go_alone(name: str, why: str) -> None:
    """From now on the limit holds in this process alone. Says so once."""
    now = monotonic()
    with _outages.lock:
        outage = _outages.by_name.setdefault(name, Outage(now, now))
        outage.ask_at = now + ASK_AGAIN_SECONDS
        if outage.alone_since is not None:
            return
        outage.alone_since = now
    silence = now - outage.since
    logger.warning(
        "Prefect's API cannot be asked about the limit %r%s. Until it answers, the limit holds in this "
        "process alone, and the API is asked again every %g s: %s",
        name,
        "" if silence == FOR_EVER else f", for {silence:.0f} s now",
        ASK_AGAIN_SECONDS,
        why,
    )


def answered(name: str, question: Callable[[], T], came: float, max_wait: float | None) -> Steps[T]:
    """The answer to the question, as soon as the API answers. `came`: when the caller arrived.

    Raises ApiAway when the caller has waited long enough, and should go on without the API.
    """
    pause = FIRST_PAUSE
    while True:
        if _leave_alone(name, came, max_wait):
            raise ApiAway(name)
        try:
            return (yield Blocking(question))
        except ApiBusy as error:
            left = for_server(max_wait, monotonic() - came, silent(name))
            if left <= 0:
                go_alone(name, str(error))
                raise ApiAway(str(error)) from error
        yield from slept(min(left, pause * (0.5 + random())))
        pause = min(pause * 1.5, LONGEST_PAUSE)


def _leave_alone(name: str, came: float, max_wait: float | None) -> bool:
    """Whether to skip the API: there is an outage, and another caller has asked recently."""
    if not _outages.by_name:
        return False
    now = monotonic()
    with _outages.lock:
        outage = _outages.by_name.get(name)
        if outage is None or outage.alone_since is None:
            return False
        if for_server(max_wait, now - came, now - outage.since) > 0:
            return False
        if now < outage.ask_at:
            return True
        outage.ask_at = now + ASK_AGAIN_SECONDS
        return False


T = TypeVar("T")
Connect = Callable[[], AbstractContextManager["SyncPrefectClient"]]

MOST_NAMES = 10_000

_LOCKED, _GONE = 423, 410


@dataclass(frozen=True, slots=True)
class SharedLimit:
    """One of Prefect's limits: `limit` slots. `decay` slots per second become free by themselves."""

    name: str
    limit: int
    decay: float
    connect: Connect

    def ask(self, question: Callable[[SyncPrefectClient], T]) -> T:
        """The answer of the API to one question about this limit, which is created first if it is missing.

        Raises ApiBusy when it is worth asking again in a moment, and ApiAway when it is not.
        """
        try:
            with self.connect() as client:
                answer = self._answer(client, question)
        except Exception as error:  # whatever the API's trouble is, it is not the caller's
            passes = may_pass(error)
            began(self.name, for_good=not passes)
            said = str(error) if isinstance(error, ApiBusy) else redact(repr(error))
            if passes:
                raise ApiBusy(said) from error
            go_alone(self.name, said)
            raise ApiAway(said) from error
        ended(self.name)
        return answer

    def _answer(self, client: SyncPrefectClient, question: Callable[[SyncPrefectClient], T]) -> T:
        self._ensure(client)
        try:
            return question(client)
        except Exception as error:
            # 404 and 422: somebody has deleted or changed the limit. 403: Prefect's CSRF token was renewed.
            if status_of(error) not in (403, 404, 422):
                raise
        _made.pop((str(client.api_url), self.name), None)
        self._ensure(client)
        return question(client)

    def _ensure(self, client: SyncPrefectClient) -> None:
        """Create or update the limit, once per process: a limit that an operator changes later stays so."""
        key, wanted = (str(client.api_url), self.name), (self.limit, self.decay)
        if _made.get(key) == wanted:
            return
        try:
            client.upsert_global_concurrency_limit_by_name(self.name, self.limit, self.decay)
        except Exception as error:
            if status_of(error) != 409:
                raise
            # Another process made it just now, after the look and before the write.
            client.upsert_global_concurrency_limit_by_name(self.name, self.limit, self.decay)
        if len(_made) >= MOST_NAMES:
            _made.clear()
        _made[key] = wanted


class NoSuchLimit(Exception):
    """Prefect took a slot of no limit, as it does when the limit does not exist."""

    status_code = 404


def take_place(client: SyncPrefectClient, name: str, holder: Any, lease_seconds: float) -> UUID | None:
    """One slot of a concurrency limit: the id of its lease, or None when all are taken."""
    try:
        answer = client.increment_concurrency_slots_with_lease(
            names=[name], slots=1, mode="concurrency", lease_duration=lease_seconds, holder=holder
        ).json()
    except Exception as error:
        # 422 says that the limit is smaller than one: an operator has stopped all calls.
        if status_of(error) in (_LOCKED, 422):
            return None
        raise
    if not answer["limits"]:
        raise NoSuchLimit(name)
    return UUID(answer["lease_id"])


def take_slot(client: SyncPrefectClient, name: str) -> tuple[float, float]:
    """One slot of a rate limit: (0, 0), or the least and the most seconds until one is free.

    The wait that the server proposes is random, so how many slots are taken is read instead.
    """
    try:
        answer = client.increment_concurrency_slots(names=[name], slots=1, mode="rate_limit").json()
    except Exception as error:
        if status_of(error) not in (_LOCKED, 422):
            raise
        seen = client.read_global_concurrency_limit_by_name(name)
        rate = seen.slot_decay_per_second
        if rate <= 0:
            raise
        # At least one: it may have come free since, and where an operator has set the limit to 0, none will.
        over = max(1, seen.active_slots + 1 - seen.limit)
        return (over - 1) / rate, over / rate
    if not answer:
        raise NoSuchLimit(name)
    return 0.0, 0.0


def renew(client: SyncPrefectClient, lease_id: UUID, lease_seconds: float) -> bool:
    """Hold a lease for longer; False when it is gone."""
    try:
        client.renew_concurrency_lease(lease_id=lease_id, lease_duration=lease_seconds)
    except Exception as error:
        if status_of(error) == _GONE:
            return False
        raise
    return True


def give_up(client: SyncPrefectClient, lease_id: UUID) -> None:
    """Give a leased slot back; one whose lease has run out is back already."""
    try:
        client.release_concurrency_slots_with_lease(lease_id=lease_id)
    except Exception as error:
        if status_of(error) not in (404, _GONE):
            raise


def may_pass(error: Exception) -> bool:
    """Whether the API may answer the same question in a moment."""
    if isinstance(error, ApiBusy | httpx.TransportError):
        return True
    status = status_of(error)
    return status is not None and (status >= 500 or status in (408, 425, 429))


def status_of(error: Exception) -> int | None:
    """The HTTP status of an error of Prefect's client, which keeps it in various places."""
    source = getattr(error, "http_exc", None) or error
    status = getattr(getattr(source, "response", source), "status_code", None)
    return status if isinstance(status, int) else None


prefect_client: Connect
"""A client of the API of the current run. Set, like the next one, by `prefect_resilience.wiring`."""

lease_holder: Callable[[tuple[str, UUID] | None], Any]
"""Who Prefect shows as the holder of a place that a run has."""


def run_going_on() -> tuple[str, UUID] | None:
    """The kind and id of the task or flow run that this code is in, or None.

    Where nobody has imported Prefect's contexts, there is no run.
    """
    contexts = sys.modules.get("prefect.context")
    if contexts is None:
        return None
    task = contexts.TaskRunContext.get()
    if task is not None:
        return "task_run", task.task_run.id
    flow = contexts.FlowRunContext.get()
    if flow is None or flow.flow_run is None:
        return None
    return "flow_run", flow.flow_run.id


_made: dict[tuple[str, str], tuple[int, float]] = {}
"""The slots and decay of limits that this process has created or updated, by API and name."""
