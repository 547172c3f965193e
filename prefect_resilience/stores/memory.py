"""A store in this process's memory: for tests, single-process scripts and notebooks."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from itertools import islice
from typing import NamedTuple

from prefect_resilience.stores.base import Document
from prefect_resilience.stores.connected import ConnectedStore, Found, Page, Swap, check_key, decode


class _Row(NamedTuple):
    text: str
    version: int
    expires_at: float | None
    open: bool


class MemoryStore(ConnectedStore[None]):
    """Documents in a dictionary, as JSON text, so that only a swap can change one.

    After a fork the child has its own copy; nothing is shared between processes.
    """

    def __init__(self, url: str = "memory://") -> None:
        super().__init__(url)
        self._documents: dict[str, _Row] = {}
        # The greatest version of a removed document: a new document gets a greater one.
        self._floor = 0

    def load(self, key: str) -> Document | None:
        """The live document under `key`, or None."""
        check_key(key)
        with self._lock:
            row = self._live(key)
        return None if row is None else _document(key, row)

    def _swap(self, asked: Swap) -> int:
        with self._lock:
            row = self._live(asked.key)
            if (0 if row is None else row.version) != asked.expected_version:
                return 0
            version = asked.expected_version + 1 if row else max(self._floor + 1, int(self.now() * 1e6))
            self._documents[asked.key] = _Row(asked.text, version, asked.expires_at, asked.open)
            return version

    def _delete(self, key: str, expected_version: int) -> bool:
        with self._lock:
            row = self._live(key)
            if row is None or row.version != expected_version:
                return False
            self._remove(key)
            return True

    def _read(self, page: Page) -> tuple[Found, str | None]:
        with self._lock:
            self.check_open()
            keys, rows = sorted(self._documents), list[tuple[str, _Row]]()
            start = bisect_right(keys, page.start) if page.beyond else bisect_left(keys, page.start)
            for key in islice(keys, start, None):
                if len(rows) >= page.size or not key.startswith(page.prefix):
                    break
                row = self._live(key)
                if row is not None and (row.open or not page.only_open):
                    rows.append((key, row))
        return [(key, _document(key, row)) for key, row in rows], None

    def now(self) -> float:
        """Seconds since the epoch by the host's clock."""
        return time.time()

    def close(self) -> None:
        """Forget every document."""
        self.closed = True
        self._documents = {}

    def _live(self, key: str) -> _Row | None:
        self.check_open()
        row = self._documents.get(key)
        if row is not None and row.expires_at is not None and row.expires_at <= self.now():
            self._remove(key)
            return None
        return row

    def _remove(self, key: str) -> None:
        self._floor = max(self._floor, self._documents.pop(key).version)


def _document(key: str, row: _Row) -> Document:
    return Document(decode(row.text, key), row.version, row.expires_at)
