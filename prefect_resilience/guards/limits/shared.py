"""Prefect's global concurrency limits, which a whole fleet shares, and outages of Prefect's API.

Prefect's client comes in as `connect`; nothing here imports Prefect. Prefect's own helpers
(`prefect.concurrency`) are not used: there, all callers of a process wait behind one caller that may sleep
for up to 30 s, their timeouts start only after that, and requests to an unavailable server are retried for a
minute. Here each request is made once.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from random import random
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from prefect_resilience.base.drive import Blocking, Steps, sleep_for
from prefect_resilience.base.process import per_process
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.limits.line import for_place, for_server

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

logger: logging.Logger = logging.getLogger("prefect_resilience.limits")

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
"""Seconds, on average, between two requests of one caller."""

ASK_AGAIN_SECONDS = 5.0
"""During an outage, one caller makes a request in each period of this length."""


class ApiAway(Exception):
    """The API is unavailable; the limit holds in this process alone."""


class ApiBusy(Exception):
    """The API did not answer for now: it is busy, there is no connection, or the request timed out."""


class _Outages:
    """The outages that this process knows, by the limit's name."""

    def __init__(self) -> None:
        # Since when, and when the next request may be made.
        self.by_name: dict[str, tuple[float, float]] = {}
        # Re-entrant: the garbage collector may end a coroutine, which releases its lease, at any time.
        self.lock = threading.RLock()


_outages = per_process(_Outages)


def note_answer(name: str) -> None:
    """A request was answered."""
    outage = _outages.by_name.pop(name, None) if _outages.by_name else None
    if outage is not None:
        logger.info(
            "Prefect's API is available again: the limit %r is shared again, after %.0f s in this process "
            "only",
            name,
            monotonic() - outage[0],
        )


def go_alone(name: str, why: str) -> None:
    """From now on the limit holds in this process alone. Logs that once per outage."""
    now = monotonic()
    with _outages.lock:
        outage = _outages.by_name.get(name)
        since = now if outage is None else outage[0]
        _outages.by_name[name] = since, now + ASK_AGAIN_SECONDS
    if outage is None:
        logger.warning(
            "Prefect's API is unavailable for the limit %r. Until it answers, the limit applies in this "
            "process only, and the request is retried every %g s: %s",
            name,
            ASK_AGAIN_SECONDS,
            why,
        )


def ask_api(name: str, question: Callable[[], T], came: float, max_wait: float | None) -> Steps[T]:
    """The result of `question`, a request that is retried until the API answers. `came`: the arrival time.

    Raises ApiAway when the caller has waited long enough, and should go on without the API.
    """
    asked, pause = monotonic(), FIRST_PAUSE
    while not _is_left_alone(name):
        try:
            return (yield Blocking(question))
        except ApiBusy as error:
            now = monotonic()
            remaining = for_server(max_wait, now - came, now - asked)
            if remaining <= 0 or name in _outages.by_name:
                go_alone(name, str(error))
                raise ApiAway(str(error)) from error
        yield from sleep_for(min(remaining, pause * (0.5 + random())))
        pause = min(pause * 1.5, LONGEST_PAUSE)
    raise ApiAway(name)


def wait_for_slot(
    name: str,
    take: Callable[[], Any],
    came: float,
    max_wait: float | None,
    first: float = FIRST_PAUSE,
    longest: float = LONGEST_PAUSE,
) -> Steps[bool]:
    """Ask the API for a slot until there is one; False if none became free in time. The pauses between two
    requests grow from `first` to `longest`. Raises ApiAway, as `ask_api`."""
    pause = first
    while not (yield from ask_api(name, take, came, max_wait)):
        remaining = for_place(max_wait, monotonic() - came, None)
        if remaining <= 0:
            return False
        yield from sleep_for(min(remaining, pause * (0.5 + random())))
        pause = min(pause * 1.5, longest)
    return True


def _is_left_alone(name: str) -> bool:
    """Whether to skip the API: there is an outage, and another caller made a request recently."""
    if name not in _outages.by_name:
        return False
    now = monotonic()
    with _outages.lock:
        outage = _outages.by_name.get(name)
        if outage is None or now < outage[1]:
            return outage is not None
        _outages.by_name[name] = outage[0], now + ASK_AGAIN_SECONDS
        return False


T = TypeVar("T")
Connect = Callable[[], AbstractContextManager["SyncPrefectClient"]]

MOST_NAMES = 10_000

# 422: the limit is smaller than one, since an operator has stopped all calls.
_FULL, _GONE = (423, 422), (410,)


@dataclass(frozen=True, slots=True)
class SharedLimit:
    """One of Prefect's limits: `limit` slots. `decay` slots per second become free by themselves."""

    name: str
    limit: int
    decay: float
    connect: Connect

    def ask(self, question: Callable[[SyncPrefectClient], T]) -> T:
        """The API's answer to one request about this limit. A missing limit is created first.

        Raises ApiBusy if a retry in a moment may succeed, else ApiAway.
        """
        try:
            with self.connect() as client:
                answer = self._answer(client, question)
        except Exception as error:  # any failure of the API; the caller's work must go on
            message = str(error) if isinstance(error, ApiBusy) else redact(repr(error))
            if may_pass(error):
                raise ApiBusy(message) from error
            go_alone(self.name, message)
            raise ApiAway(message) from error
        note_answer(self.name)
        return answer

    def _answer(self, client: SyncPrefectClient, question: Callable[[SyncPrefectClient], T]) -> T:
        self._ensure(client)
        try:
            return question(client)
        except Exception as error:
            # 404 and 422: the limit was deleted or changed. 403: Prefect's CSRF token was renewed.
            if status_of(error) not in (403, 404, 422):
                raise
        _made.pop((str(client.api_url), self.name), None)
        self._ensure(client)
        return question(client)

    def _ensure(self, client: SyncPrefectClient) -> None:
        """Create or update the limit, once per process: later changes by an operator are kept."""
        key, wanted = (str(client.api_url), self.name), (self.limit, self.decay)
        if _made.get(key) == wanted:
            return
        client.upsert_global_concurrency_limit_by_name(self.name, self.limit, self.decay)
        if len(_made) >= MOST_NAMES:
            _made.clear()
        _made[key] = wanted


class NoSuchLimit(Exception):
    """The limit does not exist; Prefect's answer then names no limit."""

    status_code = 404


def take_place(client: SyncPrefectClient, name: str, holder: Any, lease_seconds: float) -> UUID | None:
    """Take one slot of a concurrency limit: the id of its lease, or None if all slots are taken."""
    take = partial(client.increment_concurrency_slots_with_lease, names=[name], slots=1, mode="concurrency")
    answer = _ask_unless(_FULL, partial(take, lease_duration=lease_seconds, holder=holder))
    if answer is not None and not answer.json()["limits"]:
        raise NoSuchLimit(name)
    return None if answer is None else UUID(answer.json()["lease_id"])


def take_slot(client: SyncPrefectClient, name: str) -> bool:
    """Take one slot of a rate limit; False if none is free."""
    take = partial(client.increment_concurrency_slots, names=[name], slots=1, mode="rate_limit")
    answer = _ask_unless(_FULL, take)
    if answer is not None and not answer.json():
        raise NoSuchLimit(name)
    return answer is not None


def renew(client: SyncPrefectClient, lease_id: UUID, lease_seconds: float) -> bool:
    """Extend a lease; False if it no longer exists."""
    ask = partial(client.renew_concurrency_lease, lease_id=lease_id, lease_duration=lease_seconds)
    return _ask_unless(_GONE, lambda: (ask(), True)) is not None


def give_up(client: SyncPrefectClient, lease_id: UUID) -> None:
    """Release a leased slot; the slot of an expired lease is free already."""
    _ask_unless((404, *_GONE), partial(client.release_concurrency_slots_with_lease, lease_id=lease_id))


def _ask_unless(statuses: tuple[int, ...], request: Callable[[], T]) -> T | None:
    """The answer to a request; None if its status is one of these."""
    try:
        return request()
    except Exception as error:
        if status_of(error) in statuses:
            return None
        raise


def may_pass(error: Exception) -> bool:
    """Whether the API may answer the same request in a moment."""
    import httpx

    if isinstance(error, ApiBusy | httpx.TransportError):
        return True
    status = status_of(error)
    # 409: another process created the limit between the read and the write of this request.
    return status is not None and (status >= 500 or status in (408, 409, 425, 429))


def status_of(error: Exception) -> int | None:
    """The HTTP status of an error of Prefect's client; its exceptions have it in various attributes."""
    source = getattr(error, "http_exc", None) or error
    status = getattr(getattr(source, "response", source), "status_code", None)
    return status if isinstance(status, int) else None


def run_going_on() -> tuple[str, UUID] | None:
    """The kind and id of the current task or flow run, or None.

    If Prefect's contexts were never imported, there is no run.
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
