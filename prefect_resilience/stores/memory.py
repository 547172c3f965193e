"""A store in this process's memory: for tests, single-process scripts and notebooks."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from itertools import islice
from typing import Any, cast

from prefect_resilience.stores.base import ConnectedStore, Document, check_key, check_text, decode, encode

PURGE_AT_ONCE = 50


class MemoryStore(ConnectedStore[None]):
    """Documents in a dictionary, as JSON text, so that only a swap can change one.

    After a fork the child has its own copy; nothing is shared between processes.
    """

    def __init__(self, url: str = "memory://") -> None:
        super().__init__(url)
        self._documents: dict[str, tuple[str, int, float | None]] = {}
        # The sorted keys, for scans; None after a key was added or removed.
        self._keys: list[str] | None = None
        # The greatest version of a removed document: a new document gets a greater one.
        self._floor = 0

    def load(self, key: str) -> Document | None:
        """The live document under `key`, or None."""
        check_key(key)
        with self._lock:
            found = self._live(key)
        return None if found is None else _document(key, found)

    def swap(self, key: str, expected_version: int, value: Any, expires_at: float | None = None) -> int:
        """Write if the key still has `expected_version` (0: does not exist); the new version, or 0."""
        check_key(key)
        text = encode(value)
        with self._lock:
            found = self._live(key)
            if (0 if found is None else found[1]) != expected_version:
                return 0
            self._purge()
            version = expected_version + 1 if found else max(self._floor + 1, int(self.now() * 1e6))
            if found is None:
                self._keys = None
            self._documents[key] = (text, version, expires_at)
            return version

    def delete(self, key: str, expected_version: int) -> bool:
        """Remove the document if it still has `expected_version`."""
        check_key(key)
        with self._lock:
            found = self._live(key)
            if found is None or found[1] != expected_version:
                return False
            self._remove(key)
            return True

    def scan(self, prefix: str, after: str | None = None, limit: int = 100) -> list[tuple[str, Document]]:
        """Up to `limit` live documents with keys that start with `prefix` and follow `after`, by key."""
        check_text(prefix)
        with self._lock:
            self._check_open()
            if self._keys is None:
                self._keys = sorted(self._documents)
            keys, found = self._keys, list[tuple[str, tuple[str, int, float | None]]]()
            goes_on = after is not None and after >= prefix
            start = bisect_right(keys, cast("str", after)) if goes_on else bisect_left(keys, prefix)
            for key in islice(keys, start, None):
                if len(found) >= limit or not key.startswith(prefix):
                    break
                live = self._live(key)
                if live is not None:
                    found.append((key, live))
        return [(key, _document(key, live)) for key, live in found]

    def now(self) -> float:
        """Seconds since the epoch by the host's clock."""
        return time.time()

    def close(self) -> None:
        """Forget every document."""
        self.closed = True
        self._documents, self._keys = {}, None

    def _live(self, key: str) -> tuple[str, int, float | None] | None:
        self._check_open()
        found = self._documents.get(key)
        if found is None:
            return None
        if found[2] is not None and found[2] <= self.now():
            self._remove(key)
            return None
        return found

    def _purge(self) -> None:
        """Drop expired documents among the PURGE_AT_ONCE oldest ones."""
        now = self.now()
        looked_at = [*zip(range(PURGE_AT_ONCE), self._documents.items(), strict=False)]
        for _, (key, (_, _, expires_at)) in looked_at:
            if expires_at is not None and expires_at <= now:
                self._remove(key)

    def _remove(self, key: str) -> None:
        self._floor = max(self._floor, self._documents.pop(key)[1])
        self._keys = None


def _document(key: str, found: tuple[str, int, float | None]) -> Document:
    text, version, expires_at = found
    return Document(decode(text, key), version, expires_at)
