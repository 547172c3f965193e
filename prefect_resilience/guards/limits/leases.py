"""Leases of slots at Prefect's API: renewed while held, given back once, and expired if the holder dies.

A holder may be without a slot for a while: it was let in while the API did not answer, or its lease ran out
before it could be renewed. Its call goes on, and a slot is taken for it as soon as there is one, so that the
fleet's count is right again.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from random import random
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from prefect_resilience.base.drive import Blocking, Steps, slept
from prefect_resilience.guards.limits.shared import (
    FIRST_PAUSE,
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
"""The shortest lease that Prefect gives. A dead holder keeps its slot for that long and up to 15 s more."""

RENEW_SECONDS = 20.0
TICK_SECONDS = 2.0

RELEASE_SECONDS = 1.0
"""How long a caller asks to give its slot back; then the thread that renews goes on with it."""

EXIT_SECONDS = 3.0
"""How long a process that ends asks to give its slots back; then they run out by themselves."""

MOST_FAILURES = 5
"""After so many questions in a row without an answer, the thread that renews waits for its next tick."""


class Lease:
    """One slot of this process; `id` is None until the API has given it."""

    __slots__ = ("_asking", "_context", "_ends_at", "_holder", "_over", "_shared", "due", "id")

    def __init__(self, shared: SharedLimit, holder: Any, lease_id: UUID | None = None) -> None:
        self.id: UUID | None = lease_id
        self.due: float = 0.0
        """When the API is to be asked next: to renew it, to take a slot, to give it back."""
        self._shared = shared
        self._holder = holder
        # Which API is meant, and with which settings, stands in the context.
        self._context = copy_context()
        self._over = False
        self._asking = threading.Lock()
        self._ends_at = 0.0
        if lease_id is not None:
            self._holds(lease_id)

    def release(self) -> bool:
        """Give the slot back; a second time does nothing. Whether that is done; else it is tried again.

        Never raises.
        """
        self._over, self.due = True, 0.0
        return self.tend()

    def tend(self) -> bool:
        """Ask the API for what is due. Whether it answered. Never raises."""
        with self._asking:
            try:
                self._tended()
            except (ApiBusy, ApiAway):
                if self._over and time.monotonic() > self._ends_at:
                    _drop(self)  # it has run out by itself
                return False
            return True

    def _tended(self) -> None:
        if self._over:
            if (lease_id := self.id) is not None:
                self._ask(lambda client: give_up(client, lease_id))
                self.id = None
            _drop(self)
            return
        name, holder, held = self._shared.name, self._holder, self.id
        if held is not None:
            if self._ask(lambda client: renew(client, held, LEASE_SECONDS)):
                self._holds(held)
                return
            self.id = None
            logger.warning(
                "A place of the limit %r was lost, since it could not be renewed in time; the call that held "
                "it goes on, and takes the next one that is free",
                name,
            )
        taken = self._ask(lambda client: take_place(client, name, holder, LEASE_SECONDS))
        if taken is not None:
            self._holds(taken)

    def _holds(self, lease_id: UUID) -> None:
        now = time.monotonic()
        self.id, self.due, self._ends_at = lease_id, now + RENEW_SECONDS, now + LEASE_SECONDS

    def _ask(self, question: Callable[[SyncPrefectClient], T]) -> T:
        # A copy, because two threads cannot be in one context at a time.
        return self._context.copy().run(self._shared.ask, question)


class LeaseRequest:
    """One asking for a slot, whose asker may go away: what still comes is then given back."""

    def __init__(self, shared: SharedLimit, holder: Any) -> None:
        self._shared = shared
        self._holder = holder
        self._gone = False
        self._lease: Lease | None = None

    def ask(self) -> Lease | None:
        """The lease, or None when no slot is free. Raises ApiBusy and ApiAway."""
        name, holder = self._shared.name, self._holder
        lease_id = self._shared.ask(lambda client: take_place(client, name, holder, LEASE_SECONDS))
        if lease_id is None:
            return None
        lease = self._lease = self._kept(lease_id)
        if self._gone:
            lease.release()
        return lease

    def without_slot(self) -> Lease:
        """The lease of a caller who goes on without the API: it has its slot later."""
        return self._kept(None)

    def _kept(self, lease_id: UUID | None) -> Lease:
        lease = Lease(self._shared, self._holder, lease_id)
        _keep(lease)
        return lease

    def abandon(self) -> None:
        self._gone = True
        if self._lease is not None:
            start_call(self._lease.release)


def given_back(lease: Lease, error: BaseException | None) -> Steps[None]:
    """Release the lease before going on, or beside it where nothing may be awaited: after a cancellation."""
    if error is not None and not isinstance(error, Exception):
        start_call(lease.release)
        return
    try:
        pause, until = FIRST_PAUSE, time.monotonic() + RELEASE_SECONDS
        while not (yield Blocking(lease.release)) and time.monotonic() < until:
            yield from slept(pause * (0.5 + random()))
            pause *= 2
    except BaseException:
        start_call(lease.release)
        raise


# -- one thread renews all leases of the process

_held: set[Lease] = set()
# Re-entrant: the garbage collector may end a caller's coroutine, which gives its lease back, at any time.
_lock = threading.RLock()
_thread: threading.Thread | None = None


def _keep(lease: Lease) -> None:
    global _thread
    with _lock:
        _held.add(lease)
        if _thread is None:
            _thread = threading.Thread(target=_renew_all, name="prefect-resilience-leases", daemon=True)
            _thread.start()


def _drop(lease: Lease) -> None:
    with _lock:
        _held.discard(lease)


def _renew_all() -> None:
    """The life of the thread: it ends when nothing is held any more."""
    global _thread
    while True:
        time.sleep(TICK_SECONDS)
        with _lock:
            if not _held:
                _thread = None
                return
            now = time.monotonic()
            due = [lease for lease in _held if lease.due <= now]
        _tend(sorted(due, key=lambda lease: lease.due))


def _tend(leases: list[Lease]) -> None:
    failures = 0
    for lease in leases:
        failures = 0 if lease.tend() else failures + 1
        if failures == MOST_FAILURES:
            return


def _at_exit() -> None:
    """A process that ends in order, a terminated flow run too, leaves no slot taken."""
    until = time.monotonic() + EXIT_SECONDS
    with _lock:
        left = list(_held)
    while left and time.monotonic() < until:
        lease = left.pop(0)
        if not lease.release():
            left.append(lease)
            time.sleep(FIRST_PAUSE)


def _forget() -> None:
    """A forked child holds nothing of its parent's, and has no thread that renews."""
    global _lock, _thread
    _lock, _thread = threading.RLock(), None
    _held.clear()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
