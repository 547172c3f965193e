"""SQLite under `SqlStore`: one file, shared by the threads and processes of one host."""

from __future__ import annotations

import math
import os
import random
import sqlite3
import time
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy import engine as sa_engine
from sqlalchemy import event, exc
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.engine import Engine

from prefect_resilience.stores.sql import Connection, SqlStore, Statement
from prefect_resilience.stores.tables import alive, documents, metadata
from prefect_resilience.stores.urls import StoreUrl

BUSY_SECONDS = 5.0
POOL_SIZE = 5
PURGE_AT_ONCE = 50
PURGE_PAUSE = 1.0
"""Seconds between two attempts of one process to purge when there is little to do."""

FLOOR = "version_floor"

# One row per number that must outlive the documents; today the greatest version ever deleted.
counters: sa.Table = sa.Table(
    "prefect_resilience_counters",
    metadata,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("value", sa.BigInteger, nullable=False),
)


# The statements, and what they take: keys, versions, values and times.
_writes = SQLiteDialect_pysqlite(paramstyle="named")
# Asked when the file's lock is held, however long that took.
_clock: sa.ColumnElement[Any] = sa.func.prefect_resilience_now(type_=sa.Double)
_key, _version = sa.bindparam("the_key", type_=sa.Text), sa.bindparam("the_version", type_=sa.BigInteger)
_next_version = sa.bindparam("next_version", type_=sa.BigInteger)
_fields: dict[str, Any] = {
    "version": _next_version,
    "value": sa.bindparam("text", type_=sa.Text),
    "expires_at": sa.bindparam("expiry", type_=sa.Double),
}
_this_one = documents.c.key == _key
_floor = sa.select(counters.c.value).where(counters.c.name == FLOOR)

_new: Any = sa.select(_key, *_fields.values())
_create = Statement(
    insert(documents)
    .from_select(["key", *_fields], _new.where(_next_version > sa.func.coalesce(_floor.scalar_subquery(), 0)))
    .on_conflict_do_update(
        index_elements=["key"],
        set_=_fields,
        where=sa.and_(sa.not_(alive(_clock)), documents.c.version < _next_version),
    ),
    _writes,
)
_change = Statement(
    sa.update(documents).where(_this_one, documents.c.version == _version, alive(_clock)).values(**_fields),
    _writes,
)
_find = Statement(sa.select(documents.c.version, alive(_clock)).where(_this_one), _writes)
_find_floor = Statement(_floor, _writes)
_find_expired = Statement(
    sa.select(documents.c.key, documents.c.version)
    .where(documents.c.expires_at <= _clock)
    .limit(PURGE_AT_ONCE),
    _writes,
)
_delete = Statement(sa.delete(documents).where(_this_one), _writes)
_insert_floor = Statement(sa.insert(counters).values(name=FLOOR, value=_version), _writes)
_raise_floor = Statement(
    sa.update(counters).where(counters.c.name == FLOOR, counters.c.value < _version).values(value=_version),
    _writes,
)


def open_sqlite(parsed: StoreUrl) -> SqlStore:
    """The store in the file that the URL names; `?timeout=` says how long to wait for a lock (5 s)."""
    patience = float(parsed.options.get("timeout", BUSY_SECONDS))
    return SqlStore(parsed.canonical, SqliteDialect(parsed.path, patience))


class SqliteDialect:
    """A file in WAL mode with synchronous=FULL: what was committed survives a power cut.

    A statement is a transaction of its own. Where it takes several, they take the file's write lock first, so
    that reading, deciding and writing are one step.
    """

    errors: tuple[type[Exception], ...] = (sqlite3.Error,)
    one_writer = True
    writes: sa.Dialect = _writes
    clock: sa.ColumnElement[Any] = _clock

    def __init__(self, path: str, patience: float) -> None:
        self._path = path
        self._patience = patience
        self._file: tuple[int, int] | None = None
        self._purge_at = -math.inf

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
            # A connection is given back when it has committed, or else closed.
            pool_reset_on_return=None,
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

    def now(self, ask: Callable[[Statement], Any]) -> float:
        """The host's clock: every process that can open this file in WAL mode runs on this host."""
        return time.time()

    def swap(
        self, connection: Connection, key: str, expected_version: int, text: str, expires_at: float | None
    ) -> int:
        """One statement, as a rule: whether it changed a row says whether the version was the right one."""
        self._tidy(connection)
        written = {"the_key": key, "text": text, "expiry": expires_at}
        if expected_version:
            version = expected_version + 1
            changed = _change.run(connection, the_version=expected_version, next_version=version, **written)
            return version if changed.rowcount == 1 else 0
        version = int(time.time() * 1e6)
        if _create.run(connection, next_version=version, **written).rowcount == 1:
            return version
        # There is a document, or the clock was set back behind an earlier life of the key.
        connection.execute("BEGIN IMMEDIATE")
        found, lives = _find.run(connection, the_key=key).fetchone() or (0, False)
        if not lives:
            version = max(found, _highest_removed(connection), version) + 1
            _create.run(connection, next_version=version, **written)
        connection.execute("COMMIT")
        return 0 if lives else version

    def delete(self, connection: Connection, key: str, expected_version: int) -> bool:
        """Read, decide and remove, under the file's write lock."""
        connection.execute("BEGIN IMMEDIATE")
        found, lives = _find.run(connection, the_key=key).fetchone() or (0, False)
        removed = bool(lives) and found == expected_version
        if removed:
            _remove(connection, [(key, expected_version)])
        connection.execute("COMMIT")
        return removed

    def _tidy(self, connection: Connection) -> None:
        """Remove some expired documents in passing; more soon, where there are more."""
        now = time.monotonic()
        if now < self._purge_at:
            return
        rows = _find_expired.run(connection).fetchall()
        if rows:
            connection.execute("BEGIN IMMEDIATE")
            rows = _find_expired.run(connection).fetchall()
            _remove(connection, rows)
            connection.execute("COMMIT")
        if len(rows) < PURGE_AT_ONCE:
            self._purge_at = now + PURGE_PAUSE

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


def _use_wal(connection: sa_engine.Connection) -> None:
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
    connection.create_function("prefect_resilience_now", 0, lambda: time.time())


def _on_begin(connection: sa_engine.Connection) -> None:
    reading = connection.get_execution_options().get("read_only")
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")


def _highest_removed(connection: Connection) -> int:
    found = _find_floor.run(connection).fetchone()
    return 0 if found is None else int(found[0])


def _remove(connection: Connection, rows: list[tuple[str, int]]) -> None:
    """Delete rows, and let later lives of their keys begin beyond their versions."""
    for key, _ in rows:
        _delete.run(connection, the_key=key)
    version = max((version for _, version in rows), default=0)
    if _highest_removed(connection) == 0:
        _insert_floor.run(connection, the_version=version)
    else:
        _raise_floor.run(connection, the_version=version)
