"""Merges one process's counts into the document that the fleet shares, or keeps them while it cannot."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from time import monotonic

from prefect_resilience.errors.exceptions import StoreUnavailable
from prefect_resilience.guards.circuits import machine
from prefect_resilience.guards.circuits.link import Epoch, Pending, Permit, StoreLink, View, drained, view_of
from prefect_resilience.guards.circuits.listeners import Transition
from prefect_resilience.guards.circuits.machine import Acquire, CircuitDocument, Event, Record, Release, new
from prefect_resilience.guards.circuits.model import CircuitPolicy
from prefect_resilience.guards.circuits.window import Outcome
from prefect_resilience.stores import Store

PREFIX = "circuit/"
"""A store holds the document of the circuit `<name>` under the key `circuit/<name>`."""

TRIES = 12
LONGEST_PAUSE = 0.1
UNSYNCED_KEPT = 50
KEPT_FOR = 7 * 86_400.0
"""Seconds without calls after which a store may forget a circuit."""

UNSEEN = 0
"""The generation of outcomes that were counted before this process first read the store's document."""


@dataclass(frozen=True, slots=True)
class Merged:
    """The result of an exchange; `won` is False if every swap lost to another process (nothing written)."""

    document: CircuitDocument
    now: float
    changes: tuple[machine.EnteredState, ...]
    won: bool


class Synchronizer:
    """This process's copy of the shared document of one circuit, and the events not yet in the store.

    Any thread may use `_count`, `_give_back`, `_is_due` and the attributes. Only one thread at a time may
    use `_sync` and `_command`, because they exchange with the store. `_lock` is not held meanwhile.

    While the store is unavailable or resting, the same machine runs on a local copy of the document. Its
    events are kept as unsynced and merged later, under the store's generation that this process saw last.
    If the store has a newer generation by then, the fence discards them.
    """

    def __init__(self, name: str, policy: CircuitPolicy, link: StoreLink) -> None:
        self.name = name
        self.policy = policy
        self.link = link
        self.begin()

    def begin(self) -> None:
        """Set the initial state. Also called in a forked child: the parent keeps its own counts."""
        self.view: View = View(new())
        self.epoch: Epoch = Epoch(UNSEEN)
        self._lock = threading.Lock()
        self._pending = Pending()
        self._unsynced: list[Event] = []
        self._is_local = False
        self._generation_seen = UNSEEN
        self._news: deque[Transition] = deque()

    @property
    def _is_ignorant(self) -> bool:
        """Whether this process has neither read the circuit from the store nor run it locally."""
        return self._generation_seen == UNSEEN and not self._is_local

    # -- by any thread

    def _count(self, permit: Permit, outcome: Outcome, error: str | None, retry_after: float | None) -> None:
        """Count an outcome, unless its epoch is over."""
        with self._lock:
            if permit.epoch is self.epoch:
                self._pending.add(permit, outcome, error, retry_after)
            elif permit.lease is not None:
                self._pending.release(permit.lease)

    def _give_back(self, lease: str) -> None:
        """Give a lease back without an outcome."""
        with self._lock:
            self._pending.release(lease)

    def _is_due(self) -> bool:
        """Whether an urgent event is pending or the view is old. Another thread may have flushed already."""
        with self._lock:
            return self._pending.urgent or self.view.waiting or monotonic() >= self.view.until

    def _has_counted(self) -> bool:
        """Whether there are outcomes that are not in the store."""
        with self._lock:
            return bool(self._unsynced) or self._pending.any(self.epoch)

    def _granted(self, owner: str) -> Permit | None:
        """The permit of `owner` after its Acquire was merged, if any."""
        with self._lock:
            if self.view.permit is None and owner in self.view.document["leases"]:
                return Permit(self.epoch, owner)
            return self.view.permit

    def _take_news(self) -> list[Transition]:
        """The transitions that this process caused since the last call."""
        return drained(self._news)

    # -- by one thread at a time

    def _sync(self, wish: Acquire | None = None) -> None:
        """Merge unsynced events, counts and the wish into the store, or run locally. Never raises."""
        if self._diverged:
            # The latest counts belong to local generations, which the store does not have.
            self._run_locally(self._take())
        counted = self._take()
        condition = self.link.condition
        if condition == "ready":
            try:
                self._settle_with_store([*self._unsynced, *counted], wish)
                return
            except StoreUnavailable:
                condition = "down"
        # A resting store still decides which process probes.
        self._run_locally(counted, wish if condition == "down" else None)

    def _command(self, event: machine.Force | machine.Reset) -> None:
        """Apply an operator's command, even while the store rests. Raises StoreUnavailable if that fails."""
        self._sync()
        merged = self.link.exchange(lambda store: self._merge(store, [event]))
        if not merged.won:
            raise StoreUnavailable(f"too many concurrent changes to circuit {self.name!r}: try again")
        self._adopt(merged, [])

    @property
    def _diverged(self) -> bool:
        return self._is_local and self.view.document["generation"] != self._generation_seen

    def _take(self) -> list[Event]:
        with self._lock:
            return self._pending.take(self.epoch)

    def _settle_with_store(self, counted: list[Event], wish: Acquire | None) -> None:
        batch = [*counted, wish] if wish else counted
        merged = self.link.exchange(lambda store: self._merge(store, batch))
        self._adopt(merged, [] if merged.won else counted)

    def _merge(self, store: Store, batch: list[Event]) -> Merged:
        """Compare-and-swap `batch` into the document, a bounded number of times."""
        key = PREFIX + self.name
        attempt = 0
        while True:
            found = store.load(key)
            now = store.now()
            self.link.heard(now)
            before = machine.read(found.value if found else None)
            after, changes = before, ()
            for event in batch:
                after, brought = machine.step(after, _dated(event, after), now, self.policy)
                changes += brought
            # Reading an idle circuit changes nothing, so it writes nothing.
            if after == before or store.swap(key, found.version if found else 0, after, _expiry(after, now)):
                return Merged(after, now, changes, won=True)
            attempt += 1
            if attempt == TRIES:
                return Merged(before, now, (), won=False)
            time.sleep(random.uniform(0, min(LONGEST_PAUSE, 0.002 * 2**attempt)))

    def _adopt(self, merged: Merged, unsynced: list[Event]) -> None:
        with self._lock:
            forked = self._diverged
            self._is_local = False
            self._unsynced = unsynced[-UNSYNCED_KEPT:]
            self._generation_seen = merged.document["generation"]
            self._look(merged.document, merged.now, merged.changes, new_epoch=forked)

    def _run_locally(self, batch: list[Event], wish: Acquire | None = None) -> None:
        with self._lock:
            self._is_local = True
            now = self.link.now()
            document, changes = self.view.document, ()
            for event in [*batch, wish] if wish else batch:
                document, brought = machine.step(document, _dated(event, document), now, self.policy)
                changes += brought
                self._keep_unsynced(event)
                if any(change.after == "closed" for change in brought):
                    # This process saw the service recover: its older failures need not reach the store.
                    self._unsynced = [event for event in self._unsynced if isinstance(event, Release)]
            self._look(document, now, changes)

    def _keep_unsynced(self, event: Event) -> None:
        unsynced = self._unsynced
        if isinstance(event, Release):
            unsynced.append(event)
        elif isinstance(event, Record):
            if event.owner is not None:
                unsynced.append(Release(event.owner))
            unsynced.append(replace(event, generation=self._generation_seen, owner=None))
        self._unsynced = unsynced[-UNSYNCED_KEPT:]

    def _on_view(self) -> None:
        """Called under the lock when there is a new view."""

    def _look(
        self,
        document: CircuitDocument,
        now: float,
        changes: tuple[machine.EnteredState, ...],
        new_epoch: bool = False,
    ) -> None:
        if new_epoch or document["generation"] != self.epoch.generation:
            self.epoch = Epoch(document["generation"])
            self._pending.drop_runs()
        self.view = view_of(document, now, monotonic(), self.policy, self.epoch, self.link)
        self._on_view()
        self._news.extend(
            Transition(self.name, c.before, c.after, c.at, c.reason, c.generation, c.retry_at, c.last_error)
            for c in changes
        )


def _dated(event: Event, document: CircuitDocument) -> Event:
    """`event`; if it was counted before the first read and the circuit is closed, with its generation."""
    if isinstance(event, Record) and event.generation == UNSEEN and document["state"] == "closed":
        return replace(event, generation=document["generation"])
    return event


def _expiry(document: CircuitDocument, now: float) -> float | None:
    """When the store may forget the document; None for a circuit that an operator forced open or disabled."""
    if document["state"] in {"forced_open", "disabled"}:
        return None
    return max(now, document["retry_at"] or 0.0) + KEPT_FOR
