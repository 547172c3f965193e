"""Merges one process's counts into the document that the fleet shares, or keeps them while it cannot."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from time import monotonic

from prefect_resilience.errors.exceptions import StoreUnavailable
from prefect_resilience.guards.circuits import machine, sharing, window
from prefect_resilience.guards.circuits.link import PREFIX, StoreLink
from prefect_resilience.guards.circuits.listeners import StoreNotice, Transition, logger
from prefect_resilience.guards.circuits.machine import CircuitDocument, Event, Record, Release
from prefect_resilience.guards.circuits.model import CircuitPolicy
from prefect_resilience.guards.circuits.sharing import FailureBudget, Turn, is_counted, thin, turn_at, turn_of
from prefect_resilience.guards.circuits.view import (
    GRACE,
    NEVER,
    UNSEEN,
    CurrentView,
    Pending,
    Permit,
    View,
    ask_at,
)
from prefect_resilience.guards.circuits.window import Outcome
from prefect_resilience.stores import Store
from prefect_resilience.stores.base import Document, WatchedStore

TRIES = 12
LONGEST_PAUSE = 0.1
UNSYNCED_KEPT = 50
KEPT_FOR = 7 * 86_400.0
"""Seconds without calls after which a store may forget a circuit."""

OTHER_WINDOW = (
    "circuit %r has a window of %g (calls or seconds) by another policy, and %s here: each policy judges the "
    "calls in that window, until none of its size has counted for a minute"
)

FOLLOW_AFTER = 1.0
"""Seconds of use after which a circuit follows its document: a short script needs no connection more."""


@dataclass(frozen=True, slots=True)
class Merged:
    """A document, and its time. `version` is 0 if the store has none, and None if the document is local.

    `won` is False if every swap lost to another process, so that nothing was written.
    """

    document: CircuitDocument
    now: float
    version: int | None = None
    changes: tuple[Transition, ...] = ()
    won: bool = True


class Merger:
    """The events of one circuit that are not yet in the store, and what this process last saw there.

    It shows each new view in `shown`. Only one thread at a time may use `sync` and `command`, because they
    exchange with the store. `_lock` is not held meanwhile. Any thread may use the rest.

    While the store is unavailable or resting, the same machine runs on a local copy of the document. Its
    events are kept as unsynced and merged later, under the store's generation that this process saw last.
    If the store has a newer generation by then, the fence discards them.

    A circuit that is used for longer than FOLLOW_AFTER seconds follows its document: `hear` gets each change
    from the thread of the news. It then exchanges only what it has counted in its turns (see sharing.py).
    """

    def __init__(self, name: str, policy: CircuitPolicy, link: StoreLink, shown: CurrentView) -> None:
        self.name = name
        self._policy = policy
        self._link = link
        self._shown = shown
        self._lock = threading.Lock()
        self.pending: Pending = Pending(UNSEEN)
        self._unsynced: list[Event] = []
        self._is_local = False
        self._generation_seen = UNSEEN
        self.news: deque[Transition | StoreNotice] = deque()
        """The transitions that this process caused, for the listeners."""
        self._turn = Turn(1.0, NEVER, NEVER, counts=True)
        self._look_at = NEVER
        self._version = 0
        self._met_at: float | None = None
        self._follows = False
        self._weighed_at = NEVER
        self._failures = FailureBudget()
        self._warned = False

    # -- by any thread

    def count(
        self, permit: Permit, outcome: Outcome, error: str | None = None, retry_after: float | None = None
    ) -> None:
        """Count an outcome, unless its epoch is over."""
        with self._lock:
            if permit.lease is not None or self._turn.counts:
                self.pending.add(permit, outcome, error, retry_after)

    def give_back(self, lease: str) -> None:
        """Give a lease back without an outcome."""
        with self._lock:
            self.pending.add_probe(Release(lease))

    def is_due(self) -> bool:
        """Whether there is something to exchange now. Another thread may have flushed already."""
        with self._lock:
            view, now = self._shown.view, monotonic()
            if self.pending.probes or view.waiting or (self.pending.urgent and self._cannot_wait(now)):
                return True
            return now >= view.until and not self._goes_on(now)

    def _cannot_wait(self, now: float) -> bool:
        """Whether the failures are merged before the turn ends: the first few, and those that open it."""
        if not self.is_followed or (
            self._turn.is_prompt and self._failures.take(self._shown.view.fleet, now)
        ):
            return True
        document, record = self._shown.view.document, self.pending.record()
        return bool(machine.step(document, record, self._link.now(), self._policy)[1])

    def go_on(self) -> Permit | None:
        """The permit of the next turn, if neither counts nor the view's age need the store."""
        with self._lock:
            return self._shown.view.permit if self._goes_on(monotonic()) else None

    def _goes_on(self, now: float) -> bool:
        view, turn = self._shown.view, self._turn
        if view.document["state"] != "closed" or self._is_local or self._unsynced or now >= self._look_at:
            return False
        if turn.counts and (self.pending.any() or now < turn.ends):
            return False
        if turn.counts:
            self._turn = turn_of(view.document["share"], view.fleet, now, self._policy.sync_interval)
        else:
            self.pending.drop()
            self._turn = turn_at(turn, now)
        self._show_until(self._turn.due)
        return True

    def _show_until(self, due: float) -> None:
        """Show the present view until then, if the store need not be asked before."""
        until = min(self._look_at, due)
        self._shown.show(replace(self._shown.view, until=until, grace=until + GRACE))

    @property
    def has_counted(self) -> bool:
        """Whether there are outcomes that are not in the store."""
        with self._lock:
            return bool(self._unsynced) or self.pending.any()

    def permit(self, owner: str = "") -> Permit | None:
        """The permit by the view, or of `owner` after its Acquire was merged.

        While this process has neither read the circuit from the store nor run it locally, any call has one.
        """
        with self._lock:
            view = self._shown.view
            if view.permit is None and owner in view.document["leases"]:
                return Permit(self.pending.epoch, owner)
            is_ignorant = self._generation_seen == UNSEEN and not self._is_local
            return Permit(self.pending.epoch) if is_ignorant else view.permit

    # -- news, by the thread of the link

    @property
    def is_followed(self) -> bool:
        """Whether this process hears of each change."""
        return self._follows and self.name in self._link.news.heard

    def hear(self, found: Document | None) -> None:
        """The document in the store has changed. None: load it at the next call, or soon in a large fleet."""
        with self._lock:
            if found is None:
                wait = sharing.polls_in(self._shown.view.fleet, 0.0) * random.random()
                self._look_at = min(self._look_at, monotonic() + wait)
                if self._shown.view.until > self._look_at:
                    self._show_until(self._look_at)
                return
            # A late or doubled message, or one of this process's own changes.
            if found.version <= self._version or self._is_local or self._unsynced:
                return
            self._look(Merged(machine.read(found.value), self._link.now(), found.version), is_news=True)

    # -- by one thread at a time

    def sync(self, *wish: machine.Acquire) -> None:
        """Merge unsynced events, counts and the wish into the store, or run locally. Never raises."""
        if self._has_diverged:
            # The latest counts belong to local generations, which the store does not have.
            self._run_locally(self._take())
        batch = self._take()
        if self._link.is_ready:
            counted = [*self._unsynced, *batch]
            with suppress(StoreUnavailable):
                self._exchange([*counted, *wish], counted)
                return
        self._run_locally([*batch, *wish])

    def command(self, event: machine.Force | machine.Reset) -> None:
        """Apply an operator's command, even while the store rests. Raises StoreUnavailable if that fails."""
        self.sync()
        if not self._exchange([event], self._unsynced):
            raise StoreUnavailable(f"too many concurrent changes to circuit {self.name!r}: try again")

    @property
    def _has_diverged(self) -> bool:
        return self._is_local and self._shown.view.document["generation"] != self._generation_seen

    def _take(self) -> list[Event]:
        with self._lock:
            if not self._turn.counts:
                self.pending.drop()
            return self.pending.take()

    def _exchange(self, batch: list[Event], counted: list[Event]) -> bool:
        """Merge `batch`; if every swap lost to another process, `counted` stays unsynced."""
        version = self._version
        merged = self._link.exchange(lambda store: self._merge(store, batch))
        self._adopt(merged, [] if merged.won else counted, version)
        return merged.won

    def _merge(self, store: Store, batch: list[Event]) -> Merged:
        """Compare-and-swap `batch` into the document, a bounded number of times."""
        key, share = PREFIX + self.name, self._turn.share
        attempt = 0
        while True:
            stored = store.load(key)
            now = store.now()
            self._link.note_clock(now)
            before, version = machine.read(stored.value if stored else None), stored.version if stored else 0
            batch, share = thin(batch, share, before, now)
            (after, changes), publish = self._apply(before, batch, now), False
            if self._link.publishes:
                counts = before["state"] == "closed" and any(map(is_counted, batch))
                weight = self._weight(share) if counts else 0.0
                after, publish = sharing.announce(before, after, weight, now)
            if after == before:
                # Reading an idle circuit changes nothing, so it writes nothing.
                return Merged(after, now, version, changes)
            swap = store.swap
            if publish and isinstance(store, WatchedStore):
                swap = partial(store.swap, publish=True)
            # The store never forgets a circuit that an operator forced open or disabled.
            is_forced = after["state"] in {"forced_open", "disabled"}
            expires_at = None if is_forced else max(now, after["retry_at"] or 0.0) + KEPT_FOR
            written = swap(key, version, after, expires_at)
            if written:
                if after["demand"] != before["demand"]:
                    self._weighed_at = monotonic()
                return Merged(after, now, written, changes)
            attempt += 1
            if attempt == TRIES:
                return Merged(before, now, version, won=False)
            time.sleep(random.uniform(0, min(LONGEST_PAUSE, 0.002 * 2**attempt)))

    def _apply(
        self, document: CircuitDocument, batch: list[Event], now: float
    ) -> tuple[CircuitDocument, tuple[Transition, ...]]:
        """The document after `batch`, and the changes of state."""
        changes: tuple[Transition, ...] = ()
        for event in batch:
            document, more = machine.step(document, _with_generation(event, document), now, self._policy)
            changes += more
        return document, changes

    def _weight(self, share: float) -> float:
        """What a merge adds to the demand: the seconds that it covers, divided by the turn's share."""
        since = self._weighed_at if share >= 1 else max(self._weighed_at, self._turn.begins)
        return min(sharing.MEMORY, monotonic() - since) / share

    def _adopt(self, merged: Merged, unsynced: list[Event], seen: int) -> None:
        """Take the merged document for the view, unless a later one was heard of since version `seen`."""
        with self._lock:
            self._unsynced = unsynced[-UNSYNCED_KEPT:]
            self._follow()
            if self._version not in (seen, merged.version) and (merged.version or 0) < self._version:
                self._tell(merged)
            else:
                self._look(merged)

    def _follow(self) -> None:
        """Follow the document if this circuit is in use for longer than a short script."""
        now = monotonic()
        if self._met_at is None:
            self._met_at = now
        elif not self._follows and self._link.publishes and now - self._met_at >= FOLLOW_AFTER:
            self._follows = True
            self._link.news.join(self)

    def _run_locally(self, batch: list[Event]) -> None:
        with self._lock:
            now = self._link.now()
            # No other process counts for this one now.
            alone = {**self._shown.view.document, "share": 1.0, "demand": None}
            document, changes = self._apply(alone, batch, now)
            unsynced = [*self._unsynced, *chain.from_iterable(map(self._events_to_sync, batch))]
            if any(change.after == "closed" for change in changes):
                # This process saw the service recover: its older failures need not reach the store.
                unsynced = [event for event in unsynced if isinstance(event, Release)]
            self._unsynced = unsynced[-UNSYNCED_KEPT:]
            self._look(Merged(document, now, changes=changes))

    def _events_to_sync(self, event: Event) -> Iterator[Event]:
        if isinstance(event, Record):
            if event.owner is not None:
                yield Release(event.owner)
            yield event._replace(generation=self._generation_seen, owner=None)
        elif isinstance(event, Release):
            yield event

    def _look(self, merged: Merged, is_news: bool = False) -> None:
        document, now, at = merged.document, merged.now, monotonic()
        is_new = document["generation"] != self.pending.epoch.generation
        if merged.version is not None:
            # A generation of the store is not the local one of the same number.
            is_new = is_new or self._has_diverged
            self._version, self._generation_seen = merged.version, document["generation"]
        self._is_local = merged.version is None
        stored = document["window"]
        if stored and not self._warned and not window.fits(stored, self._policy.window_size):
            self._warned = True
            logger.warning(OTHER_WINDOW, self.name, window.size_of(stored), self._policy.window)
        if is_new:
            self.pending.begin(document["generation"])
        fleet, interval, turn = sharing.fleet_of(document, now), self._policy.sync_interval, self._turn
        if is_new or not turn.goes_on(document["share"], at, is_news):
            self._turn = turn_of(document["share"], fleet, at, interval)
        elif document["share"] < turn.share:
            self._turn = replace(turn, share=document["share"], is_prompt=False)
        if turn.counts and not self._turn.counts:
            self.pending.drop()
        polls = sharing.polls_in(fleet, interval)
        self._look_at = at + (sharing.looks_in(fleet, random.random()) if self.is_followed else polls)
        self._shown.show(self._view(document, fleet, now, at, is_news))
        self._tell(merged)

    def _view(self, document: CircuitDocument, fleet: float, now: float, at: float, is_news: bool) -> View:
        """The view of `document` at `now` by the store's clock, which is `at` by `monotonic()`."""
        rests, until, permit = self._link.rest_until, self._look_at, Permit(self.pending.epoch)
        if document["state"] == "closed":
            until = max(rests, min(until, self._turn.due))
            # Not all processes of a large fleet end a row of failures at once.
            waiting = document["failures_in_row"] > 0 and document["share"] >= 1
            waiting = waiting and (fleet <= sharing.FEW or not is_news)
            return View(document, fleet, until, until + GRACE, permit, waiting=waiting)
        until = max(rests, until)
        if document["state"] == "disabled":
            return View(document, fleet, until, until + GRACE, permit)
        retry = ask_at(document, now, self._policy)
        if retry is not None:
            # From the moment on when a probe was free: whoever looks late does not wait from the beginning.
            retry += at - now + sharing.asks_in(fleet, random.random())
            if retry <= at:
                return View(document, fleet, retry=retry)
            until = min(until, retry)
        return View(document, fleet, until, refused=True, retry=retry)

    def _tell(self, merged: Merged) -> None:
        self.news.extend(change._replace(name=self.name) for change in merged.changes)


def _with_generation(event: Event, document: CircuitDocument) -> Event:
    """`event`; if it was counted before the first read and the circuit is closed, with its generation."""
    if isinstance(event, Record) and event.generation == UNSEEN and document["state"] == "closed":
        return event._replace(generation=document["generation"])
    return event
