"""Merges one process's counts into the document that the fleet shares, or keeps them while it cannot."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from time import monotonic

from prefect_resilience.errors.exceptions import StoreUnavailable
from prefect_resilience.guards.circuits import machine, sharing
from prefect_resilience.guards.circuits.document import other_sizes
from prefect_resilience.guards.circuits.link import PREFIX, StoreLink, drained
from prefect_resilience.guards.circuits.listeners import Transition, warn_of_windows
from prefect_resilience.guards.circuits.machine import Acquire, CircuitDocument, Event, Record, Release, new
from prefect_resilience.guards.circuits.model import CircuitPolicy
from prefect_resilience.guards.circuits.pending import Epoch, Pending, Permit
from prefect_resilience.guards.circuits.turns import FailureBudget, Turn, begun, is_counted, thinned, turn_of
from prefect_resilience.guards.circuits.view import GRACE, NEVER, View, view_of
from prefect_resilience.guards.circuits.window import Outcome
from prefect_resilience.stores import Store
from prefect_resilience.stores.base import Document
from prefect_resilience.stores.watching import WatchedStore

TRIES = 12
LONGEST_PAUSE = 0.1
UNSYNCED_KEPT = 50
KEPT_FOR = 7 * 86_400.0
"""Seconds without calls after which a store may forget a circuit."""

FOLLOW_AFTER = 1.0
"""Seconds of use after which a circuit follows its document: a short script needs no connection more."""

UNSEEN = 0
"""The generation of outcomes that were counted before this process first read the store's document."""


@dataclass(frozen=True, slots=True)
class Merged:
    """The result of an exchange; `won` is False if every swap lost to another process (nothing written)."""

    document: CircuitDocument
    now: float
    changes: tuple[machine.EnteredState, ...]
    won: bool
    version: int = 0


class Synchronizer:
    """This process's copy of the shared document of one circuit, and the events not yet in the store.

    Any thread may use `_count`, `_give_back`, `_is_due` and the attributes. Only one thread at a time may
    use `_sync` and `_command`, because they exchange with the store. `_lock` is not held meanwhile.

    While the store is unavailable or resting, the same machine runs on a local copy of the document. Its
    events are kept as unsynced and merged later, under the store's generation that this process saw last.
    If the store has a newer generation by then, the fence discards them.

    A circuit that is used for longer than FOLLOW_AFTER seconds follows its document: `hear` gets each change
    from the thread of the news. It then exchanges only what it has counted in its turns (see sharing.py).
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
        self._turn = Turn(1.0, NEVER, NEVER, counts=True)
        self._look_at = NEVER
        self._version = 0
        self._met_at: float | None = None
        self._follows = False
        self._weighed_at = NEVER
        self._failures = FailureBudget()
        self._warned = False

    @property
    def _is_ignorant(self) -> bool:
        """Whether this process has neither read the circuit from the store nor run it locally."""
        return self._generation_seen == UNSEEN and not self._is_local

    # -- by any thread

    def _count(self, permit: Permit, outcome: Outcome, error: str | None, retry_after: float | None) -> None:
        """Count an outcome, unless its epoch is over."""
        with self._lock:
            if permit.epoch is self.epoch:
                if permit.lease is not None or self._turn.counts:
                    self._pending.add(permit, outcome, error, retry_after)
            elif permit.lease is not None:
                self._pending.release(permit.lease)

    def _give_back(self, lease: str) -> None:
        """Give a lease back without an outcome."""
        with self._lock:
            self._pending.release(lease)

    def _is_due(self) -> bool:
        """Whether there is something to exchange now. Another thread may have flushed already."""
        with self._lock:
            if self._pending.has_probes or self.view.waiting:
                return True
            now = monotonic()
            if self._pending.urgent and self._is_urgent(now):
                return True
            return now >= self.view.until and not self._goes_on(now)

    def _is_urgent(self, now: float) -> bool:
        """Whether the failures are merged before the turn ends: the first few, and those that open it."""
        if not self.is_followed or self._failures.take(self._turn, now):
            return True
        record = self._pending.counted(self.epoch)
        _, changes = machine.step(self.view.document, record, self.link.now(), self.policy)
        return bool(changes)

    def _goes_on(self, now: float) -> bool:
        """Begin the next turn, if neither counts nor the view's age need the store. Needs the lock."""
        view, turn = self.view, self._turn
        if view.document["state"] != "closed" or self._is_local or self._unsynced or now >= self._look_at:
            return False
        if turn.counts and (self._pending.any(self.epoch) or now < turn.ends):
            return False
        if turn.counts:
            self._turn = turn_of(view.document["share"], now, self.policy.sync_interval)
        else:
            self._pending.any(self.epoch)
            self._pending.drop_runs()
            self._turn = begun(turn, now)
        until = min(self._look_at, self._turn.ends if self._turn.counts else self._turn.begins)
        self.view = replace(view, until=until, grace=until + GRACE)
        self._on_view()
        return True

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

    # -- news, by the thread of the link

    @property
    def is_followed(self) -> bool:
        """Whether this process hears of each change."""
        return self._follows and self.name in self.link.news.heard

    def hear(self, found: Document | None) -> None:
        """The document in the store has changed; None: load it at the next call."""
        if found is None:
            self.reconsider()
            return
        with self._lock:
            # A late or doubled message, or one of this process's own changes.
            if found.version <= self._version or self._is_local or self._unsynced:
                return
            self._version = found.version
            document = machine.read(found.value)
            self._generation_seen = document["generation"]
            self._look(document, self.link.now(), (), is_news=True)

    def reconsider(self) -> None:
        """Look at the store at the next call, or soon after it in a large fleet."""
        with self._lock:
            share = self.view.document["share"]
            wait = sharing.polls_in(share, 0.0) * random.random()
            self._look_at = min(self._look_at, monotonic() + wait)
            if self.view.until > self._look_at:
                self.view = replace(self.view, until=self._look_at, grace=self._look_at + GRACE)
                self._on_view()

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
        seen = self._version
        merged = self.link.exchange(lambda store: self._merge(store, [event]))
        if not merged.won:
            raise StoreUnavailable(f"too many concurrent changes to circuit {self.name!r}: try again")
        self._adopt(merged, [], seen)

    @property
    def _diverged(self) -> bool:
        return self._is_local and self.view.document["generation"] != self._generation_seen

    def _take(self) -> list[Event]:
        with self._lock:
            return self._pending.take(self.epoch)

    def _settle_with_store(self, counted: list[Event], wish: Acquire | None) -> None:
        batch = [*counted, wish] if wish else counted
        seen = self._version
        merged = self.link.exchange(lambda store: self._merge(store, batch))
        self._adopt(merged, [] if merged.won else counted, seen)

    def _merge(self, store: Store, batch: list[Event]) -> Merged:
        """Compare-and-swap `batch` into the document, a bounded number of times."""
        key = PREFIX + self.name
        attempt, share = 0, self._turn.share
        while True:
            found = store.load(key)
            now = store.now()
            self.link.heard(now)
            before = machine.read(found.value if found else None)
            batch, share = thinned(batch, share, before, now)
            after, changes, publish = self._stepped(before, batch, share, now)
            if after == before:
                # Reading an idle circuit changes nothing, so it writes nothing.
                return Merged(after, now, changes, won=True, version=found.version if found else 0)
            version = _swap(store, key, found.version if found else 0, after, _expiry(after, now), publish)
            if version:
                if after["demand"] != before["demand"]:
                    self._weighed_at = monotonic()
                return Merged(after, now, changes, won=True, version=version)
            attempt += 1
            if attempt == TRIES:
                return Merged(before, now, (), won=False, version=found.version if found else 0)
            time.sleep(random.uniform(0, min(LONGEST_PAUSE, 0.002 * 2**attempt)))

    def _stepped(
        self, before: CircuitDocument, batch: list[Event], share: float, now: float
    ) -> tuple[CircuitDocument, tuple[machine.EnteredState, ...], bool]:
        """The document after `batch`, the changes of state, and whether to publish it."""
        after, changes = before, ()
        for event in batch:
            after, brought = machine.step(after, _dated(event, after), now, self.policy)
            changes += brought
        if not self.link.publishes:
            return after, changes, False
        if before["state"] == "closed" and any(map(is_counted, batch)):
            after = sharing.joined(after, self._weight(share), now)
        if any(change.after == "closed" for change in changes):
            after = sharing.resumed(after, now)
        after, publish = sharing.announced(before, after, now)
        return after, changes, publish

    def _weight(self, share: float) -> float:
        """What a merge adds to the demand: each turn counts once, and a short one for less."""
        since = monotonic() - self._weighed_at
        if share < 1:
            return 0.0 if self._weighed_at >= self._turn.begins else 1 / share
        return min(1.0, since / sharing.SLOT)

    def _adopt(self, merged: Merged, unsynced: list[Event], seen: int) -> None:
        """Take the merged document for the view, unless a later one was heard of since version `seen`."""
        with self._lock:
            forked = self._diverged
            self._is_local = False
            self._unsynced = unsynced[-UNSYNCED_KEPT:]
            self._follow()
            if self._version not in (seen, merged.version) and merged.version < self._version:
                self._news.extend(self._transitions(merged.changes))
                return
            self._version = merged.version
            self._generation_seen = merged.document["generation"]
            self._look(merged.document, merged.now, merged.changes, new_epoch=forked)

    def _follow(self) -> None:
        """Follow the document if this circuit is in use for longer than a short script."""
        now = monotonic()
        if self._met_at is None:
            self._met_at = now
        elif not self._follows and self.link.publishes and now - self._met_at >= FOLLOW_AFTER:
            self._follows = True
            self.link.news.join(self)

    def _run_locally(self, batch: list[Event], wish: Acquire | None = None) -> None:
        with self._lock:
            self._is_local = True
            now = self.link.now()
            # No other process counts for this one now.
            document, changes = {**self.view.document, "share": 1.0}, ()
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
        is_news: bool = False,
    ) -> None:
        at = monotonic()
        if not self._warned and (others := other_sizes(document, self.policy.window_size, now)):
            self._warned = True
            warn_of_windows(self.name, self.policy.window_size, others)
        is_new = new_epoch or document["generation"] != self.epoch.generation
        if is_new:
            self.epoch = Epoch(document["generation"])
            self._pending.drop_runs()
        interval, share = self.policy.sync_interval, document["share"]
        # A turn is counted to its end, whatever its outcomes: otherwise the sample would depend on them.
        goes_on = self._turn.share == share and (is_news or (share < 1 and at < self._turn.ends))
        if is_new or not goes_on:
            if self._turn.counts and share < 1:
                self._pending.any(self.epoch)
                self._pending.drop_runs()
            self._turn = turn_of(share, at, interval)
        wait = (
            sharing.looks_in(share, random.random())
            if self.is_followed
            else sharing.polls_in(share, interval)
        )
        self._look_at = at + wait
        self.view = view_of(document, now, at, self.policy, self.epoch, self.link, self._turn, self._look_at)
        self._on_view()
        self._news.extend(self._transitions(changes))

    def _transitions(self, changes: tuple[machine.EnteredState, ...]) -> list[Transition]:
        return [
            Transition(self.name, c.before, c.after, c.at, c.reason, c.generation, c.retry_at, c.last_error)
            for c in changes
        ]


def _swap(
    store: Store, key: str, version: int, document: CircuitDocument, expires_at: float | None, publish: bool
) -> int:
    if publish and isinstance(store, WatchedStore):
        return store.swap(key, version, document, expires_at, publish=True)
    return store.swap(key, version, document, expires_at)


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
