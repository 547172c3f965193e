"""A store in this process's memory: for tests, single-process scripts and notebooks."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from itertools import islice

from prefect_resilience.stores.base import Document
from prefect_resilience.stores.connected import CheckedStore, Found, Page, Swap, check_key, decode


class MemoryStore(CheckedStore):
    """Documents in a dictionary, as JSON text, so that only a swap can change one.

    After a fork the child has its own copy; nothing is shared between processes.
    """

    def __init__(self, url: str = "memory://") -> None:
        super().__init__(url)
        # The version of each document, and the swap that wrote it.
        self._documents: dict[str, tuple[int, Swap]] = {}
        # The greatest version of a removed document: a new document gets a greater one.
        self._floor = 0

    def load(self, key: str) -> Document | None:
        """The live document under `key`, or None."""
        check_key(key)
        with self._lock:
            row = self._live(key)
        return None if row is None else _document(row)

    def _swap(self, asked: Swap) -> int:
        with self._lock:
            row = self._live(asked.key)
            if (row[0] if row else 0) != asked.expected_version:
                return 0
            version = asked.expected_version + 1 if row else max(self._floor + 1, int(self.now() * 1e6))
            self._documents[asked.key] = version, asked
            return version

    def _delete(self, key: str, expected_version: int) -> bool:
        with self._lock:
            row = self._live(key)
            if row is None or row[0] != expected_version:
                return False
            self._remove(key)
            return True

    def _read(self, page: Page) -> tuple[Found, str | None]:
        with self._lock:
            self.check_open()
            keys, rows = sorted(self._documents), list[tuple[int, Swap]]()
            start = bisect_right(keys, page.start) if page.beyond else bisect_left(keys, page.start)
            for key in islice(keys, start, None):
                if len(rows) >= page.size or not key.startswith(page.prefix):
                    break
                row = self._live(key)
                if row is not None and (row[1].open or not page.only_open):
                    rows.append(row)
        return [(row[1].key, _document(row)) for row in rows], None

    def now(self) -> float:
        """Seconds since the epoch by the host's clock."""
        return time.time()

    def close(self) -> None:
        """Forget every document."""
        self.closed = True
        self._documents = {}

    def _live(self, key: str) -> tuple[int, Swap] | None:
        self.check_open()
        row = self._documents.get(key)
        if row is not None and row[1].expires_at is not None and row[1].expires_at <= self.now():
            self._remove(key)
            return None
        return row

    def _remove(self, key: str) -> None:
        self._floor = max(self._floor, self._documents.pop(key)[0])


def _document(row: tuple[int, Swap]) -> Document:
    version, written = row
    return Document(decode(written.text, written.key), version, written.expires_at)
