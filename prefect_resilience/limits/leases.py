"""Leases of slots at Prefect's API: renewed while they are held, given back once, lost by whoever dies."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from prefect_resilience.drive import Blocking, Sequence
from prefect_resilience.limits.shared import ApiAway, SharedLimit, logger, renew, take_place
from prefect_resilience.limits.threads import start_call

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

T = TypeVar("T")

LEASE_SECONDS = 60.0
"""The shortest lease that Prefect gives. A dead holder keeps its slot for that long and up to 15 s more."""

RENEW_SECONDS = 20.0
TICK_SECONDS = 2.0


class Lease:
    """One slot that this process holds."""

    __slots__ = ("_context", "_given_back", "_shared", "id", "renew_at")

    def __init__(self, lease_id: UUID, shared: SharedLimit) -> None:
        self.id: UUID = lease_id
        self.renew_at: float = time.monotonic() + RENEW_SECONDS
        self._shared = shared
        # Which API is meant, and with which settings, stands in the context.
        self._context = copy_context()
        self._given_back = False

    def renew(self) -> None:
        """Hold it for another while. Never raises."""
        self.renew_at = time.monotonic() + RENEW_SECONDS
        try:
            held = self._ask(lambda client: renew(client, self.id, LEASE_SECONDS))
        except ApiAway:
            return  # as good as held: nobody can take it while the API is away
        if not held:
            _drop(self)
            if not self._given_back:
                logger.warning(
                    "A place of the limit %r was lost, since it could not be renewed in time; the call that "
                    "holds it goes on",
                    self._shared.name,
                )

    def release(self) -> None:
        """Give the slot back; a second time does nothing. Never raises: the lease ends by itself."""
        with _lock:
            if self._given_back:
                return
            self._given_back = True
        try:
            self._ask(lambda client: client.release_concurrency_slots_with_lease(lease_id=self.id))
        except ApiAway:
            pass
        finally:
            _drop(self)

    def _ask(self, question: Callable[[SyncPrefectClient], T]) -> T:
        # A copy, because two threads cannot be in one context at a time.
        return self._context.copy().run(self._shared.ask, question)


class LeaseRequest:
    """One asking for a slot, whose asker may go away: what still comes is then given back."""

    def __init__(self, shared: SharedLimit, holder: Callable[[], Any]) -> None:
        self._shared = shared
        self._holder = holder
        self._gone = False
        self._lease: Lease | None = None

    def ask(self) -> Lease | None:
        """The lease, or None when no slot is free. Raises ApiAway."""
        name, holder = self._shared.name, self._holder()
        lease_id = self._shared.ask(lambda client: take_place(client, name, holder, LEASE_SECONDS))
        if lease_id is None:
            return None
        lease = self._lease = Lease(lease_id, self._shared)
        _keep(lease)
        if self._gone:
            lease.release()
        return lease

    def abandon(self) -> None:
        self._gone = True
        if self._lease is not None:
            start_call(self._lease.release)


def given_back(lease: Lease, error: BaseException | None) -> Sequence[None]:
    """Release the lease before going on, or beside it where nothing may be awaited: after a cancellation."""
    if error is not None and not isinstance(error, Exception):
        start_call(lease.release)
        return
    try:
        yield Blocking(lease.release)
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
            due = [lease for lease in _held if lease.renew_at <= now]
        for lease in due:
            lease.renew()


def _at_exit() -> None:
    """A process that ends in order, a terminated flow run too, leaves no slot taken."""
    with _lock:
        left = list(_held)
    for lease in left:
        lease.release()


def _forget() -> None:
    """A forked child holds nothing of its parent's, and has no thread that renews."""
    global _lock, _thread
    _lock, _thread = threading.RLock(), None
    _held.clear()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
