"""Leases of slots from Prefect's API: renewed while held, released once, and expired if the holder dies.

A call goes on without a slot if it was admitted while the API did not answer, or if its lease expired before
it could be renewed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from prefect_resilience.base.drive import Blocking, Steps
from prefect_resilience.base.process import at_exit, per_process, start_thread
from prefect_resilience.guards.limits.shared import (
    ApiAway,
    ApiBusy,
    SharedLimit,
    give_up,
    logger,
    renew,
    take_place,
)
from prefect_resilience.guards.timeouts.threads import start_call

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

T = TypeVar("T")

LEASE_SECONDS = 60.0
"""The shortest lease that Prefect grants. A dead holder keeps its slot for up to 15 s longer."""

RENEW_SECONDS = 20.0
TICK_SECONDS = 2.0

EXIT_SECONDS = 3.0
"""How long an exiting process tries to release its slots; slots that are left expire."""

MOST_FAILURES = 5
"""After this many requests in a row without an answer, the thread that renews waits for its next tick."""


class Lease:
    """One slot of this process; `id` is None while the API has not granted it."""

    __slots__ = ("_asking", "_context", "_ends_at", "_holder", "_over", "_shared", "due", "id")

    def __init__(self, shared: SharedLimit, holder: Any) -> None:
        self.id: UUID | None = None
        self.due: float = 0.0
        """When the next request is due: to renew the lease, or to release it."""
        self._shared = shared
        self._holder = holder
        # The context has the settings of the right API.
        self._context = copy_context()
        self._over = False
        self._asking = threading.Lock()
        self._ends_at = 0.0

    def take(self) -> bool:
        """Request a slot; False if none is free. A slot granted after `release` is released at once.

        Raises ApiBusy and ApiAway.
        """
        name, holder = self._shared.name, self._holder
        with self._asking:
            lease_id = self._ask(lambda client: take_place(client, name, holder, LEASE_SECONDS))
            if lease_id is None:
                return False
            self._holds(lease_id)
        with _leases.lock:
            _leases.held.add(self)
            if not _leases.renewing:
                _leases.renewing = True
                start_thread("leases", _renew_all)
        if self._over:
            self.release()
        return True

    def release(self) -> bool:
        """Release the slot; a second call does nothing. Never raises.

        Returns whether the API has answered. If not, the thread that renews leases retries.
        """
        self._over, self.due = True, 0.0
        return self.tend()

    def tend(self) -> bool:
        """Make the request that is due. Returns whether the API answered. Never raises."""
        with self._asking:
            try:
                self._tend()
            except (ApiBusy, ApiAway):
                if self._over and time.monotonic() > self._ends_at:
                    _drop(self)  # it has expired
                return False
            return True

    def _tend(self) -> None:
        held = self.id
        if held is not None and self._over:
            self._ask(lambda client: give_up(client, held))
        elif held is not None:
            if self._ask(lambda client: renew(client, held, LEASE_SECONDS)):
                self._holds(held)
                return
            logger.warning(
                "Lost a place of the limit %r, because it was not renewed in time; its call continues",
                self._shared.name,
            )
        self.id = None
        _drop(self)

    def _holds(self, lease_id: UUID) -> None:
        now = time.monotonic()
        self.id, self.due, self._ends_at = lease_id, now + RENEW_SECONDS, now + LEASE_SECONDS

    def _ask(self, question: Callable[[SyncPrefectClient], T]) -> T:
        # A copy, because two threads cannot be in one context at a time.
        return self._context.copy().run(self._shared.ask, question)


def give_back(lease: Lease, error: BaseException | None) -> Steps[None]:
    """Release the lease and wait for that; after a cancellation, release it on another thread.

    If the API does not answer, the thread that renews leases continues.
    """
    if error is not None and not isinstance(error, Exception):
        start_call(lease.release)
        return
    try:
        yield Blocking(lease.release)
    except BaseException:
        start_call(lease.release)
        raise


# -- one thread renews all leases of the process


class _Leases:
    def __init__(self) -> None:
        self.held: set[Lease] = set()
        self.renewing = False
        """Whether the thread runs."""
        # Re-entrant: the garbage collector may end a coroutine, which releases its lease, at any time.
        self.lock = threading.RLock()


_leases = per_process(_Leases)


def _drop(lease: Lease) -> None:
    with _leases.lock:
        _leases.held.discard(lease)


def _renew_all() -> None:
    """The thread's loop: it ends when no lease is held."""
    while True:
        time.sleep(TICK_SECONDS)
        with _leases.lock:
            if not _leases.held:
                _leases.renewing = False
                return
            now = time.monotonic()
            due = [lease for lease in _leases.held if lease.due <= now]
        failures = 0
        for lease in sorted(due, key=lambda lease: lease.due):
            failures = 0 if lease.tend() else failures + 1
            if failures == MOST_FAILURES:
                break


@at_exit
def _give_up_all() -> None:  # pyright: ignore[reportUnusedFunction]
    """Release all slots when the process exits normally, also after its flow run was terminated."""
    until = time.monotonic() + EXIT_SECONDS
    with _leases.lock:
        leases = list(_leases.held)
    for lease in leases:
        if time.monotonic() < until:
            lease.release()
