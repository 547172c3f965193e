"""A store in a SQLite file, shared by the threads and processes of one host."""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

from prefect_resilience.stores import StoreUrl
from prefect_resilience.stores.base import News
from prefect_resilience.stores.connected import ConnectedWatch, Swap, prefix_end
from prefect_resilience.stores.sql import (
    EXPIRES,
    PURGE_AT_ONCE,
    TABLE,
    Connection,
    ConnectionPool,
    SqlStore,
    alive,
    creating_table,
    upsert,
)

COUNTERS = "prefect_resilience_counters"
"""One row per number that must outlive the documents: so far the greatest version of a removed document."""
FLOOR = "version_floor"

# A function, so that the clock is read after the wait for the file's lock.
_CLOCK = "prefect_resilience_now()"
_WRITE = upsert({"version": ":version", "value": ":text", "expires_at": ":expires_at", "closed": ":closed"})
_FIND_VERSION = (
    f"SELECT coalesce(version, 0), coalesce({alive(_CLOCK)}, 0),"
    f" coalesce((SELECT value FROM {COUNTERS} WHERE name = '{FLOOR}'), 0)"
    f" FROM (SELECT 1) LEFT JOIN {TABLE} ON key = ?"
)
_FIND_EXPIRED = f"SELECT key, version FROM {TABLE} WHERE expires_at <= {_CLOCK} LIMIT {PURGE_AT_ONCE}"
_RAISE_FLOOR = (
    f"INSERT INTO {COUNTERS} (name, value) VALUES ('{FLOOR}', ?)"
    " ON CONFLICT (name) DO UPDATE SET value = max(value, excluded.value)"
)


class SqliteStore(SqlStore):
    """A file in WAL mode with synchronous=FULL: committed changes survive a power failure.

    An operation that writes takes the file's write lock first, so that it is atomic; `?timeout=` is the time
    to wait for it (5 s). The threads of a process queue before, and not at the file.
    """

    errors: tuple[type[Exception], ...] = (sqlite3.Error,)
    clock: str = _CLOCK
    schema: str = (
        "SELECT (SELECT count(*) FROM sqlite_master"
        f" WHERE name IN ('{TABLE}', '{EXPIRES}', '{COUNTERS}')) = 3,"
        f" EXISTS (SELECT * FROM pragma_table_info('{TABLE}') WHERE name = 'closed')"
    )
    creation: tuple[str, ...] = (
        *creating_table("BINARY"),
        f"CREATE TABLE IF NOT EXISTS {COUNTERS}"
        " (name VARCHAR(64) NOT NULL PRIMARY KEY, value BIGINT NOT NULL)",
    )

    def __init__(self, parsed: StoreUrl) -> None:
        super().__init__(parsed)
        self._file: tuple[int, int] | None = None
        self._writing = threading.Lock()

    def now(self) -> float:
        """The host's clock: every process that can open this file in WAL mode runs on this host."""
        return time.time()

    def watch(self, prefix: str) -> SqliteWatch:
        """Look at the file's change counter, which costs microseconds. Raises StoreUnavailable."""
        return SqliteWatch(self, prefix)

    def identity(self) -> tuple[int, int] | None:
        """The file that the path leads to now, None if there is none."""
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def after_fork(self) -> None:
        self._writing = threading.Lock()
        super().after_fork()

    def _write(self, connection: Connection, asked: Swap) -> int:
        with self._alone(connection):
            self._tidy(connection)
            current, lives, floor = connection.execute(_FIND_VERSION, (asked.key,)).fetchone()
            if asked.expected_version != (current if lives else 0):
                return 0
            version = current + 1 if lives else max(current + 1, floor + 1, int(time.time() * 1e6))
            values = {"key": asked.key, "text": asked.text, "expires_at": asked.expires_at}
            values |= {"version": version, "closed": None if asked.open else version}
            connection.execute(_WRITE, values)
            return version

    def _remove(self, connection: Connection, key: str, expected_version: int) -> bool:
        with self._alone(connection):
            current, lives, _ = connection.execute(_FIND_VERSION, (key,)).fetchone()
            if is_expected := bool(lives) and current == expected_version:
                _delete_rows(connection, [(key, current)])
            return is_expected

    def _purge(self, connection: Connection) -> int:
        rows = connection.execute(_FIND_EXPIRED).fetchall()
        if rows:
            _delete_rows(connection, rows)
        return len(rows)

    def dial(self) -> Connection:
        """A connection in which each statement commits by itself; the folder is created if it is missing."""
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        return sqlite3.connect(
            self._path, timeout=self.deadline.seconds, isolation_level=None, check_same_thread=False
        )

    def _prepare(self, connection: Connection) -> None:
        connection.execute("PRAGMA synchronous=FULL")
        connection.create_function("prefect_resilience_now", 0, lambda: time.time())
        deadline = time.monotonic() + self.deadline.seconds
        while True:
            try:
                if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                    connection.execute("PRAGMA journal_mode=WAL")
                return super()._prepare(connection)
            except sqlite3.OperationalError as error:
                # The change to WAL does not wait for locks; all other statements do.
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(random.uniform(0.005, 0.05))

    @contextmanager
    def _alone(self, connection: Connection) -> Generator[None]:
        with connection:  # commits, or rolls back
            connection.execute("BEGIN IMMEDIATE")
            yield

    def open_connections(self) -> ConnectionPool:
        pool = super().open_connections()
        with pool.connection():
            self._file = self.identity()
        return pool

    def _is_stale(self) -> bool:
        """Whether the file was deleted or replaced: writes through the old connections would be lost."""
        return self.identity() != self._file


def _delete_rows(connection: Connection, rows: list[tuple[str, int]]) -> None:
    """Delete rows, and raise the floor so that new documents get greater versions."""
    connection.executemany(f"DELETE FROM {TABLE} WHERE key = ?", [(key,) for key, _ in rows])
    connection.execute(_RAISE_FLOOR, (max(version for _, version in rows),))


LOOK_EVERY = 0.02
"""Seconds between two looks at the file's change counter."""


class SqliteWatch(ConnectedWatch[SqliteStore]):
    """Reads the versions under a prefix whenever another connection has changed the file."""

    def _begin(self) -> None:
        self._connection = self._store.connect()
        self._file = self._store.identity()
        end = prefix_end(self._prefix)
        self._bounds = (self._prefix,) if end is None else (self._prefix, end)
        condition = "key >= ?" if end is None else "key >= ? AND key < ?"
        self._find_versions = f"SELECT key, version FROM {TABLE} WHERE {condition} AND {alive(_CLOCK)}"
        self._changes = self._count_changes()
        self._versions = self._read_versions()

    def _wait(self, seconds: float) -> list[News]:
        """The changes, within LOOK_EVERY seconds or a little more."""
        deadline = time.monotonic() + seconds
        while True:
            if self._store.identity() != self._file:
                raise sqlite3.OperationalError("the file was deleted or replaced")
            changes = self._count_changes()
            if changes != self._changes:
                self._changes = changes
                if news := self._read():
                    return news
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return []
            time.sleep(min(remaining, LOOK_EVERY))

    def _count_changes(self) -> int:
        return self._connection.execute("PRAGMA data_version").fetchone()[0]

    def _read_versions(self) -> dict[str, int]:
        return dict(self._connection.execute(self._find_versions, self._bounds))

    def _read(self) -> list[News]:
        before, self._versions = self._versions, self._read_versions()
        changed = [key for key, version in self._versions.items() if before.get(key) != version]
        updates = [News(key, self._store.find(self._connection, key)) for key in changed]
        return [news for news in updates if news.document is not None]
