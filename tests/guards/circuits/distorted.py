"""A store whose messages are lost, late or doubled on their way to this process."""

from __future__ import annotations

import heapq
import itertools
import random
import time
from typing import Any, Literal, cast

from prefect_resilience.stores import open_store
from prefect_resilience.stores.base import News, Watch

Distortion = Literal["none", "lost", "late", "doubled"]

LATEST = 3.0
"""Seconds by which a message comes late at the most: long after the state that it tells of."""


class Distorted:
    """`open_store(url)`, with distorted news."""

    def __init__(self, url: str, distortion: Distortion) -> None:
        self._store: Any = open_store(url)
        self._distortion: Distortion = distortion
        store = self._store
        self.url, self.load, self.swap = store.url, store.load, store.swap
        self.delete, self.scan, self.now, self.close = store.delete, store.scan, store.now, store.close

    def watch(self, prefix: str) -> Watch:
        return DistortedWatch(self._store.watch(prefix), self._distortion)


class DistortedWatch:
    """A late message overtakes none and is overtaken by many; a doubled one comes again after a while."""

    def __init__(self, watch: Watch, distortion: Distortion) -> None:
        self._watch = watch
        self._distortion = distortion
        self._waiting: list[tuple[float, int, News]] = []
        self._order = itertools.count()

    def wait(self, seconds: float) -> list[News]:
        due = self._waiting[0][0] - time.monotonic() if self._waiting else seconds
        found = self._watch.wait(max(0.0, min(seconds, due)))
        if self._distortion == "none":
            return found
        now = time.monotonic()
        if self._distortion != "lost":
            for news in found:
                at = now + random.uniform(0, LATEST)
                heapq.heappush(self._waiting, (at, next(self._order), news))
        heard = [] if self._distortion in ("lost", "late") else found
        while self._waiting and self._waiting[0][0] <= now:
            heard.append(heapq.heappop(self._waiting)[2])
        return heard

    def close(self) -> None:
        self._watch.close()


def distorted(url: str, distortion: Distortion) -> Any:
    """What `CircuitBreaker(store=)` takes."""
    return url if distortion == "none" else Distorted(url, distortion)


DISTORTIONS = cast("tuple[Distortion, ...]", ("lost", "late", "doubled"))
