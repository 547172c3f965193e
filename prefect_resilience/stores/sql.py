"""A store in a SQL database: connections, forks, errors and reading.

SQLAlchemy writes the statements, each once, and keeps the connections; the driver itself runs them, since
they are few and short, and building one takes SQLAlchemy longer than the database takes to answer. What
differs from one database to the next is a `Dialect`: see sqlite.py and postgres.py.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import Engine

from prefect_resilience.errors.exceptions import StoreUnavailable
from prefect_resilience.errors.redact import redact
from prefect_resilience.stores.base import Document
from prefect_resilience.stores.codec import before_nul, check_key, check_text, decode, encode, prefix_end
from prefect_resilience.stores.tables import alive, documents

T = TypeVar("T")

GREATEST_VERSION = 2**63 - 2
"""A version has a next one that fits into 64 bits, too."""

Connection = Any
"""The driver's own. Both drivers of ours take `connection.execute(text, parameters)` and return a cursor."""


class Statement:
    """A statement as the driver takes it. What it was given no value for is a parameter of `run`."""

    __slots__ = ("_fixed", "text")

    def __init__(self, statement: sa.ClauseElement, dialect: sa.Dialect) -> None:
        compiled = statement.compile(dialect=dialect)
        self.text: str = compiled.string
        self._fixed = {name: value for name, value in (compiled.params or {}).items() if value is not None}

    def run(self, connection: Connection, **parameters: Any) -> Any:
        """The driver's cursor, with what the statement returns."""
        return connection.execute(self.text, {**self._fixed, **parameters})

    def rows(self, connection: Connection, **parameters: Any) -> list[Any]:
        """All that it returns."""
        return self.run(connection, **parameters).fetchall()


class Dialect(Protocol):
    """What differs from one database to the next.

    `errors` are the driver's own. `one_writer` says that the threads of a process had better write one after
    the other. `writes` is how SQLAlchemy writes statements for the driver, with parameters by name; `clock`
    is the database's clock in them.
    """

    errors: tuple[type[Exception], ...]
    one_writer: bool
    writes: sa.Dialect
    clock: sa.ColumnElement[Any]

    def begin(self) -> None:
        """An operation begins in this thread: its time is counted from here."""
        ...

    def engine(self) -> Engine:
        """A new engine, whose connections find the schema in place; may raise the driver's errors."""
        ...

    def stale(self) -> bool:
        """Whether the database that the last engine was made for has been taken away."""
        ...

    def now(self, ask: Callable[[Statement], Any]) -> float:
        """The database's clock; `ask` runs a statement that returns one value."""
        ...

    def swap(
        self, connection: Connection, key: str, expected_version: int, text: str, expires_at: float | None
    ) -> int:
        """`Store.swap`, committed. After an error the connection is closed, which takes back what was not."""
        ...

    def delete(self, connection: Connection, key: str, expected_version: int) -> bool:
        """`Store.delete`, in the same way."""
        ...


class SqlStore:
    """Documents as rows. Safe between threads, processes, and over a fork."""

    def __init__(self, url: str, dialect: Dialect) -> None:
        self.url = url
        self.closed: bool = False
        self._dialect = dialect
        self._engine: Engine | None = None
        self._pid = os.getpid()
        self._lock = threading.Lock()
        # Where one writer at a time is best, threads queue here and not at the database.
        self._writing = threading.Lock()
        one = sa.select(documents).where(documents.c.key == sa.bindparam("wanted"), alive(dialect.clock))
        self._load = Statement(one, dialect.writes)
        self._scans: dict[tuple[bool, bool], Statement] = {}

    def load(self, key: str) -> Document | None:
        """The live document under `key`, or None."""
        rows = self._using(self._load.rows, wanted=check_key(key))
        return _document(rows[0]) if rows else None

    def swap(self, key: str, expected_version: int, value: Any, expires_at: float | None = None) -> int:
        """Write if the key still has `expected_version` (0: none); the new version, or 0."""
        check_key(key)
        text = encode(value)
        if not 0 <= expected_version <= GREATEST_VERSION:
            return 0
        return self._changing(self._dialect.swap, key, expected_version, text, expires_at)

    def delete(self, key: str, expected_version: int) -> bool:
        """Remove the document if it still has `expected_version`."""
        check_key(key)
        if not 0 < expected_version <= GREATEST_VERSION:
            return False
        return self._changing(self._dialect.delete, key, expected_version)

    def scan(self, prefix: str, after: str | None = None, limit: int = 100) -> list[tuple[str, Document]]:
        """Up to `limit` live documents whose keys start with `prefix`, by key, from beyond `after`."""
        if "\0" in check_text(prefix):
            return []
        beyond = None if after is None else before_nul(check_text(after))
        # One lower bound: of two, SQLite begins at the first, and walks past all keys up to the other.
        goes_on = beyond is not None and beyond >= prefix
        bounds: dict[str, Any] = {"start": beyond if goes_on else prefix, "most": max(0, limit)}
        end = prefix_end(prefix)
        if end is not None:
            bounds["before"] = end
        rows = self._using(self._scan(end is not None, goes_on).rows, **bounds)
        return [(row[0], _document(row)) for row in rows]

    def now(self) -> float:
        """Seconds since the epoch by the database's clock."""
        return self._dialect.now(self._ask)

    def close(self) -> None:
        """Close the connections of this process."""
        self.closed = True
        self._drop_engine()

    def _scan(self, ends: bool, goes_on: bool) -> Statement:
        if (ends, goes_on) not in self._scans:
            key = documents.c.key
            start: sa.BindParameter[str] = sa.bindparam("start")
            query = sa.select(documents).where(
                key > start if goes_on else key >= start, alive(self._dialect.clock)
            )
            if ends:
                query = query.where(key < sa.bindparam("before"))
            query = query.order_by(key).limit(sa.bindparam("most", type_=sa.BigInteger))
            self._scans[ends, goes_on] = Statement(query, self._dialect.writes)
        return self._scans[ends, goes_on]

    def _ask(self, statement: Statement) -> Any:
        return self._using(statement.rows)[0][0]

    def _changing(self, work: Callable[..., T], *arguments: Any) -> T:
        self._after_fork()
        if not self._dialect.one_writer:
            return self._using(work, *arguments)
        with self._writing:
            return self._using(work, *arguments)

    def _using(self, work: Callable[..., T], *arguments: Any, **parameters: Any) -> T:
        """What `work` returns of a connection that nobody else uses meanwhile. The driver's errors leave as
        StoreUnavailable."""
        self._dialect.begin()
        try:
            pooled = self._connected().raw_connection()
            try:
                return work(pooled.driver_connection, *arguments, **parameters)
            except BaseException:
                # Nobody knows how far it got.
                pooled.invalidate()
                raise
            finally:
                pooled.close()
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


def _document(row: tuple[str, int, str, float | None]) -> Document:
    key, version, value, expires_at = row
    return Document(decode(value, key), version, expires_at)
