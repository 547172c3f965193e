"""One named circuit in this process: admits calls and counts their outcomes."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from time import monotonic, sleep

from prefect_resilience.base.drive import SLICE_SECONDS, Wait
from prefect_resilience.errors.exceptions import CircuitOpenError
from prefect_resilience.guards.circuits import machine
from prefect_resilience.guards.circuits.exchange import UNSEEN, Synchronizer
from prefect_resilience.guards.circuits.listeners import logger, tell
from prefect_resilience.guards.circuits.machine import PASSING
from prefect_resilience.guards.circuits.model import CircuitSnapshot, moment_of
from prefect_resilience.guards.circuits.pending import Epoch, Permit, flush_aside
from prefect_resilience.guards.circuits.view import NEVER, View, snapshot_of
from prefect_resilience.guards.circuits.window import Outcome
from prefect_resilience.guards.timeouts.threads import abandoned

PATIENCE = 1.0
"""Seconds that a caller waits for another thread's exchange with the store before it continues without."""

PAUSE = 0.001
"""Seconds between two looks at whether that exchange is over."""

JITTER = 0.05
"""Seconds within which the callers that wait for a probe look at the store."""

SOON = 1.0
"""`retry_in` of a call that is rejected because another one probes."""

Fresh = tuple[float, Iterator[int], Permit]


class Circuit(Synchronizer):
    """The state behind every `CircuitBreaker` of one name and one store in this process.

    Two locks: the synchronizer's `_lock` guards fields and is held only briefly; `_talking` is held by
    the one thread that exchanges with the store. Neither is held during a guarded call or a listener's call.
    """

    retired: bool = False

    def begin(self) -> None:
        # All that CircuitBreaker.call reads: the expiry by monotonic(), the success counter, the permit.
        nothing = Permit(Epoch(UNSEEN))
        self.fresh: Fresh = (NEVER, nothing.epoch.successes, nothing)
        self._talking = threading.Lock()
        self._waiting: set[Callable[[], object]] = set()
        super().begin()

    def _on_view(self) -> None:
        view = self.view
        permit = view.permit
        if permit is None or view.waiting or self.retired or self.policy.slow_call is not None:
            self.fresh = (NEVER, *self.fresh[1:])
        else:
            self.fresh = (view.until, permit.epoch.successes, permit)
        for wake in self._waiting:
            wake()

    # -- before a call

    def admit(self) -> Permit | None:
        """A permit by the local view; None when the store must be asked. Raises CircuitOpenError."""
        view = self.view
        now = monotonic()
        if now < view.until or (now < view.grace and self._talking.locked()):
            return self._by_view(view, now)
        return None

    def _by_view(self, view: View, now: float) -> Permit | None:
        if view.refused:
            raise self._refusal(view, now)
        return view.permit

    def ask(self) -> Permit:
        """A permit, after asking the store if that is possible. Raises CircuitOpenError."""
        lease = f"{os.getpid()}-{uuid.uuid4().hex[:16]}"
        try:
            try:
                return self.admit() or self._asked(lease)
            finally:
                self._tell()
        except BaseException as error:
            if not isinstance(error, Exception):  # Ctrl-C: the store may have granted the lease
                self._give_back(lease)
                flush_aside(self)
            raise

    def _asked(self, lease: str) -> Permit:
        if not self._may_talk(PATIENCE):
            return self._without_asking()
        with self._talking:
            return self._known_by_now() or self._ask_store(lease)

    def _may_talk(self, patience: float) -> bool:
        """Wait until no other thread talks to the store. `acquire(timeout=...)` is not used: Ctrl-C right
        after it would leave the lock taken."""
        until = monotonic() + patience
        while self._talking.locked() and monotonic() < until:
            sleep(PAUSE)
        return not self._talking.locked()

    def _known_by_now(self) -> Permit | None:
        """The permit by the view that another thread got while this one waited; None if that view is old."""
        view = self.view
        now = monotonic()
        return self._by_view(view, now) if now < view.until else None

    def _ask_store(self, lease: str) -> Permit:
        with self._lock:
            permit = self.view.permit if self._goes_on(monotonic()) else None
        if permit is not None:
            return permit
        self._sync(machine.Acquire(lease))
        return self._granted(lease) or self._refuse()

    def _without_asking(self) -> Permit:
        """Decide by the local view, because another thread is still waiting for the store."""
        view = self.view
        if view.permit is not None:
            return view.permit
        if self._is_ignorant:
            return Permit(self.epoch)
        return self._refuse()

    def _refuse(self) -> Permit:
        raise self._refusal(self.view, monotonic())

    def _refusal(self, view: View, now: float) -> CircuitOpenError:
        retry_in = None if view.retry is None else max(0.0, view.retry - now)
        if retry_in is not None and view.document["state"] == "half_open":
            retry_in = min(retry_in, SOON)  # the probe's lease ends later than the probe
        # For a forced opening, report the operator's reason.
        why = view.document["reason" if view.document["state"] == "forced_open" else "last_error"]
        return CircuitOpenError(self.name, retry_in, why)

    def probed(self, until: float) -> Wait[None] | None:
        """A wait for the end of a probe that is on its way, at most until then; None if there is none.

        It ends with each new view, and when the present one is too old. `until` is a time of `monotonic()`.
        """
        seen = self.view
        if seen.document["state"] not in {"half_open", *PASSING} or monotonic() >= until or abandoned():
            return None
        # Not all at once: the first one to ask the store has the answer for the others.
        until = min(until, seen.until + random.uniform(0, JITTER))

        def block() -> None:
            woken = threading.Event()
            with self._woken(woken.set):
                while self.view is seen and (left := until - monotonic()) > 0 and not abandoned():
                    woken.wait(min(left, SLICE_SECONDS))

        async def start() -> None:
            loop, woken = asyncio.get_running_loop(), asyncio.Event()
            with self._woken(lambda: loop.call_soon_threadsafe(woken.set)), suppress(TimeoutError):
                if self.view is seen:
                    await asyncio.wait_for(woken.wait(), max(0.0, until - monotonic()))

        return Wait(block, start)

    @contextmanager
    def _woken(self, wake: Callable[[], object]) -> Generator[None]:
        """Call `wake` with each new view."""
        with self._lock:
            self._waiting.add(wake)
        try:
            yield
        finally:
            with self._lock:
                self._waiting.discard(wake)

    # -- after a call

    def succeeded(self, permit: Permit, slow: bool = False) -> bool:
        """Count a success; True when a flush is due."""
        if permit.lease is None and not slow:
            next(permit.epoch.successes)
        else:
            self._count(permit, "S" if slow else "s", None, None)
        view = self.view
        return permit.lease is not None or view.waiting or monotonic() >= view.until

    def failed(self, permit: Permit, slow: bool, error: str | None, retry_after: float | None) -> bool:
        """Count a failure; always True, because a flush is due at once."""
        outcome: Outcome = "F" if slow else "f"
        self._count(permit, outcome, error, retry_after)
        return True

    def released(self, permit: Permit) -> bool:
        """End a call without an outcome; True when it held a lease, which is given back."""
        if permit.lease is None:
            return False
        self._give_back(permit.lease)
        return True

    def flush(self) -> None:
        """Exchange counts with the store if that is due, and tell the listeners. Never raises."""
        # A failure is worth a short wait for another thread's exchange; a success can wait for the next one.
        patience = PATIENCE if self._pending.urgent else 0
        self._talk(lambda: self._is_due() and self._sync(), patience)

    def finish(self) -> None:
        """Merge the counted outcomes, if there are any and the store is ready. Never raises."""
        if self.link.condition == "ready" and self._has_counted():
            self.refresh()

    def refresh(self) -> None:
        """Exchange counts with the store now, even if the view is fresh. Never raises."""
        self._talk(self._sync)

    def _talk(self, work: Callable[[], object], patience: float = PATIENCE) -> None:
        try:
            if self._may_talk(patience):
                with self._talking:
                    work()
        except Exception:  # noqa: BLE001 - it must not fail the caller's call
            logger.exception("circuit %r could not exchange its counts with the store", self.name)
        self._tell()

    # -- commands and state

    def moment(self, until: float | str | datetime | timedelta | None) -> float | None:
        """The end of a forced opening, by the store's clock. Raises ConfigurationError."""
        if until is not None:
            self.refresh()
        return moment_of(until, self.link.now())

    def command(self, event: machine.Force | machine.Reset) -> None:
        """Change the circuit for the whole fleet, or raise StoreUnavailable and change nothing."""
        try:
            with self._talking:
                self._command(event)
        finally:
            self._tell()

    def snapshot(self, ask: bool) -> CircuitSnapshot:
        """The current snapshot; with `ask`, or when the view is old, after an exchange with the store."""
        if ask or monotonic() >= self.view.until:
            self.refresh()
        return snapshot_of(self.name, self.view.document, self.link.now())

    def retire(self) -> None:
        """Stop using this object: breakers that hold it declare their circuit again."""
        self.retired = True
        self.link.news.leave(self)
        with self._lock:
            self._on_view()

    def _tell(self) -> None:
        tell([*self.link.notices(), *self._take_news()])
