"""SQLite under `SqlStore`: one file, shared by the threads and processes of one host."""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.engine import Connection, Engine

from prefect_resilience.stores.sql import SqlStore
from prefect_resilience.stores.tables import documents, metadata
from prefect_resilience.stores.urls import StoreUrl

BUSY_SECONDS = 5.0
POOL_SIZE = 5
PURGE_AT_ONCE = 50
FLOOR = "version_floor"

# One row per number that must outlive the documents; today the greatest version ever deleted.
counters = sa.Table(
    "prefect_resilience_counters",
    metadata,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("value", sa.BigInteger, nullable=False),
)


def open_sqlite(parsed: StoreUrl) -> SqlStore:
    """The store in the file that the URL names; `?timeout=` says how long to wait for a lock (5 s)."""
    patience = float(parsed.options.get("timeout", BUSY_SECONDS))
    return SqlStore(parsed.canonical, SqliteDialect(parsed.path, patience))


class SqliteDialect:
    """A file in WAL mode with synchronous=FULL: what was committed survives a power cut.

    Transactions that write take the file's write lock first, so that reading, deciding and writing are one
    step.
    """

    errors: tuple[type[Exception], ...] = (sqlite3.Error,)
    one_writer = True

    def __init__(self, path: str, patience: float) -> None:
        self._path = path
        self._patience = patience
        self._file: tuple[int, int] | None = None

    def begin(self) -> None:
        """Nothing to count: the driver itself waits for locks no longer than it was told to."""

    def engine(self) -> Engine:
        """Make the folder, the file and the schema where they are missing, in a race with other processes."""
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        engine = sa.create_engine(
            sa.URL.create("sqlite", database=self._path),
            connect_args={"timeout": self._patience, "check_same_thread": False},
            pool_size=POOL_SIZE,
            max_overflow=POOL_SIZE,
            pool_timeout=self._patience,
        )
        event.listen(engine, "connect", _on_connect)
        event.listen(engine, "begin", _on_begin)
        try:
            self._prepare(engine)
        except BaseException:
            engine.dispose()
            raise
        self._file = self._identity()
        return engine

    def stale(self) -> bool:
        """Whether the file was deleted or replaced: its connections would write into nowhere."""
        return self._identity() != self._file

    def now(self, read: Callable[[sa.Select[Any]], Any]) -> float:
        """The host's clock: every process that can open this file in WAL mode runs on this host."""
        return time.time()

    def clock(self) -> sa.ColumnElement[float]:
        """The host's clock, as a value."""
        return sa.literal(time.time(), sa.Double)

    def swap(
        self, connection: Connection, key: str, expected_version: int, text: str, expires_at: float | None
    ) -> int:
        """Read, decide and write, under the file's write lock."""
        now = time.time()
        _purge(connection, now, key)
        row = _row(connection, key)
        if (row.version if row is not None and _lives(row, now) else 0) != expected_version:
            return 0
        fields = {"value": text, "expires_at": expires_at}
        if row is None:
            version = max(int(now * 1e6), _floor(connection) + 1)
            connection.execute(sa.insert(documents).values(key=key, version=version, **fields))
        else:
            version = row.version + 1
            unchanged = sa.and_(documents.c.key == key, documents.c.version == row.version)
            change = sa.update(documents).where(unchanged).values(version=version, **fields)
            if connection.execute(change).rowcount != 1:
                return 0
        return version

    def delete(self, connection: Connection, key: str, expected_version: int) -> bool:
        """Read, decide and remove, under the file's write lock."""
        row = _row(connection, key)
        if row is None or not _lives(row, time.time()) or row.version != expected_version:
            return False
        _remove(connection, [key], row.version)
        return True

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _prepare(self, engine: Engine) -> None:
        deadline = time.monotonic() + self._patience
        while True:
            try:
                with engine.connect() as connection:
                    _use_wal(connection)
                if not _has_schema(engine):
                    with engine.begin() as connection:
                        metadata.create_all(connection)
                return
            except (exc.OperationalError, sqlite3.OperationalError) as error:
                # Changing to WAL does not wait for locks, as everything else does.
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(random.uniform(0.005, 0.05))


def _use_wal(connection: Connection) -> None:
    # Outside a transaction, as SQLite wants it: on the driver's own connection.
    raw = connection.connection.driver_connection
    if raw is not None and raw.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        raw.execute("PRAGMA journal_mode=WAL").fetchone()


def _has_schema(engine: Engine) -> bool:
    with engine.execution_options(read_only=True).begin() as connection:
        existing = set(sa.inspect(connection).get_table_names())
    return existing.issuperset(metadata.tables)


def _on_connect(connection: Any, record: object) -> None:
    # The driver begins no transactions of its own; _on_begin does.
    connection.isolation_level = None
    connection.execute("PRAGMA synchronous=FULL")


def _on_begin(connection: Connection) -> None:
    reading = connection.get_execution_options().get("read_only")
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")


def _row(connection: Connection, key: str) -> sa.Row[Any] | None:
    return connection.execute(sa.select(documents).where(documents.c.key == key)).first()


def _lives(row: sa.Row[Any], now: float) -> bool:
    return row.expires_at is None or row.expires_at > now


def _floor(connection: Connection) -> int:
    found = connection.execute(sa.select(counters.c.value).where(counters.c.name == FLOOR)).scalar()
    return int(found or 0)


def _purge(connection: Connection, now: float, kept: str) -> None:
    """Remove some expired documents in passing, other than the one that is being written."""
    expired = (
        sa.select(documents.c.key, documents.c.version)
        .where(documents.c.expires_at <= now, documents.c.key != kept)
        .limit(PURGE_AT_ONCE)
    )
    rows = connection.execute(expired).all()
    if rows:
        _remove(connection, [row.key for row in rows], max(row.version for row in rows))


def _remove(connection: Connection, keys: list[str], version: int) -> None:
    """Delete rows, and let later lives of their keys begin beyond their versions."""
    connection.execute(sa.delete(documents).where(documents.c.key.in_(keys)))
    floor = _floor(connection)
    if floor == 0:
        connection.execute(sa.insert(counters).values(name=FLOOR, value=version))
    elif version > floor:
        connection.execute(sa.update(counters).where(counters.c.name == FLOOR).values(value=version))
