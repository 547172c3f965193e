"""A store in a SQL database: connections, forks, errors and reading.

The statements are few and short, so they are written out. What differs from one database to the next is a
`Dialect`: see sqlite.py and postgres.py.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

from prefect_resilience.stores.base import (
    ConnectedStore,
    Document,
    before_nul,
    check_key,
    check_text,
    decode,
    encode,
    prefix_end,
)

KEPT = 5
MOST = 10
"""So many connections of one process at a time; who needs one more waits."""

Connection = Any
"""The driver's own. Both drivers of ours take `connection.execute(text, parameters)` and return a cursor."""


class ConnectionPool:
    """`connect` makes a connection, `usable` says whether one that was kept is still good.

    `patience` is in seconds; TimeoutError when all connections are in use for longer.
    """

    def __init__(
        self, connect: Callable[[], Connection], usable: Callable[[Connection], bool], patience: float
    ) -> None:
        self._connect = connect
        self._usable = usable
        self._patience = patience
        self._idle: list[Connection] = []
        self._places = threading.Semaphore(MOST)
        self._closed = False

    @contextmanager
    def connection(self) -> Generator[Connection]:
        """A connection that nobody else uses meanwhile. It is closed when the block raises: nobody knows how
        far it got."""
        if not self._places.acquire(timeout=self._patience):
            raise TimeoutError(f"its {MOST} connections were in use for {self._patience:g} s")
        try:
            connection = self._kept() or self._connect()
            try:
                yield connection
            except BaseException:
                connection.close()
                raise
            if self._closed or len(self._idle) >= KEPT:
                connection.close()
            else:
                self._idle.append(connection)
        finally:
            self._places.release()

    def close(self) -> None:
        """Close what is kept now, and what is in use when it comes back."""
        self._closed = True
        self._close_idle()

    def _kept(self) -> Connection | None:
        # Appending and popping are atomic: each connection has one taker.
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if self._usable(connection):
                return connection
            connection.close()
            self._close_idle()  # the others were used earlier, and are no better
        return None

    def _close_idle(self) -> None:
        while self._idle:
            try:
                self._idle.pop().close()
            except IndexError:
                return


T = TypeVar("T")

TABLE = "prefect_resilience_documents"
EXPIRES = f"ix_{TABLE}_expires_at"
REMOVED = ""
"""A row's value when its document was deleted; JSON is never empty."""

PURGE_AT_ONCE = 50
PURGE_PAUSE = 1.0
"""Seconds between two attempts of one process to purge when there is little to do."""

GREATEST_VERSION = 2**63 - 2
"""A version has a next one that fits into 64 bits, too."""


def alive(clock: str) -> str:
    """Whether a row is a document by this clock, rather than one that expired or was deleted."""
    expires_at = f"{TABLE}.expires_at"
    return f"({TABLE}.value <> '{REMOVED}' AND ({expires_at} IS NULL OR {expires_at} > {clock}))"


class Dialect:
    """What differs from one database to the next.

    `errors` are the driver's own. `one_writer` says that the threads of a process had better write one after
    the other. `parameter` is how the driver has parameters written, `clock` the database's clock in a
    statement. `patience` is how long to wait for a connection, in seconds.
    """

    errors: tuple[type[Exception], ...]
    one_writer: bool
    parameter: str
    clock: str
    patience: float
    _purge_at = -math.inf

    def begin(self) -> None:
        """An operation begins in this thread: its time is counted from here."""

    def connect(self) -> Connection:
        """A new connection to a database that has the schema; may raise the driver's errors."""
        raise NotImplementedError

    def usable(self, connection: Connection) -> bool:
        """Whether a connection that was not used for a while is still open."""
        return True

    def opened(self, pool: ConnectionPool) -> None:
        """A pool is about to be used; may raise the driver's errors."""

    def stale(self) -> bool:
        """Whether the database that the last pool was opened for has been deleted or replaced."""
        return False

    def now(self, ask: Callable[[str], Any]) -> float:
        """The database's clock; `ask` runs a statement that returns one value."""
        return float(ask(f"SELECT {self.clock}"))

    def purge(self, connection: Connection) -> int:
        """Remove up to PURGE_AT_ONCE rows that are no documents any more; how many there were."""
        raise NotImplementedError

    def tidy(self, connection: Connection) -> None:
        """Purge now and then; the next swap goes on if there may be more to remove."""
        now = time.monotonic()
        if now >= self._purge_at and self.purge(connection) < PURGE_AT_ONCE:
            self._purge_at = now + PURGE_PAUSE

    def swap(
        self, connection: Connection, key: str, expected_version: int, text: str, expires_at: float | None
    ) -> int:
        """`Store.swap`, committed. After an error the connection is closed, which rolls back the rest."""
        raise NotImplementedError

    def delete(self, connection: Connection, key: str, expected_version: int) -> bool:
        """`Store.delete`, in the same way."""
        raise NotImplementedError


class SqlStore(ConnectedStore[ConnectionPool]):
    """Documents as rows. Safe between threads, processes, and over a fork."""

    def __init__(self, url: str, dialect: Dialect) -> None:
        super().__init__(url)
        self._dialect = dialect
        # Where one writer at a time is best, threads queue here and not at the database.
        self._writing = threading.Lock()
        self._select = (
            f"SELECT key, version, value, expires_at FROM {TABLE} WHERE {alive(dialect.clock)} AND key "
        )
        self._load = self._select + "= " + self._parameter("wanted")

    def load(self, key: str) -> Document | None:
        """The live document under `key`, or None."""
        rows = self._using(_rows, self._load, {"wanted": check_key(key)})
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
        query = self._select + (">" if goes_on else ">=") + self._parameter("start")
        end = prefix_end(prefix)
        if end is not None:
            bounds["before"] = end
            query += " AND key < " + self._parameter("before")
        rows = self._using(_rows, f"{query} ORDER BY key LIMIT {self._parameter('most')}", bounds)
        return [(row[0], _document(row)) for row in rows]

    def now(self) -> float:
        """Seconds since the epoch by the database's clock."""
        return self._dialect.now(lambda statement: self._using(_rows, statement, {})[0][0])

    def close(self) -> None:
        """Close the connections of this process."""
        self.closed = True
        self._close_pool()

    def _parameter(self, name: str) -> str:
        return self._dialect.parameter.format(name)

    def _changing(self, work: Callable[..., T], *arguments: Any) -> T:
        if not self._dialect.one_writer:
            return self._using(work, *arguments)
        with self._writing:
            return self._using(work, *arguments)

    def _using(self, work: Callable[..., T], *arguments: Any) -> T:
        """What `work` returns of a connection that nobody else uses meanwhile. The driver's errors leave as
        StoreUnavailable."""
        self._dialect.begin()
        try:
            with self._connected().connection() as connection:
                return work(connection, *arguments)
        except (OSError, *self._dialect.errors) as error:
            # Whatever the connections have been through, the next operation begins with new ones.
            self._close_pool()
            raise self._unavailable(error) from error

    def _open(self) -> ConnectionPool:
        if self._held is not None:
            self._held.close()
        pool = ConnectionPool(self._dialect.connect, self._dialect.usable, self._dialect.patience)
        self._dialect.opened(pool)
        return pool

    def _is_stale(self) -> bool:
        return self._dialect.stale()

    def _close_pool(self) -> None:
        if (pool := self._let_go()) is not None:
            pool.close()

    def after_fork(self) -> None:
        self._writing = threading.Lock()
        super().after_fork()


def _rows(connection: Connection, statement: str, parameters: dict[str, Any]) -> list[Any]:
    return connection.execute(statement, parameters).fetchall()


def _document(row: tuple[str, int, str, float | None]) -> Document:
    key, version, value, expires_at = row
    return Document(decode(value, key), version, expires_at)
