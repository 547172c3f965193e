"""SQLite under `SqlStore`: one file, shared by the threads and processes of one host."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

from prefect_resilience.stores.base import Document, decode, prefix_end
from prefect_resilience.stores.sql import (
    EXPIRES,
    INDEXES,
    PURGE_AT_ONCE,
    SMALL,
    TABLE,
    Connection,
    ConnectionPool,
    Dialect,
    SqlStore,
    alive,
    creating_indexes,
)
from prefect_resilience.stores.urls import StoreUrl
from prefect_resilience.stores.watching import News

BUSY_SECONDS = 5.0

COUNTERS = "prefect_resilience_counters"
"""One row per number that must outlive the documents: so far the greatest version of a removed document."""
FLOOR = "version_floor"

SCHEMA = (
    f'CREATE TABLE IF NOT EXISTS {TABLE} (key TEXT COLLATE "BINARY" NOT NULL PRIMARY KEY,'
    " version BIGINT NOT NULL, value TEXT NOT NULL, expires_at DOUBLE)",
    # Partial: rows without an expiry need no index entry.
    f"CREATE INDEX IF NOT EXISTS {EXPIRES} ON {TABLE} (expires_at) WHERE expires_at IS NOT NULL",
    f"CREATE TABLE IF NOT EXISTS {COUNTERS} (name VARCHAR(64) NOT NULL PRIMARY KEY, value BIGINT NOT NULL)",
)

_CONTAINS = "instr(value, {})"

# A function, so that the clock is read after the wait for the file's lock.
_CLOCK = "prefect_resilience_now()"
_CREATE = (
    f"INSERT INTO {TABLE} (key, version, value, expires_at) SELECT :key, :next, :text, :expiry"
    f" WHERE :next > coalesce((SELECT value FROM {COUNTERS} WHERE name = '{FLOOR}'), 0)"
    " ON CONFLICT (key) DO UPDATE SET version = :next, value = :text, expires_at = :expiry"
    f" WHERE NOT {alive(_CLOCK)} AND {TABLE}.version < :next"
)
_CHANGE = (
    f"UPDATE {TABLE} SET version = :next, value = :text, expires_at = :expiry"
    f" WHERE key = :key AND version = :expected AND {alive(_CLOCK)}"
)
_FIND = f"SELECT version, {alive(_CLOCK)} FROM {TABLE} WHERE key = ?"
_ROW = f"SELECT key, version, value, expires_at FROM {TABLE} WHERE key = ? AND {alive(_CLOCK)}"
_FIND_FLOOR = f"SELECT value FROM {COUNTERS} WHERE name = '{FLOOR}'"
_FIND_EXPIRED = f"SELECT key, version FROM {TABLE} WHERE expires_at <= {_CLOCK} LIMIT {PURGE_AT_ONCE}"
_RAISE_FLOOR = (
    f"INSERT INTO {COUNTERS} (name, value) VALUES ('{FLOOR}', ?)"
    " ON CONFLICT (name) DO UPDATE SET value = max(value, excluded.value)"
)


def open_sqlite(parsed: StoreUrl) -> SqlStore:
    """The store in the file that the URL names; `?timeout=` is the time to wait for a lock (5 s)."""
    patience = float(parsed.options.get("timeout", BUSY_SECONDS))
    return SqlStore(parsed.canonical, SqliteDialect(parsed.path, patience))


class SqliteDialect(Dialect):
    """A file in WAL mode with synchronous=FULL: committed changes survive a power failure.

    A statement is its own transaction. An operation with several statements takes the file's write lock
    first, so that its reads and writes are atomic.
    """

    errors: tuple[type[Exception], ...] = (sqlite3.Error,)
    one_writer = True
    parameter = ":{}"
    clock = _CLOCK
    contains = _CONTAINS
    use_index = " INDEXED BY {}"

    def __init__(self, path: str, patience: float) -> None:
        self.patience = patience
        self._path = path
        self._file: tuple[int, int] | None = None

    def connect(self) -> Connection:
        """A connection in which each statement commits by itself."""
        connection = sqlite3.connect(
            self._path, timeout=self.patience, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("PRAGMA synchronous=FULL")
            connection.create_function("prefect_resilience_now", 0, lambda: time.time())
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def opened(self, pool: ConnectionPool) -> None:
        """Create the folder and the file if they are missing, and remember the file's identity."""
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        with pool.connection():
            self._file = self._identity()

    def stale(self) -> bool:
        """Whether the file was deleted or replaced: writes through the old connections would be lost."""
        return self._identity() != self._file

    def now(self, ask: Callable[[str], Any]) -> float:
        """The host's clock: every process that can open this file in WAL mode runs on this host."""
        return time.time()

    def swap(
        self,
        connection: Connection,
        key: str,
        expected_version: int,
        text: str,
        expires_at: float | None,
        publish: bool,
    ) -> int:
        """Usually one statement: it changes a row only if the version matches."""
        self.tidy(connection)
        written = {"key": key, "text": text, "expiry": expires_at}
        if expected_version:
            version = expected_version + 1
            changes = {**written, "expected": expected_version, "next": version}
            return version if connection.execute(_CHANGE, changes).rowcount == 1 else 0
        version = int(time.time() * 1e6)
        if connection.execute(_CREATE, {**written, "next": version}).rowcount == 1:
            return version
        # The document exists, or the clock was set back to before the version of a removed document.
        connection.execute("BEGIN IMMEDIATE")
        found, lives = connection.execute(_FIND, (key,)).fetchone() or (0, False)
        if not lives:
            version = max(found, _highest_removed(connection), version) + 1
            connection.execute(_CREATE, {**written, "next": version})
        connection.execute("COMMIT")
        return 0 if lives else version

    def delete(self, connection: Connection, key: str, expected_version: int) -> bool:
        """Check the version and remove the document under the file's write lock."""
        connection.execute("BEGIN IMMEDIATE")
        found, lives = connection.execute(_FIND, (key,)).fetchone() or (0, False)
        removed = bool(lives) and found == expected_version
        if removed:
            _remove(connection, [(key, expected_version)])
        connection.execute("COMMIT")
        return removed

    def purge(self, connection: Connection) -> int:
        """Remove expired rows. Does not take the write lock if nothing has expired."""
        rows = connection.execute(_FIND_EXPIRED).fetchall()
        if rows:
            connection.execute("BEGIN IMMEDIATE")
            rows = connection.execute(_FIND_EXPIRED).fetchall()
            _remove(connection, rows)
            connection.execute("COMMIT")
        return len(rows)

    def watch(self, prefix: str) -> SqliteWatch:
        """Look at the file's change counter, which costs microseconds."""
        return SqliteWatch(self.connect(), prefix, self.stale)

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _prepare(self, connection: Connection) -> None:
        """Turn on the write-ahead log and create the schema; safe against other processes."""
        deadline = time.monotonic() + self.patience
        while True:
            try:
                if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                    connection.execute("PRAGMA journal_mode=WAL")
                if not _has(connection, TABLE, EXPIRES, COUNTERS):
                    connection.execute("BEGIN IMMEDIATE")
                    for statement in SCHEMA:
                        connection.execute(statement)
                    connection.execute("COMMIT")
                self.indexed: bool = _has(connection, *INDEXES.values()) or _got_index(connection)
                return
            except sqlite3.OperationalError as error:
                # The change to WAL does not wait for locks; all other statements do.
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                time.sleep(random.uniform(0.005, 0.05))


def _has(connection: Connection, *names: str) -> bool:
    wanted = ", ".join("?" * len(names))
    found = f"SELECT count(*) FROM sqlite_master WHERE name IN ({wanted})"
    return connection.execute(found, names).fetchone()[0] == len(names)


def _got_index(connection: Connection) -> bool:
    """Make the indexes of open documents, unless the file is large or may not be written."""
    pages, size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    if pages * size > SMALL:
        return False
    with suppress(sqlite3.OperationalError):
        for statement in creating_indexes(_CONTAINS):
            connection.execute(statement)
        return True
    return False


def _highest_removed(connection: Connection) -> int:
    found = connection.execute(_FIND_FLOOR).fetchone()
    return 0 if found is None else int(found[0])


def _remove(connection: Connection, rows: list[tuple[str, int]]) -> None:
    """Delete rows, and raise the floor so that new documents get greater versions."""
    connection.executemany(f"DELETE FROM {TABLE} WHERE key = ?", [(key,) for key, _ in rows])
    if rows:
        connection.execute(_RAISE_FLOOR, (max(version for _, version in rows),))


LOOK_EVERY = 0.02
"""Seconds between two looks at the file's change counter."""
PATIENT = 20
"""The next look comes PATIENT times as long after a reading as it took: 5 % of a core at most."""


class SqliteWatch:
    """Reads the versions under a prefix whenever another connection has changed the file."""

    def __init__(self, connection: Connection, prefix: str, is_stale: Callable[[], bool]) -> None:
        self._connection = connection
        self._is_stale = is_stale
        end = prefix_end(prefix)
        bounds = "key >= ?" if end is None else "key >= ? AND key < ?"
        self._read_from(bounds, (prefix,) if end is None else (prefix, end))
        self._interval = LOOK_EVERY

    def wait(self, seconds: float) -> list[News]:
        """The changes of the prefix, within LOOK_EVERY seconds or a little more."""
        deadline = time.monotonic() + seconds
        while True:
            if self._is_stale():
                raise sqlite3.OperationalError("the file was deleted or replaced")
            changes = self._counter()
            if changes != self._changes:
                self._changes = changes
                if news := self._read():
                    return news
            left = deadline - time.monotonic()
            if left <= 0:
                return []
            time.sleep(min(left, self._interval))

    def follow(self, keys: Collection[str]) -> None:
        """Read only the versions of these keys."""
        self._read_from("key IN (SELECT value FROM json_each(?))", (json.dumps(list(keys)),))

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _read_from(self, condition: str, parameters: tuple[str, ...]) -> None:
        self._within = f"FROM {TABLE} WHERE {condition} AND {alive(_CLOCK)}"
        self._bounds = parameters
        self._changes = self._counter()
        self._known = self._versions()

    def _counter(self) -> int:
        return self._connection.execute("PRAGMA data_version").fetchone()[0]

    def _versions(self) -> dict[str, int]:
        return dict(self._connection.execute(f"SELECT key, version {self._within}", self._bounds))

    def _read(self) -> list[News]:
        begun = time.monotonic()
        versions = self._versions()
        changed = [key for key, version in versions.items() if self._known.get(key) != version]
        self._known = versions
        self._interval = max(LOOK_EVERY, PATIENT * (time.monotonic() - begun))
        rows = [self._connection.execute(_ROW, (key,)).fetchone() for key in changed]
        return [
            News(row[0], Document(decode(row[2], row[0]), row[1], row[3])) for row in rows if row is not None
        ]
