"""A store in a SQL database, on SQLAlchemy Core. SQLite's ways are in sqlite.py."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import Connection, Engine

from prefect_resilience.errors.exceptions import StoreUnavailable
from prefect_resilience.errors.redact import redact
from prefect_resilience.stores.base import Document
from prefect_resilience.stores.codec import check_key, check_text, decode, encode, prefix_end

PURGE_AT_ONCE = 50
FLOOR = "version_floor"

# Keys are ordered by code point everywhere, whatever the database's language.
_KEY = sa.Text(collation="BINARY").with_variant(sa.Text(collation="C"), "postgresql")

metadata = sa.MetaData()
documents = sa.Table(
    "prefect_resilience_documents",
    metadata,
    sa.Column("key", _KEY, primary_key=True),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("value", sa.Text, nullable=False),
    sa.Column("expires_at", sa.Double, nullable=True, index=True),
)
# One row per number that must outlive the documents; today the greatest version ever deleted.
counters = sa.Table(
    "prefect_resilience_counters",
    metadata,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("value", sa.BigInteger, nullable=False),
)


class Dialect(Protocol):
    """What differs from one database to the next.

    `errors` are the driver's own, which reach us where SQLAlchemy does not stand in between.
    """

    errors: tuple[type[Exception], ...]

    def engine(self) -> Engine:
        """A new engine with the schema in place; may raise the driver's errors."""
        ...

    def stale(self) -> bool:
        """Whether the database that the last engine was made for has been taken away."""
        ...

    def now(self, read: Callable[[sa.Select[Any]], Any]) -> float:
        """The database's clock; `read` runs a query that returns one value."""
        ...


class SqlStore:
    """Documents as rows. Safe between threads, processes, and over a fork.

    Transactions that write take the database's write lock first, so that reading, deciding and writing
    are one step.
    """

    def __init__(self, url: str, dialect: Dialect) -> None:
        self.url = url
        self.closed = False
        self._dialect = dialect
        self._engine: Engine | None = None
        self._pid = os.getpid()
        self._lock = threading.Lock()
        # One writer of this process at a time, so that threads queue here and not at the database.
        self._writing = threading.Lock()

    def load(self, key: str) -> Document | None:
        """The live document under `key`, or None."""
        check_key(key)
        with self._transaction(write=False) as (connection, now):
            row = _row(connection, key)
        return _document(key, row) if row is not None and _lives(row, now) else None

    def swap(self, key: str, expected_version: int, value: Any, expires_at: float | None = None) -> int:
        """Write if the key still has `expected_version` (0: none); the new version, or 0."""
        check_key(key)
        text = encode(value)
        with self._transaction(write=True) as (connection, now):
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

    def delete(self, key: str, expected_version: int) -> bool:
        """Remove the document if it still has `expected_version`."""
        check_key(key)
        with self._transaction(write=True) as (connection, now):
            row = _row(connection, key)
            if row is None or not _lives(row, now) or row.version != expected_version:
                return False
            _remove(connection, [key], row.version)
            return True

    def scan(self, prefix: str, after: str | None = None, limit: int = 100) -> list[tuple[str, Document]]:
        """Up to `limit` live documents whose keys start with `prefix`, by key, from beyond `after`."""
        check_text(prefix)
        key = documents.c.key
        query = sa.select(documents).where(key >= prefix).order_by(key).limit(max(0, limit))
        if (end := prefix_end(prefix)) is not None:
            query = query.where(key < end)
        if after is not None:
            query = query.where(key > check_text(after))
        with self._transaction(write=False) as (connection, now):
            alive = sa.or_(documents.c.expires_at.is_(None), documents.c.expires_at > now)
            rows = connection.execute(query.where(alive)).all()
        return [(row.key, _document(row.key, row)) for row in rows]

    def now(self) -> float:
        """Seconds since the epoch by the database's clock."""
        return self._dialect.now(self._read_one)

    def close(self) -> None:
        """Close the connections of this process."""
        self.closed = True
        self._drop_engine()

    @contextmanager
    def _transaction(self, write: bool) -> Generator[tuple[Connection, float], None, None]:
        """A connection in a transaction, and the time; the driver's errors leave as StoreUnavailable."""
        try:
            now = self.now()
            if write:
                with self._writing_lock(), self._connected().begin() as connection:
                    yield connection, now
            else:
                with self._reader().begin() as connection:
                    yield connection, now
        except (exc.SQLAlchemyError, OSError, *self._dialect.errors) as error:
            raise self._unavailable(error) from error

    def _writing_lock(self) -> threading.Lock:
        self._after_fork()
        return self._writing

    def _reader(self) -> Engine:
        return self._connected().execution_options(read_only=True)

    def _read_one(self, query: sa.Select[Any]) -> Any:
        try:
            with self._reader().begin() as connection:
                return connection.execute(query).scalar_one()
        except (exc.SQLAlchemyError, OSError, *self._dialect.errors) as error:
            raise self._unavailable(error) from error

    def _connected(self) -> Engine:
        if self.closed:
            raise StoreUnavailable(f"the store {redact(self.url)} has been closed")
        self._after_fork()
        engine = self._engine
        if engine is not None and not self._dialect.stale():
            return engine
        with self._lock:
            if self._engine is not None and self._dialect.stale():
                self._engine.dispose()
                self._engine = None
            if self._engine is None:
                self._engine = self._dialect.engine()
            return self._engine

    def _unavailable(self, error: Exception) -> StoreUnavailable:
        # Whatever the connections have been through, the next operation begins with new ones.
        self._drop_engine()
        cause = getattr(error, "orig", None) or error
        return StoreUnavailable(redact(f"the store {self.url} could not answer: {cause}"))

    def _drop_engine(self) -> None:
        self._after_fork()
        with self._lock:
            engine, self._engine = self._engine, None
        if engine is not None:
            engine.dispose()

    def _after_fork(self) -> None:
        """In a child process: leave the parent's connections alone, even when they are collected."""
        pid = os.getpid()
        if pid == self._pid:
            return
        if self._engine is not None:
            _left_to_parents.append(self._engine)
        self._engine = None
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._pid = pid


_left_to_parents: list[Engine] = []


def _row(connection: Connection, key: str) -> sa.Row[Any] | None:
    return connection.execute(sa.select(documents).where(documents.c.key == key)).first()


def _lives(row: sa.Row[Any], now: float) -> bool:
    return row.expires_at is None or row.expires_at > now


def _document(key: str, row: sa.Row[Any]) -> Document:
    return Document(decode(row.value, key), row.version, row.expires_at)


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
