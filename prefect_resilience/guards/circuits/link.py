"""The link of a process to one store of circuits, and the news of the circuits in it.

The store is opened at its first use. After a failed or slow contact it is not asked for a while (a rest).
"""

from __future__ import annotations

import math
import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import closing
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from prefect_resilience.base.process import start_thread
from prefect_resilience.errors.exceptions import ConfigurationError, StoreUnavailable
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.circuits.listeners import StoreNotice, Transition, logger
from prefect_resilience.stores import Document, Store, open_store
from prefect_resilience.stores.base import Watch, WatchedStore

if TYPE_CHECKING:
    from prefect_resilience.guards.circuits.merger import Merger

PREFIX = "circuit/"
"""A store holds the document of the circuit `<name>` under the key `circuit/<name>`."""


T = TypeVar("T")

SLOW = 3.0
SHORTEST_REST = 5.0
REST_PER_SECOND = 5.0
LONGEST_REST = 30.0

WAIT = 1.0
"""Seconds after which the thread sees that no circuit is left."""

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 10.0


class StoreLink:
    """One store, shared by every circuit of this process that is kept in it.

    After a contact that failed, or took longer than SLOW seconds, the store rests: it is not asked for
    REST_PER_SECOND times as long, but for SHORTEST_REST to LONGEST_REST seconds. So a slow store does not
    slow down every call.
    """

    def __init__(self, url: str | Callable[[], str], store: Store | None = None) -> None:
        self._url = url
        self.opened: Store | None = store
        self.publishes: bool = isinstance(store, WatchedStore)
        """Whether the store pushes its changes; False before it was opened."""
        self.rest_until: float = -math.inf
        """The end of the rest by `monotonic()`: before it no circuit asks the store."""
        self._down = False
        self._met_at: float | None = None
        self._offset = time.time() - monotonic()
        self.notices: deque[Transition | StoreNotice] = deque()
        """The notices about this store, for the listeners."""
        self.begin()

    def begin(self) -> None:
        """Set the initial state of the news. Also called in a forked child, which has no thread for them."""
        self._lock = threading.Lock()
        self.news: CircuitNews = CircuitNews(self._open_watch)

    def _open_watch(self) -> Watch:
        store = self.store()
        if not isinstance(store, WatchedStore):
            raise StoreUnavailable("this store has no news")
        return store.watch(PREFIX)

    @property
    def url(self) -> str | None:
        """The store's URL, or None while the function that returns it has not been called."""
        if self.opened is not None:
            return self.opened.url
        return self._url if isinstance(self._url, str) else None

    @property
    def is_ready(self) -> bool:
        """Whether to ask the store now."""
        return monotonic() >= self.rest_until

    def now(self) -> float:
        """The store's time, estimated without asking the store."""
        return monotonic() + self._offset

    def note_clock(self, now: float) -> None:
        """Remember the time of the store's clock."""
        self._offset = now - monotonic()

    def store(self) -> Store:
        """The store, opened if necessary. Raises StoreUnavailable when that fails."""
        if self.opened is None:
            try:
                self.opened = open_store(self._url if isinstance(self._url, str) else self._url())
            except ConfigurationError as error:
                raise StoreUnavailable(str(error)) from None
            self.publishes = isinstance(self.opened, WatchedStore)
        return self.opened

    def exchange(self, work: Callable[[Store], T]) -> T:
        """Run `work(store)`. Any exception becomes StoreUnavailable."""
        begun = monotonic()
        try:
            result = work(self.store())
        except Exception as error:
            # The store refuses a key or a value that it cannot hold: it has not failed.
            if not isinstance(error, ValueError | TypeError):
                self._note_failure(str(error), monotonic() - begun)
            raise StoreUnavailable(redact(f"{type(error).__name__}: {error}")) from error
        self._note_answer(begun)
        return result

    def _note_failure(self, reason: str, took: float) -> None:
        self.rest_until = monotonic() + min(LONGEST_REST, max(SHORTEST_REST, took * REST_PER_SECOND))
        self._notify(is_down=True, reason=redact(reason))

    def _note_answer(self, begun: float) -> None:
        now = monotonic()
        if self._met_at is None:
            self._met_at = now
        # Opening a store may be slow: drivers are imported, a schema is created. Contacts that began before
        # the first answer waited for the opening, so their time does not count.
        if now - begun > SLOW and begun > self._met_at:
            self._note_failure(f"an answer took {now - begun:.1f} s", now - begun)
        else:
            self._notify(is_down=False, reason="the store is available again")

    def _notify(self, is_down: bool, reason: str) -> None:
        """Report a change, once."""
        if is_down != self._down:
            with self._lock:
                was_down, self._down = self._down, is_down
            if is_down != was_down:
                url = redact(self.url or "that is configured")
                self.notices.append(StoreNotice(url, available=not is_down, reason=reason))


class CircuitNews:
    """Follows the documents of circuits; `watch` opens a watch of them.

    It gets only the news of its followers' names. A circuit whose name is not in `heard` polls. After a cut
    the thread connects again, after a random pause, so that a fleet does not come back all at once. It ends
    when no follower is left.
    """

    def __init__(self, watch: Callable[[], Watch]) -> None:
        self._watch = watch
        self._followers: dict[str, weakref.WeakSet[Merger]] = {}
        self._lock = threading.Lock()
        self._runs = False
        self.heard: frozenset[str] = frozenset()

    def join(self, follower: Merger) -> None:
        """Tell `follower` the news of its name, as long as it lives."""
        with self._lock:
            self._followers.setdefault(follower.name, weakref.WeakSet()).add(follower)
            if not self._runs:
                self._runs = True
                start_thread("circuit-news", self._run)

    def leave(self, follower: Merger) -> None:
        """Tell `follower` nothing more."""
        with self._lock:
            self._followers.get(follower.name, weakref.WeakSet()).discard(follower)

    def _run(self) -> None:
        pause = FIRST_PAUSE
        while self._is_wanted():
            try:
                with closing(self._watch()) as watch:
                    pause = FIRST_PAUSE
                    self._follow(watch)
            except StoreUnavailable as error:
                logger.debug("no news of circuits: %s", error)
            time.sleep(random.uniform(pause / 2, pause))
            pause = min(LONGEST_PAUSE, 2 * pause)

    def _is_wanted(self) -> bool:
        with self._lock:
            self._followers = {name: followers for name, followers in self._followers.items() if followers}
            self._runs = bool(self._followers)
            return self._runs

    def _follow(self, watch: Watch) -> None:
        try:
            while self._is_wanted():
                self._hear(watch)
                for news in watch.wait(WAIT):
                    self._tell(news.key.removeprefix(PREFIX), news.document)
        finally:
            names, self.heard = self.heard, frozenset()
            for name in names:
                self._tell(name, None)

    def _hear(self, watch: Watch) -> None:
        """Follow the names of all followers. New ones load their document: they may have missed news."""
        with self._lock:
            names = frozenset(self._followers)
        if names == self.heard:
            return
        added, self.heard = names - self.heard, names
        for name in added:
            self._tell(name, None)

    def _tell(self, name: str, document: Document | None) -> None:
        with self._lock:
            followers = list(self._followers.get(name, ()))
        for follower in followers:
            try:
                follower.hear(document)
            except Exception:  # noqa: BLE001 - the other circuits still want their news
                logger.exception("circuit %r could not take its news", name)
