"""This process as an owner of effects: one lease in each store, renewed by one thread for all effects.

An effect in progress has its owner's id, which names the process. On the same machine, boot and namespace of
process ids, an owner is gone when its process is, and not before. Elsewhere its lease shows that it lives.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

from prefect_resilience.base.process import at_exit, per_process, start_thread
from prefect_resilience.errors.exceptions import StoreUnavailable
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.stores.base import Store

Process = list[Any]
"""The machine's boot id, the namespace of its process ids, the process id, and its start by the kernel's
clock."""


def this_process() -> Process | None:
    """This process; None on systems without Linux's /proc."""
    machine = _machine()
    stat = _stat(os.getpid())
    return None if machine is None or stat is None else [*machine, os.getpid(), stat[1]]


def is_here(process: Process | None) -> bool:
    """Whether it is a process of this machine, since this boot, in this namespace of process ids."""
    return process is not None and process[:-2] == _machine()


def is_gone(process: Process | None) -> bool:
    """Whether this process has certainly ended; False for a process of another machine or container."""
    if process is None or not is_here(process):
        return False
    pid, started = process[-2:]
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False  # it exists and belongs to another user
    stat = _stat(pid)
    return stat is not None and (stat[1] != started or stat[0] in "ZX")


def _machine() -> list[str] | None:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return [boot, os.readlink("/proc/self/ns/pid")]
    except OSError:
        return None


def _stat(pid: int) -> tuple[str, str] | None:
    """The state and the start of a process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name in brackets may contain anything, brackets too.
    fields = text.rpartition(")")[2].split()
    return fields[0], fields[19]


logger: logging.Logger = logging.getLogger("prefect_resilience.effects")

LEASE_SECONDS = 30.0
"""A lease lapses so many seconds after its last renewal."""

QUIET_SECONDS = 90.0
"""The seconds after that until an owner on another machine, or in another container, counts as ended."""

LONG_PAUSE = 60.0
"""After so many seconds without a check, a claim is checked again before its call: its owner may have been
suspended, and another process may have settled the effect."""

RENEW_SECONDS = 10.0
TICK_SECONDS = 0.5
MOST_GIVEN_UP = 100
PREFIX = "effect-owners/"


def process_of(owner: str) -> Process | None:
    """The process of an owner. None: version 0.2 recorded it, or the system has no /proc."""
    boot, *rest = owner.partition("@")[2].split("/")
    return [boot, rest[0], int(rest[1]), rest[2]] if len(rest) == 3 else None


def ticking() -> float:
    """A clock in seconds that also advances while the machine sleeps, like the leases."""
    return time.clock_gettime(_BOOTTIME) if _BOOTTIME is not None else time.monotonic()


_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


class Owner:
    """The claims that this process holds in one store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.forget()
        _owners.append(self)

    def forget(self) -> None:
        """Begin as a new owner that holds nothing."""
        process = this_process()
        self.id: str = uuid4().hex + ("" if process is None else "@" + "/".join(map(str, process)))
        self._version = 0
        self._renew_at = float("-inf")
        self._offset: float | None = None
        self._held: set[str] = set()
        self._given_up: deque[str] = deque(maxlen=MOST_GIVEN_UP)
        self._reports: deque[Callable[[], object]] = deque()
        self._renewing = threading.Lock()

    def hold(self, claim: str) -> str:
        """Hold a claim, ensure a valid lease, and return the owner's id. Raises StoreUnavailable."""
        if claim in self._given_up:
            return self.id  # by a thread that outlives its caller
        self._held.add(claim)
        try:
            with self._renewing:
                if ticking() >= self._renew_at:
                    self._renew()
        except BaseException:
            self._held.discard(claim)
            raise
        _ensure_thread()
        return self.id

    def now(self) -> float:
        """The store's clock in seconds, computed from the last reading if there is one."""
        return self.store.now() if self._offset is None else ticking() + self._offset

    def drop(self, claim: str) -> None:
        self._held.discard(claim)

    def give_up(self, claim: str) -> None:
        """Drop a claim that a document may still name, and tell so in the lease. Does not block."""
        self._given_up.append(claim)
        self.drop(claim)
        self._renew_at = float("-inf")
        _ensure_thread()

    def lives(self, owner: str, claim: str) -> bool:
        """Whether the owner of a claim still works on it. Raises StoreUnavailable."""
        if claim in self._held or owner == self.id:
            return claim in self._held
        process = process_of(owner)
        if process is not None and process == process_of(self.id):
            return any(claim in other._held for other in _owners)
        if is_here(process) and is_gone(process):
            return False
        lease = self.store.load(PREFIX + owner)
        if is_here(process):
            return lease is None or claim not in lease.value["given_up"]
        return lease is not None and not is_gone(lease.value["process"])

    def hanging(self, owner: str) -> str | None:
        """Why an owner of this machine, whose process exists, seems to hang; None if it does not."""
        process = process_of(owner)
        if process is None or not is_here(process):
            return None
        lease = self.store.load(PREFIX + owner)
        silent = LEASE_SECONDS + QUIET_SECONDS
        if lease is not None:
            silent = max(0.0, self.store.now() - lease.value["renewed_at"])
        stat = _stat(process[-2])
        if silent <= 2 * RENEW_SECONDS and (stat is None or stat[0] not in "Tt"):
            return None
        return f"process {process[-2]}, which makes the call, hangs: not heard from for {silent:.0f} s"

    def later(self, report: Callable[[], object]) -> None:
        """Make a report in the background, repeated until the store has recorded it."""
        self._reports.append(report)
        _ensure_thread()

    def later_while_held(self, report: Callable[[], object]) -> None:
        """`later` for a claim that is still held. Takes no lock: a finalizer may call it at any time."""
        self._reports.append(report)

    @property
    def has_reports(self) -> bool:
        return bool(self._reports)

    @property
    def busy(self) -> bool:
        return bool(self._held or self._reports or self._given_up)

    def tick(self) -> None:
        """Make the reports and renew the lease; called by the thread. Never raises."""
        try:
            self._make_reports()
            with self._renewing:
                if (self._held or self._given_up) and ticking() >= self._renew_at:
                    self._renew()
        except StoreUnavailable:
            return
        except Exception as error:  # noqa: BLE001 - the thread serves other stores too
            logger.warning(
                "the lease of this process's effects could not be renewed: %s", redact(repr(error))
            )

    def leave(self) -> None:
        """The process ends normally: make the reports and release the lease. Never raises.

        While a call still runs in a thread, the lease stays, until it expires or the process is known to be
        dead.
        """
        try:
            self._make_reports()
            if self._version and not self._held:
                self.store.delete(PREFIX + self.id, self._version)
        except Exception:  # noqa: BLE001 - the lease expires by itself
            return

    def _make_reports(self) -> None:
        for _ in range(len(self._reports)):
            report = self._reports[0]
            try:
                report()
            except StoreUnavailable:
                raise
            except Exception as error:  # noqa: BLE001 - one report must not block the others
                logger.warning("the outcome of an effect could not be recorded: %s", redact(repr(error)))
            self._reports.popleft()

    def _renew(self) -> None:
        """Prolong the lease. One that lapsed, or was lost, begins again under the same id."""
        began = ticking()
        while not self._prolong():
            lease = self.store.load(PREFIX + self.id)
            self._version = 0 if lease is None else lease.version
        self._renew_at = began + RENEW_SECONDS

    def _prolong(self) -> bool:
        now = self.store.now()
        value: dict[str, Any] = {"process": this_process(), "host": socket.gethostname(), "pid": os.getpid()}
        value["given_up"] = [*self._given_up]
        self._offset = now - ticking()
        ends = now + LEASE_SECONDS + QUIET_SECONDS
        version = self.store.swap(PREFIX + self.id, self._version, {**value, "renewed_at": now}, ends)
        self._version = version or self._version
        return version > 0


# -- one thread for all owners of the process

_owners: list[Owner] = []


class _RenewalState:
    """The thread that renews the leases. A forked child has no thread, and forgets its parent's claims."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.running = False
        for owner in _owners:
            owner.forget()


_state = per_process(_RenewalState)
_nothing_to_wait_for = threading.Event()


def owner_in(store: Store) -> Owner:
    """This process's owner in that store."""
    with _state.lock:
        for owner in _owners:
            if owner.store is store:
                return owner
        return Owner(store)


def has_reports() -> bool:
    """Whether a report about an effect is still to be made."""
    return any(owner.has_reports for owner in list(_owners))


def _ensure_thread() -> None:
    with _state.lock:
        if not _state.running:
            start_thread("effects", _tick_all)
            _state.running = True


def _tick_all() -> None:
    """Runs in the thread, which ends when no owner holds a claim or has a report to make."""
    while True:
        _nothing_to_wait_for.wait(TICK_SECONDS)
        with _state.lock:
            owners = [owner for owner in _owners if owner.busy]
            if not owners:
                _state.running = False
                return
        for owner in owners:
            owner.tick()


@at_exit
def _leave_all() -> None:
    for owner in list(_owners):  # noqa: PERF101 - a set of weak references may shrink meanwhile
        owner.leave()
