"""A store in a SQL database: its table, connections and reading. sqlite.py and postgres.py write.

The statements are few and short, so they are written out, with parameters such as `:key`.
"""

from __future__ import annotations

import math
import threading
import time
from abc import abstractmethod
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

from prefect_resilience.stores import StoreUrl
from prefect_resilience.stores.base import Document
from prefect_resilience.stores.connected import (
    ConnectedStore,
    Found,
    Page,
    Swap,
    check_key,
    decode,
    prefix_end,
)

KEPT = 5
MOST = 10
"""The maximum number of open connections of one process; a thread that needs one more waits."""

Connection = Any
"""The driver's connection. Both drivers take `connection.execute(text, parameters)` and return a cursor."""


class ConnectionPool:
    """The connections of a store.

    Raises TimeoutError when all are in use for longer than an operation may take.
    """

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._idle: list[Connection] = []
        self._places = threading.Semaphore(MOST)
        self._closed = False

    @contextmanager
    def connection(self) -> Generator[Connection]:
        """A connection for this thread only. It is closed when the block raises, because its state is then
        unknown."""
        seconds = self._store.deadline.seconds
        if not self._places.acquire(timeout=seconds):
            raise TimeoutError(f"all {MOST} connections were in use for {seconds:g} s")
        try:
            connection = self._take_idle() or self._store.connect()
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
        """Close the idle connections now, and those in use when they come back."""
        self._closed = True
        self._close_idle()

    def _take_idle(self) -> Connection | None:
        # `append` and `pop` are atomic: exactly one thread gets each connection.
        try:
            connection = self._idle.pop()
        except IndexError:
            return None
        if self._store.is_usable(connection):
            return connection
        connection.close()
        self._close_idle()  # the other connections have been idle even longer
        return None

    def _close_idle(self) -> None:
        with suppress(IndexError):
            while True:
                self._idle.pop().close()


class Deadline(threading.local):
    """The deadline of the operation in this thread. Each operation may take `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._ends = math.inf

    def begin(self) -> None:
        """Begin an operation."""
        self._ends = time.monotonic() + self.seconds

    def seconds_left(self) -> float:
        """The seconds until the deadline. Raises TimeoutError after it."""
        remaining = self._ends - time.monotonic()
        if remaining <= 0:
            raise TimeoutError(f"no answer within {self.seconds:g} s")
        return min(remaining, self.seconds)


TABLE = "prefect_resilience_documents"
EXPIRES = f"ix_{TABLE}_expires_at"
OPEN = f"ix_{TABLE}_unclosed"
REMOVED = ""
"""A row's value when its document was deleted; JSON is never empty."""

PURGE_AT_ONCE = 50
PURGE_PAUSE = 1.0
"""Seconds between two purges of one process, if the last one removed fewer than PURGE_AT_ONCE rows."""

PAST_ENDED = (
    "SELECT * FROM (SELECT page.*, row_number() OVER (ORDER BY key) AS place FROM ({}) AS page) AS page"
    " WHERE value IS NOT NULL OR place = :size ORDER BY key"
)
"""Of a page, the documents that live; and its last row, after which the next page begins."""

IS_OPEN = "coalesce(closed, 0) <> version"
"""A process writes `closed`, the version of a document that is not open. One with an older version does not:
what it writes is open until it is written again."""

ADD_COLUMN = f"ALTER TABLE {TABLE} ADD COLUMN closed BIGINT"
CREATE_INDEX = f"CREATE INDEX IF NOT EXISTS {OPEN} ON {TABLE} (key) WHERE {IS_OPEN}"


def creating_table(collation: str) -> tuple[str, ...]:
    """The statements that create the table. Keys are ordered by code point."""
    return (
        f'CREATE TABLE IF NOT EXISTS {TABLE} (key TEXT COLLATE "{collation}" NOT NULL PRIMARY KEY,'
        " version BIGINT NOT NULL, value TEXT NOT NULL, expires_at DOUBLE PRECISION, closed BIGINT)",
        # Partial: rows without an expiry need no index entry.
        f"CREATE INDEX IF NOT EXISTS {EXPIRES} ON {TABLE} (expires_at) WHERE expires_at IS NOT NULL",
        CREATE_INDEX,
    )


def alive(clock: str) -> str:
    """The SQL condition that a row is a document: neither deleted nor expired by `clock`."""
    expires_at = f"{TABLE}.expires_at"
    return f"({TABLE}.value <> '{REMOVED}' AND ({expires_at} IS NULL OR {expires_at} > {clock}))"


def assign(columns: dict[str, str]) -> str:
    """These values as the assignments of an UPDATE."""
    return ", ".join(f"{name} = {value}" for name, value in columns.items())


def upsert(columns: dict[str, str]) -> str:
    """The statement that writes a row with the key :key and these values, also over another one."""
    return (
        f"INSERT INTO {TABLE} (key, {', '.join(columns)}) VALUES (:key, {', '.join(columns.values())})"
        f" ON CONFLICT (key) DO UPDATE SET {assign(columns)}"
    )


class SqlStore(ConnectedStore[ConnectionPool]):
    """Documents as rows. Safe between threads, processes, and across a fork.

    What databases differ in: `clock`, the SQL expression for the time; `creation`, the statements that create
    the schema; `schema`, the query whether it exists and has the column `closed`; and the abstract methods.
    """

    clock: str
    creation: tuple[str, ...]
    schema: str
    _writing: AbstractContextManager[Any] = nullcontext()
    _purge_at: float = -math.inf

    def __init__(self, parsed: StoreUrl) -> None:
        super().__init__(parsed.canonical)
        self._path = parsed.path
        self.deadline: Deadline = Deadline(parsed.seconds)
        lives = alive(self.clock)
        self._find = f"SELECT version, value, expires_at FROM {TABLE} WHERE key = :key AND {lives}"
        # Also the keys of ended documents, so that a statement takes a bounded time however many there are.
        self._select = (
            f"SELECT key, version, CASE WHEN {lives} THEN value END AS value, expires_at FROM {TABLE}"
        )

    def load(self, key: str) -> Document | None:
        """The live document under `key`, or None."""
        return self.using(self.find, check_key(key))

    def find(self, connection: Connection, key: str) -> Document | None:
        """The live document under `key`, read over this connection."""
        row = self.execute(connection, self._find, key=key).fetchone()
        return None if row is None else Document(decode(row[1], key), row[0], row[2])

    def begin(self) -> None:
        """Begin an operation: its deadline counts from now."""
        self.deadline.begin()

    def execute(self, connection: Connection, statement: str, **values: Any) -> Any:
        """Run a statement with these parameters; the cursor."""
        return connection.execute(statement, values)

    def connect(self) -> Connection:
        """A new connection to a database that has the schema; may raise the driver's errors."""
        connection = self.dial()
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _swap(self, asked: Swap) -> int:
        with self._writing:
            return self.using(self._write, asked)

    def _delete(self, key: str, expected_version: int) -> bool:
        with self._writing:
            return self.using(self._remove, key, expected_version)

    def _read(self, page: Page) -> tuple[Found, str | None]:
        rows = self.using(self._rows, page)
        entries = [
            (key, Document(decode(value, key), version, expires_at))
            for key, version, value, expires_at, _ in rows
            if value is not None
        ]
        return entries, rows[-1][0] if rows and rows[-1][4] == page.size else None

    def _rows(self, connection: Connection, page: Page) -> list[Any]:
        end = prefix_end(page.prefix)
        # One lower bound only: with two, SQLite starts at the first and reads all keys up to the other.
        conditions = [f"key {'>' if page.beyond else '>='} :start"]
        conditions += [] if end is None else ["key < :end"]
        conditions += [IS_OPEN] if page.only_open else []
        query = f"{self._select} WHERE {' AND '.join(conditions)} ORDER BY key LIMIT :size"
        bounds = {"start": page.start, "end": end, "size": page.size}
        return self.execute(connection, PAST_ENDED.format(query), **bounds).fetchall()

    @abstractmethod
    def dial(self) -> Connection:
        """A new connection; may raise the driver's errors."""

    def _prepare(self, connection: Connection) -> None:
        """Prepare a new connection, and create the schema if it is missing; safe against other processes.

        A table of version 0.2 gets the column of open documents. Its index takes long in a large table, so it
        comes from a person (docs/store_scale.md).
        """
        if self._lacks(connection):
            with self._alone(connection):
                for statement in self._lacks(connection):
                    connection.execute(statement)

    def _lacks(self, connection: Connection) -> tuple[str, ...]:
        """The statements that complete the schema."""
        exists, has_column = connection.execute(self.schema).fetchone()
        if not exists:
            return self.creation
        return () if has_column else (ADD_COLUMN,)

    @abstractmethod
    def _alone(self, connection: Connection) -> AbstractContextManager[None]:
        """A transaction in which no other process writes, or changes the schema."""

    @abstractmethod
    def _write(self, connection: Connection, asked: Swap) -> int:
        """`Store.swap`, committed. After an error the connection is closed, which rolls back."""

    @abstractmethod
    def _remove(self, connection: Connection, key: str, expected_version: int) -> bool:
        """`Store.delete`, committed, as in `_write`."""

    def _tidy(self, connection: Connection) -> None:
        """Purge from time to time; the next swap continues if there may be more to remove."""
        now = time.monotonic()
        if now >= self._purge_at and self._purge(connection) < PURGE_AT_ONCE:
            self._purge_at = now + PURGE_PAUSE

    @abstractmethod
    def _purge(self, connection: Connection) -> int:
        """Remove up to PURGE_AT_ONCE rows of ended documents and return their number."""

    def is_usable(self, connection: Connection) -> bool:
        """Whether a connection that was not used for a while is still open."""
        return True

    def open_connections(self) -> ConnectionPool:
        if self._held is not None:
            self._held.close()
        return ConnectionPool(self)

    def _borrow(self, held: ConnectionPool) -> AbstractContextManager[Connection]:
        return held.connection()

    def _let_go(self) -> ConnectionPool | None:
        if (pool := super()._let_go()) is not None:
            pool.close()
        return pool
