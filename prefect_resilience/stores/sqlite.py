"""SQLite under `SqlStore`: one file, shared by the threads and processes of one host."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import time
from collections.abc import Callable, Collection
from contextlib import suppress

from prefect_resilience.stores.base import Document, Swap, decode, prefix_end
from prefect_resilience.stores.sql import (
    CREATE_INDEX,
    EXPIRES,
    OPEN,
    PURGE_AT_ONCE,
    SMALL,
    TABLE,
    Connection,
    ConnectionPool,
    Dialect,
    SqlStore,
    alive,
    creating_table,
    writing,
)
from prefect_resilience.stores.urls import StoreUrl
from prefect_resilience.stores.watching import News

BUSY_SECONDS = 5.0

COUNTERS = "prefect_resilience_counters"
"""One row per number that must outlive the documents: so far the greatest version of a removed document."""
FLOOR = "version_floor"

SCHEMA = (
    *creating_table("BINARY"),
    f"CREATE TABLE IF NOT EXISTS {COUNTERS} (name VARCHAR(64) NOT NULL PRIMARY KEY, value BIGINT NOT NULL)",
)

# A function, so that the clock is read after the wait for the file's lock.
_CLOCK = "prefect_resilience_now()"
_FIND_FLOOR = f"SELECT value FROM {COUNTERS} WHERE name = '{FLOOR}'"
_COLUMNS = {"version": ":next", "value": ":text", "expires_at": ":expiry", "closed": ":closed"}
_OLD_COLUMNS = {name: value for name, value in _COLUMNS.items() if name != "closed"}
_WRITE, _WRITE_OLD = (
    writing(columns, _CLOCK, f":next > coalesce(({_FIND_FLOOR}), 0)", f"{TABLE}.version < :next")
    for columns in (_COLUMNS, _OLD_COLUMNS)
)
_FIND = f"SELECT version, {alive(_CLOCK)} FROM {TABLE} WHERE key = ?"
_ROW = f"SELECT key, version, value, expires_at FROM {TABLE} WHERE key = ? AND {alive(_CLOCK)}"
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
            self._make_schema(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def prepare(self, pool: ConnectionPool) -> None:
        """Create the folder and the file if they are missing, and remember the file's identity."""
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        with pool.connection():
            self._file = self._identity()

    def stale(self) -> bool:
        """Whether the file was deleted or replaced: writes through the old connections would be lost."""
        return self._identity() != self._file

    def now(self, ask: Callable[[str], object]) -> float:
        """The host's clock: every process that can open this file in WAL mode runs on this host."""
        return time.time()

    def swap(self, connection: Connection, asked: Swap) -> int:
        """Usually one statement: it changes a row only if the version matches."""
        self.tidy(connection)
        if asked.expected_version:
            return self._write(connection, asked, asked.expected_version + 1)
        version = int(time.time() * 1e6)
        if self._write(connection, asked, version):
            return version
        # The document exists, or the clock was set back to before the version of a removed document.
        connection.execute("BEGIN IMMEDIATE")
        highest, lives = connection.execute(_FIND, (asked.key,)).fetchone() or (0, False)
        if not lives:
            version = max(highest, _highest_removed(connection), version) + 1
            self._write(connection, asked, version)
        connection.execute("COMMIT")
        return 0 if lives else version

    def _write(self, connection: Connection, asked: Swap, version: int) -> int:
        """Create or change a document; its new version, or 0."""
        values = {"key": asked.key, "text": asked.text, "expiry": asked.expires_at, "next": version}
        values |= {"expected": asked.expected_version, "closed": None if asked.open else version}
        statements = _WRITE if self.migrated else _WRITE_OLD
        statement = statements.change if asked.expected_version else statements.create
        return version if connection.execute(statement, values).rowcount == 1 else 0

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

    def _make_schema(self, connection: Connection) -> None:
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
                self.migrated: bool = _has(connection, OPEN) or _migrate(connection)
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


def _migrate(connection: Connection) -> bool:
    """Add the column and the index of open documents, if the file may be written. A large one stays without
    the index. Returns whether there is the column."""
    pages, size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    is_large = pages * size > SMALL
    if is_large and _has_column(connection):
        return True
    with suppress(sqlite3.OperationalError):
        connection.execute("BEGIN IMMEDIATE")
        if not _has_column(connection):
            connection.execute(f"ALTER TABLE {TABLE} ADD COLUMN closed BIGINT")
        if not is_large:
            connection.execute(CREATE_INDEX)
        connection.execute("COMMIT")
    if connection.in_transaction:
        connection.execute("ROLLBACK")
    return _has_column(connection)


def _has_column(connection: Connection) -> bool:
    names = connection.execute("SELECT name FROM pragma_table_info(?)", (TABLE,)).fetchall()
    return ("closed",) in names


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
