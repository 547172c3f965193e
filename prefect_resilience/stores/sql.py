"""A store in a SQL database, on SQLAlchemy Core: connections, forks, errors and reading.

What differs from one database to the next is a `Dialect`: see sqlite.py and postgres.py.
"""

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
from prefect_resilience.stores.codec import before_nul, check_key, check_text, decode, encode, prefix_end
from prefect_resilience.stores.tables import alive, documents

GREATEST_VERSION = 2**63 - 1


class Dialect(Protocol):
    """What differs from one database to the next.

    `errors` are the driver's own, which reach us where SQLAlchemy does not stand in between.
    `one_writer` says that the threads of a process had better write one after the other.
    """

    errors: tuple[type[Exception], ...]
    one_writer: bool

    def begin(self) -> None:
        """An operation begins in this thread: its time is counted from here."""
        ...

    def engine(self) -> Engine:
        """A new engine, whose connections find the schema in place; may raise the driver's errors."""
        ...

    def stale(self) -> bool:
        """Whether the database that the last engine was made for has been taken away."""
        ...

    def now(self, read: Callable[[sa.Select[Any]], Any]) -> float:
        """The database's clock; `read` runs a query that returns one value."""
        ...

    def clock(self) -> sa.ColumnElement[float]:
        """The same clock as a part of a statement."""
        ...

    def swap(
        self, connection: Connection, key: str, expected_version: int, text: str, expires_at: float | None
    ) -> int:
        """`Store.swap` in the transaction of `connection`."""
        ...

    def delete(self, connection: Connection, key: str, expected_version: int) -> bool:
        """`Store.delete` in the transaction of `connection`."""
        ...


class SqlStore:
    """Documents as rows. Safe between threads, processes, and over a fork."""

    def __init__(self, url: str, dialect: Dialect) -> None:
        self.url = url
        self.closed = False
        self._dialect = dialect
        self._engine: Engine | None = None
        self._pid = os.getpid()
        self._lock = threading.Lock()
        # Where one writer at a time is best, threads queue here and not at the database.
        self._writing = threading.Lock()

    def load(self, key: str) -> Document | None:
        """The live document under `key`, or None."""
        query = sa.select(documents).where(documents.c.key == check_key(key), alive(self._dialect.clock()))
        with self._reading() as connection:
            row = connection.execute(query).first()
        return None if row is None else _document(row)

    def swap(self, key: str, expected_version: int, value: Any, expires_at: float | None = None) -> int:
        """Write if the key still has `expected_version` (0: none); the new version, or 0."""
        check_key(key)
        text = encode(value)
        with self._changing() as connection:
            if not 0 <= expected_version <= GREATEST_VERSION:
                return 0
            return self._dialect.swap(connection, key, expected_version, text, expires_at)

    def delete(self, key: str, expected_version: int) -> bool:
        """Remove the document if it still has `expected_version`."""
        check_key(key)
        with self._changing() as connection:
            if not 0 < expected_version <= GREATEST_VERSION:
                return False
            return self._dialect.delete(connection, key, expected_version)

    def scan(self, prefix: str, after: str | None = None, limit: int = 100) -> list[tuple[str, Document]]:
        """Up to `limit` live documents whose keys start with `prefix`, by key, from beyond `after`."""
        if "\0" in check_text(prefix):
            return []
        key = documents.c.key
        query = sa.select(documents).where(key >= prefix, alive(self._dialect.clock()))
        if (end := prefix_end(prefix)) is not None:
            query = query.where(key < end)
        if after is not None:
            query = query.where(key > before_nul(check_text(after)))
        with self._reading() as connection:
            rows = connection.execute(query.order_by(key).limit(max(0, limit))).all()
        return [(row.key, _document(row)) for row in rows]

    def now(self) -> float:
        """Seconds since the epoch by the database's clock."""
        return self._dialect.now(self._read_one)

    def close(self) -> None:
        """Close the connections of this process."""
        self.closed = True
        self._drop_engine()

    def _read_one(self, query: sa.Select[Any]) -> Any:
        with self._reading() as connection:
            return connection.execute(query).scalar_one()

    @contextmanager
    def _reading(self) -> Generator[Connection, None, None]:
        with self._translating():
            engine = self._connected().execution_options(read_only=True)
            with engine.begin() as connection:
                yield connection

    @contextmanager
    def _changing(self) -> Generator[Connection, None, None]:
        with self._translating():
            self._after_fork()
            if self._dialect.one_writer:
                with self._writing, self._connected().begin() as connection:
                    yield connection
            else:
                with self._connected().begin() as connection:
                    yield connection

    @contextmanager
    def _translating(self) -> Generator[None, None, None]:
        """The driver's errors leave as StoreUnavailable."""
        self._dialect.begin()
        try:
            yield
        except (exc.SQLAlchemyError, OSError, *self._dialect.errors) as error:
            raise self._unavailable(error) from error

    def _connected(self) -> Engine:
        if self.closed:
            raise StoreUnavailable(redact(f"the store {self.url} has been closed"))
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


def _document(row: sa.Row[Any]) -> Document:
    return Document(decode(row.value, row.key), row.version, row.expires_at)
