"""Prefect's global concurrency limits, which a whole fleet shares, as far as the limits here need them.

Prefect itself is handed in as `connect`; nothing here imports it. Its own helpers (`prefect.concurrency`)
are not used: all callers of a process wait there behind the one who was told to come back in up to 30 s,
their time limits beginning only then, and a server that is away is asked again for a minute.
"""

from __future__ import annotations

import logging
import random
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import httpx

from prefect_resilience.errors.redact import redact

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

T = TypeVar("T")
Connect = Callable[[], AbstractContextManager["SyncPrefectClient"]]

logger: logging.Logger = logging.getLogger("prefect_resilience.limits")

AWAY_SECONDS = 30.0
"""How long an API that could not answer is left alone."""

BUSY_PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
"""Seconds, on average, between two askings of an API that has no time just now."""

MOST_NAMES = 10_000

_LOCKED, _GONE = 423, 410


class ApiAway(Exception):
    """The API could not answer; the limit holds in this process alone."""


class ApiBusy(Exception):
    """The API has no time just now, as while another request writes to its SQLite database."""


@dataclass(frozen=True, slots=True)
class SharedLimit:
    """One of Prefect's limits: `limit` slots, of which `decay` per second become free by themselves."""

    name: str
    limit: int
    decay: float
    connect: Connect

    def ask(self, question: Callable[[SyncPrefectClient], T]) -> T:
        """The answer of the API to one question about this limit, which exists by then.

        Raises ApiAway when there is none, and says so once in the log until there is one again.
        """
        if monotonic() < _away.get(self.name, 0.0):
            raise ApiAway(self.name)
        try:
            answer = self._answered_in_the_end(question)
        except Exception as error:  # whatever the API's trouble is, it is not the caller's
            self._report(error)
            raise ApiAway(self.name) from error
        if _away and _away.pop(self.name, None) is not None:
            logger.info("Prefect's API answers again: the limit %r is shared again", self.name)
        return answer

    def _answered_in_the_end(self, question: Callable[[SyncPrefectClient], T]) -> T:
        for pause in BUSY_PAUSES:
            try:
                with self.connect() as client:
                    return self._answer(client, question)
            except (ApiBusy, httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
                time.sleep(pause * (0.5 + random.random()))
        with self.connect() as client:
            return self._answer(client, question)

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

    def _report(self, error: Exception) -> None:
        with _saying:
            said = self.name in _away
            if len(_away) >= MOST_NAMES:
                _away.clear()
            _away[self.name] = monotonic() + AWAY_SECONDS
        if not said:
            logger.warning(
                "Prefect's API could not be asked about the limit %r, which until it answers holds in each "
                "process alone: %s",
                self.name,
                redact(repr(error)),
            )


class NoSuchLimit(Exception):
    """Prefect gave a slot of nothing, as it does when the limit does not exist."""

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

    The wait that the server proposes is drawn by lot, so how many slots are taken is read instead.
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


def status_of(error: Exception) -> int | None:
    """The HTTP status of an error of Prefect's client, which hides it in various places."""
    source = getattr(error, "http_exc", None) or error
    status = getattr(getattr(source, "response", source), "status_code", None)
    return status if isinstance(status, int) else None


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
_away: dict[str, float] = {}
_saying = threading.Lock()
