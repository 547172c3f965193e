"""One named circuit in this process: admits calls and counts their outcomes."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable
from time import monotonic, sleep

from prefect_resilience.base.drive import Blocking, Steps
from prefect_resilience.base.process import start_thread
from prefect_resilience.errors.exceptions import CircuitOpenError
from prefect_resilience.errors.taxonomy import ErrorInfo
from prefect_resilience.guards.circuits import machine
from prefect_resilience.guards.circuits.link import StoreLink
from prefect_resilience.guards.circuits.listeners import logger, tell
from prefect_resilience.guards.circuits.merger import Merger
from prefect_resilience.guards.circuits.model import CircuitPolicy, CircuitSnapshot, judge
from prefect_resilience.guards.circuits.view import CurrentView, Permit, View, snapshot_of

PATIENCE = 1.0
"""Seconds that a caller waits for another thread's exchange with the store before it continues without."""

PAUSE = 0.001
"""Seconds between two looks at whether that exchange is over."""

SOON = 1.0
"""`retry_in` of a call that is rejected because another one probes."""


class Circuit:
    """The state behind every `CircuitBreaker` of one name and one store in this process.

    `shown` has the view by which it admits calls. `_merger` counts their outcomes and exchanges them with
    the store, in the one thread that holds `_talking`. No lock is held during a guarded call or a listener's.
    """

    def __init__(self, name: str, policy: CircuitPolicy, link: StoreLink) -> None:
        self.name = name
        self.policy = policy
        self.link = link
        self.shown: CurrentView = CurrentView(policy.slow_call is not None)
        self.begin()

    def begin(self) -> None:
        """Set the initial state. Also called in a forked child: the parent keeps its own counts."""
        self.shown.begin()
        self._talking = threading.Lock()
        self._merger = Merger(self.name, self.policy, self.link, self.shown)

    # -- before a call

    def admit(self, has_grace: bool = True) -> Permit | None:
        """A permit by the local view; None when the store must be asked. Raises CircuitOpenError."""
        view, now = self.shown.view, monotonic()
        if now >= view.until and not (has_grace and now < view.grace and self._talking.locked()):
            return None
        if view.refused:
            raise self.refusal(view)
        return view.permit

    def ask(self) -> Permit:
        """A permit, after asking the store if that is possible. Raises CircuitOpenError."""
        lease = f"{os.getpid()}-{uuid.uuid4().hex[:16]}"
        try:
            try:
                return self.admit() or self._request_permit(lease)
            finally:
                self._tell()
        except BaseException as error:
            if not isinstance(error, Exception):  # Ctrl-C: the store may have granted the lease
                self._merger.give_back(lease)
                self.flush_aside()
            raise

    def _request_permit(self, lease: str) -> Permit:
        if not self._may_talk(PATIENCE):
            permit = self._merger.permit()
        else:
            with self._talking:
                # While this thread waited, another one may have got a new view.
                permit = self.admit(has_grace=False) or self._merger.go_on()
                if permit is None:
                    self._merger.sync(machine.Acquire(lease))
                    permit = self._merger.permit(lease)
        if permit is None:
            raise self.refusal(self.shown.view)
        return permit

    def _may_talk(self, patience: float) -> bool:
        """Wait until no other thread talks to the store. `acquire(timeout=...)` is not used: Ctrl-C right
        after it would leave the lock taken."""
        until = monotonic() + patience
        while self._talking.locked() and monotonic() < until:
            sleep(PAUSE)
        return not self._talking.locked()

    def refusal(self, view: View) -> CircuitOpenError:
        """The error of a call that this view rejects."""
        retry_in = None if view.retry is None else max(0.0, view.retry - monotonic())
        if retry_in is not None and view.document["state"] == "half_open":
            retry_in = min(retry_in, SOON)  # the probe's lease ends later than the probe
        # For a forced opening, report the operator's reason.
        why = view.document["reason" if view.document["state"] == "forced_open" else "last_error"]
        return CircuitOpenError(self.name, retry_in, why)

    # -- after a call

    def end(self, permit: Permit, error: BaseException | None, duration: float | None = None) -> None:
        """Count the outcome of a permitted call, and merge it if that is due."""
        if self.settle(permit, error, duration=duration):
            self.flush()

    def settle(
        self,
        permit: Permit,
        error: BaseException | None = None,
        info: ErrorInfo | None = None,
        duration: float | None = None,
    ) -> bool:
        """Count the outcome of a permitted call, without I/O; True when a flush is due.

        `info` is the classified error, if the caller has it; `duration` in seconds identifies slow calls.
        """
        verdict, info = judge(error, info, self.policy)
        if verdict == "neither":
            return self.release(permit)
        slow_call = self.policy.slow_call
        is_slow = slow_call is not None and duration is not None and duration > slow_call
        if info is not None and verdict == "failure":
            kind = type(error).__name__ if error is not None else str(info.code)
            last_error = f"{kind}: {info.message}" if info.message and info.message != kind else kind
            self._merger.count(permit, "F" if is_slow else "f", last_error, info.retry_after)
            return True
        if permit.lease is None and not is_slow:
            next(permit.epoch.successes)
        else:
            self._merger.count(permit, "S" if is_slow else "s")
        view = self.shown.view
        return permit.lease is not None or view.waiting or monotonic() >= view.until

    def release(self, permit: Permit) -> bool:
        """End a call without an outcome; True when it held a lease, which is given back."""
        if permit.lease is None:
            return False
        self._merger.give_back(permit.lease)
        return True

    def flush(self) -> None:
        """Exchange counts with the store if that is due, and tell the listeners. Never raises."""
        # A failure is worth a short wait for another thread's exchange; a success can wait for the next one.
        patience = PATIENCE if self._merger.pending.urgent else 0
        self._talk(lambda: self._merger.is_due() and self._merger.sync(), patience)

    def flush_after(self, error: BaseException | None) -> Steps[None]:
        """Flush after a call that raised `error`; in a thread if the caller is cancelled, also meanwhile."""
        if error is not None and not isinstance(error, Exception):
            self.flush_aside()
            return
        try:
            yield Blocking(self.flush)
        except BaseException:
            self.flush_aside()
            raise

    def flush_aside(self) -> None:
        """Flush in a thread: a cancelled caller cannot await, but its lease must be released."""
        start_thread("circuit-flush", self.flush)

    def finish(self) -> None:
        """Merge the counted outcomes, if there are any and the store is ready. Never raises."""
        if self.link.is_ready and self._merger.has_counted:
            self.refresh()

    def refresh(self) -> None:
        """Exchange counts with the store now, even if the view is fresh. Never raises."""
        self._talk(self._merger.sync)

    def _talk(self, work: Callable[[], object], patience: float = PATIENCE) -> None:
        try:
            if self._may_talk(patience):
                with self._talking:
                    work()
        except Exception:  # noqa: BLE001 - it must not fail the caller's call
            logger.exception("circuit %r could not exchange its counts with the store", self.name)
        self._tell()

    # -- commands and state

    def command(self, event: machine.Force | machine.Reset) -> None:
        """Change the circuit for the whole fleet, or raise StoreUnavailable and change nothing."""
        try:
            with self._talking:
                self._merger.command(event)
        finally:
            self._tell()

    def snapshot(self, ask: bool) -> CircuitSnapshot:
        """The current snapshot; with `ask`, or when the view is old, after an exchange with the store."""
        if ask or monotonic() >= self.shown.view.until:
            self.refresh()
        return snapshot_of(self.name, self.shown.view.document, self.link.now())

    def retire(self) -> None:
        """Stop using this object: breakers that hold it declare their circuit again."""
        self.link.news.leave(self._merger)
        self.shown.show(retire=True)

    def _tell(self) -> None:
        tell(self.link.notices)
        tell(self._merger.news)


class PendingAdmission:
    """One request to the store for a permit. The caller may be cancelled while a thread waits for it."""

    def __init__(self, circuit: Circuit) -> None:
        self._circuit = circuit
        self._abandoned = False
        self._permit: Permit | None = None

    def ask(self) -> Permit:
        """The permit; it is given back if the caller was cancelled in the meantime."""
        permit = self._permit = self._circuit.ask()
        if self._abandoned:
            self._circuit.release(permit)
            self._circuit.flush()
        return permit

    def abandon(self) -> None:
        """The caller was cancelled: give back the lease if it has arrived already."""
        self._abandoned = True
        if self._permit is not None and self._circuit.release(self._permit):
            self._circuit.flush_aside()
