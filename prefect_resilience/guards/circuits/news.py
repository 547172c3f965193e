"""News of circuits: one thread of a process, over one connection, for all circuits in one store."""

from __future__ import annotations

import random
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import closing
from typing import Protocol

from prefect_resilience.base.process import start_thread
from prefect_resilience.errors.exceptions import StoreUnavailable
from prefect_resilience.guards.circuits.listeners import logger
from prefect_resilience.stores.base import Document
from prefect_resilience.stores.watching import Watch

WAIT = 1.0
"""Seconds after which the thread sees that no circuit is left."""

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 10.0


class Follower(Protocol):
    """A circuit that wants to hear of its document."""

    name: str

    def hear(self, found: Document | None) -> None:
        """The document was changed. None: load it, and decide anew when to load it next."""
        ...


class CircuitNews:
    """Follows the documents under `prefix`; `watch` opens a watch of them.

    It gets only the news of its followers' names. A circuit whose name is not in `heard` polls. After a cut
    the thread connects again, after a random pause, so that a fleet does not come back all at once. It ends
    when no follower is left.
    """

    def __init__(self, prefix: str, watch: Callable[[str], Watch]) -> None:
        self._prefix = prefix
        self._watch = watch
        self._followers: dict[str, weakref.WeakSet[Follower]] = {}
        self._lock = threading.Lock()
        self._runs = False
        self.heard: frozenset[str] = frozenset()

    def join(self, follower: Follower) -> None:
        """Tell `follower` the news of its name, as long as it lives."""
        with self._lock:
            self._followers.setdefault(follower.name, weakref.WeakSet()).add(follower)
            if not self._runs:
                self._runs = True
                start_thread("circuit-news", self._run)

    def leave(self, follower: Follower) -> None:
        """Tell `follower` nothing more."""
        with self._lock:
            self._followers.get(follower.name, weakref.WeakSet[Follower]()).discard(follower)

    def _run(self) -> None:
        pause = FIRST_PAUSE
        while self._is_wanted():
            try:
                with closing(self._watch(self._prefix)) as watch:
                    pause = FIRST_PAUSE
                    self._follow(watch)
            except StoreUnavailable as error:
                logger.debug("no news of circuits: %s", error)
            time.sleep(random.uniform(pause / 2, pause))
            pause = min(LONGEST_PAUSE, 2 * pause)

    def _is_wanted(self) -> bool:
        with self._lock:
            self._followers = {name: known for name, known in self._followers.items() if known}
            self._runs = bool(self._followers)
            return self._runs

    def _follow(self, watch: Watch) -> None:
        try:
            while self._is_wanted():
                self._hear(watch)
                for news in watch.wait(WAIT):
                    self._tell(news.key.removeprefix(self._prefix), news.document)
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
        watch.follow([self._prefix + name for name in names])
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
