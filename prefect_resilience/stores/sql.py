"""A store in a SQL database: connections, forks, errors and reading.

The statements are few and short, so they are written out. A `Dialect` has the differences between databases:
see sqlite.py and postgres.py.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypeVar

from prefect_resilience.stores.base import (
    ConnectedStore,
    Document,
    Swap,
    before_nul,
    check_key,
    check_text,
    decode,
    prefix_end,
)
from prefect_resilience.stores.watching import News, Watch

KEPT = 5
MOST = 10
"""The maximum number of open connections of one process; a thread that needs one more waits."""

Connection = Any
"""The driver's connection. Both drivers take `connection.execute(text, parameters)` and return a cursor."""


class ConnectionPool:
    """`connect` makes a connection, `usable` checks a kept one.

    Raises TimeoutError when all connections are in use for longer than `patience` seconds.
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
        """A connection for this thread only. It is closed when the block raises, because its state is then
        unknown."""
        if not self._places.acquire(timeout=self._patience):
            raise TimeoutError(f"all {MOST} connections were in use for {self._patience:g} s")
        try:
            connection = self._take_idle() or self._connect()
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
        if self._usable(connection):
            return connection
        connection.close()
        self._close_idle()  # the other connections have been idle even longer
        return None

    def _close_idle(self) -> None:
        with suppress(IndexError):
            while True:
                self._idle.pop().close()


T = TypeVar("T")

TABLE = "prefect_resilience_documents"
EXPIRES = f"ix_{TABLE}_expires_at"
OPEN = f"ix_{TABLE}_unclosed"
SMALL = 2**26
"""Bytes of an existing table that gets the index of open documents when a process connects: about a second.
A larger one gets it from a person (docs/howto/scale.md), and is read without it until then."""
REMOVED = ""
"""A row's value when its document was deleted; JSON is never empty."""

PURGE_AT_ONCE = 50
PURGE_PAUSE = 1.0
"""Seconds between two purges of one process, if the last one removed fewer than PURGE_AT_ONCE rows."""

MOST_ROWS = 50_000
"""Rows that one statement of a scan reads at most if many documents have ended."""
PAST_ENDED = (
    "SELECT * FROM (SELECT page.*, row_number() OVER (ORDER BY key) AS place FROM ({}) AS page) AS page"
    " WHERE value IS NOT NULL OR place = {} ORDER BY key"
)
"""Of a page, the documents that live; and its last row, after which the next page begins."""

GREATEST_VERSION = 2**63 - 2
"""The version after this one still fits into 64 bits."""


def alive(clock: str) -> str:
    """The SQL condition that a row is a document: neither deleted nor expired by `clock`."""
    expires_at = f"{TABLE}.expires_at"
    return f"({TABLE}.value <> '{REMOVED}' AND ({expires_at} IS NULL OR {expires_at} > {clock}))"


IS_OPEN = "coalesce(closed, 0) <> version"
"""A process writes `closed`, the version of a document that is not open. One with an older version does not:
what it writes is open until it is written again."""

CREATE_INDEX = f"CREATE INDEX IF NOT EXISTS {OPEN} ON {TABLE} (key) WHERE {IS_OPEN}"


def creating_table(collation: str) -> tuple[str, str]:
    """The statements that create the table as version 0.2 knows it. Keys are ordered by code point."""
    return (
        f'CREATE TABLE IF NOT EXISTS {TABLE} (key TEXT COLLATE "{collation}" NOT NULL PRIMARY KEY,'
        " version BIGINT NOT NULL, value TEXT NOT NULL, expires_at DOUBLE PRECISION)",
        # Partial: rows without an expiry need no index entry.
        f"CREATE INDEX IF NOT EXISTS {EXPIRES} ON {TABLE} (expires_at) WHERE expires_at IS NOT NULL",
    )


class Statements(NamedTuple):
    """The statements that create and change a document, with the parameters :key, :text, :expected and those
    in the values of its columns."""

    create: str
    change: str


def writing(columns: dict[str, str], clock: str, create_if: str, replace_if: str) -> Statements:
    """The statements that give a document these values. A row whose document has ended is written over."""
    changes = ", ".join(f"{name} = {value}" for name, value in columns.items())
    create = (
        f"INSERT INTO {TABLE} (key, {', '.join(columns)}) SELECT :key, {', '.join(columns.values())}"
        f" WHERE {create_if} ON CONFLICT (key) DO UPDATE SET {changes}"
        f" WHERE NOT {alive(clock)} AND {replace_if}"
    )
    change = f"UPDATE {TABLE} SET {changes} WHERE key = :key AND version = :expected AND {alive(clock)}"
    return Statements(create, change)


class Dialect:
    """The differences between databases.

    `errors` are the driver's exceptions. `one_writer`: the threads of a process write one after the other.
    `parameter` is the driver's notation of a parameter, `clock` the SQL expression for the database's clock.
    `patience` is the time to wait for a connection, in seconds. `migrated`: whether the table has the column
    that shows what is open.
    """

    errors: tuple[type[Exception], ...]
    one_writer: bool
    parameter: str
    clock: str
    patience: float
    migrated: bool = False
    _purge_at = -math.inf

    def begin(self) -> None:
        """Begin an operation in this thread; a dialect may start its deadline here."""

    def connect(self) -> Connection:
        """A new connection to a database that has the schema; may raise the driver's errors."""
        raise NotImplementedError

    def usable(self, connection: Connection) -> bool:
        """Whether a connection that was not used for a while is still open."""
        return True

    def prepare(self, pool: ConnectionPool) -> None:
        """Called before a new pool is used; may raise the driver's errors."""

    def stale(self) -> bool:
        """Whether the database of the last pool has been deleted or replaced."""
        return False

    def now(self, ask: Callable[[str], Any]) -> float:
        """The database's clock; `ask` runs a statement that returns one value."""
        return float(ask(f"SELECT {self.clock}"))

    def purge(self, connection: Connection) -> int:
        """Remove up to PURGE_AT_ONCE rows of ended documents and return their number."""
        raise NotImplementedError

    def tidy(self, connection: Connection) -> None:
        """Purge from time to time; the next swap continues if there may be more to remove."""
        now = time.monotonic()
        if now >= self._purge_at and self.purge(connection) < PURGE_AT_ONCE:
            self._purge_at = now + PURGE_PAUSE

    def swap(self, connection: Connection, asked: Swap) -> int:
        """`WatchedStore.swap`, committed. After an error the connection is closed, which rolls back."""
        raise NotImplementedError

    def delete(self, connection: Connection, key: str, expected_version: int) -> bool:
        """`Store.delete`, committed, as in `swap`."""
        raise NotImplementedError

    def watch(self, prefix: str) -> Watch:
        """`WatchedStore.watch`; may raise the driver's errors."""
        raise NotImplementedError


class SqlStore(ConnectedStore[ConnectionPool]):
    """Documents as rows. Safe between threads, processes, and across a fork."""

    def __init__(self, url: str, dialect: Dialect) -> None:
        super().__init__(url)
        self._dialect = dialect
        self.errors: tuple[type[Exception], ...] = dialect.errors
        # For a database with one writer, threads queue here and not at the database.
        self._writing = threading.Lock()
        lives = alive(dialect.clock)
        self._load = (
            f"SELECT key, version, value, expires_at FROM {TABLE} WHERE {lives} AND key = "
            + self._parameter("wanted")
        )
        # Also the keys of ended documents, so that a statement takes a bounded time however many there are.
        columns = f"SELECT key, version, CASE WHEN {lives} THEN value END AS value, expires_at FROM {TABLE}"
        self._select = f"{columns} WHERE key "
        self._select_open = f"{columns} WHERE {IS_OPEN} AND key "

    def load(self, key: str) -> Document | None:
        """The live document under `key`, or None."""
        rows = self._using(_rows, self._load, {"wanted": check_key(key)})
        return _document(rows[0]) if rows else None

    def _swap(self, asked: Swap) -> int:
        if not 0 <= asked.expected_version <= GREATEST_VERSION:
            return 0
        return self._changing(self._dialect.swap, asked)

    def _delete(self, key: str, expected_version: int) -> bool:
        if expected_version > GREATEST_VERSION:
            return False
        return self._changing(self._dialect.delete, key, expected_version)

    def _scan(
        self, prefix: str, after: str | None, limit: int, only_open: bool
    ) -> list[tuple[str, Document]]:
        if only_open:
            self._using(_nothing)  # whoever connects sees whether there is the column
        select = self._select_open if only_open and self._dialect.migrated else self._select
        if "\0" in prefix:
            return []
        beyond = None if after is None else before_nul(check_text(after))
        # One lower bound only: with two, SQLite starts at the first and reads all keys up to the other.
        goes_on = beyond is not None and beyond >= prefix
        bounds: dict[str, Any] = {"start": beyond if goes_on else prefix, "most": limit}
        end = prefix_end(prefix)
        rest = f" ORDER BY key LIMIT {self._parameter('most')}"
        if end is not None:
            bounds["before"] = end
            rest = f" AND key < {self._parameter('before')}{rest}"
        found: list[tuple[str, Document]] = []
        while bounds["most"] > 0:
            query = f"{select}{'>' if goes_on else '>='}{self._parameter('start')}{rest}"
            rows = self._using(_rows, PAST_ENDED.format(query, self._parameter("most")), bounds)
            found += [(row[0], _document(row)) for row in rows if row[2] is not None]
            if len(found) >= limit or not rows or rows[-1][4] < bounds["most"]:
                break
            # Ended documents are in the way: more at once.
            goes_on, most = True, min(MOST_ROWS, 8 * bounds["most"])
            bounds = {**bounds, "start": rows[-1][0], "most": most}
        return found[:limit]

    def now(self) -> float:
        """Seconds since the epoch by the database's clock."""
        return self._dialect.now(lambda statement: self._using(_rows, statement, {})[0][0])

    def watch(self, prefix: str) -> Watch:
        """Watch the keys that start with `prefix`, over one connection. Raises StoreUnavailable."""
        check_text(prefix)
        self._dialect.begin()
        try:
            with self._connect().connection():
                pass  # the schema exists
            return Translated(self._dialect.watch(prefix), self)
        except (OSError, *self._dialect.errors) as error:
            raise self.unavailable(error) from error

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
        """The result of `work` with a connection of its own. Driver errors become StoreUnavailable."""
        self._dialect.begin()
        try:
            with self._connect().connection() as connection:
                return work(connection, *arguments)
        except (OSError, *self._dialect.errors) as error:
            # The state of the connections is unknown, so the next operation opens new ones.
            self._close_pool()
            raise self.unavailable(error) from error

    def _open(self) -> ConnectionPool:
        if self._held is not None:
            self._held.close()
        pool = ConnectionPool(self._dialect.connect, self._dialect.usable, self._dialect.patience)
        self._dialect.prepare(pool)
        return pool

    def _is_stale(self) -> bool:
        return self._dialect.stale()

    def _close_pool(self) -> None:
        if (pool := self._let_go()) is not None:
            pool.close()

    def after_fork(self) -> None:
        self._writing = threading.Lock()
        super().after_fork()


class Translated:
    """A watch that raises StoreUnavailable for the driver's errors."""

    def __init__(self, watch: Watch, store: SqlStore) -> None:
        self._watch = watch
        self._store = store

    def wait(self, seconds: float) -> list[News]:
        """The changes since the last call, as `Watch.wait`."""
        try:
            return self._watch.wait(seconds)
        except (OSError, *self._store.errors) as error:
            raise self._store.unavailable(error) from error

    def follow(self, keys: Collection[str]) -> None:
        """Only the changes of these keys, as `Watch.follow`."""
        try:
            self._watch.follow(keys)
        except (OSError, *self._store.errors) as error:
            raise self._store.unavailable(error) from error

    def close(self) -> None:
        """Stop watching."""
        with suppress(OSError, *self._store.errors):
            self._watch.close()


def _nothing(connection: Connection) -> None:
    """Only connect."""


def _rows(connection: Connection, statement: str, parameters: dict[str, Any]) -> list[Any]:
    return connection.execute(statement, parameters).fetchall()


def _document(row: tuple[Any, ...]) -> Document:
    key, version, value, expires_at = row[:4]
    return Document(decode(value, key), version, expires_at)
