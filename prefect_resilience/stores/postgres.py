"""PostgreSQL under `SqlStore`: one database, shared by a fleet, through psycopg 3.

Each change is one statement that commits by itself and uses the server's clock. Versions come from a
sequence: they always grow, even if the clock is set back. The row of a deleted or expired document stays for
GRACE seconds; a deletion empties it. A delayed statement therefore meets that row, and never creates the
document again with an older version.

Every operation ends within `?timeout=` seconds (3), or 2 s more if it has to connect first; a scan gets as
much time for each 50,000 ended documents that it passes. Durability depends on the server: a swap survives a
server crash unless `synchronous_commit` is off.
"""

from __future__ import annotations

import math
import re
import select
import threading
import time
from collections.abc import Generator
from contextlib import suppress
from functools import cached_property
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.stores.base import Swap
from prefect_resilience.stores.postgres_news import PUBLISH, PostgresWatch
from prefect_resilience.stores.sql import (
    CREATE_INDEX,
    OPEN,
    PURGE_AT_ONCE,
    REMOVED,
    SMALL,
    TABLE,
    Connection,
    Dialect,
    SqlStore,
    Statements,
    alive,
    creating_table,
    writing,
)
from prefect_resilience.stores.urls import FORMS, StoreUrl


class TooLate(psycopg.OperationalError):
    """The operation's deadline has passed."""


class Deadline(threading.local):
    """The deadline of the operation in this thread. Each operation may take `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._ends = math.inf

    def begin(self) -> None:
        """Begin an operation."""
        self._ends = time.monotonic() + self.seconds

    def left(self) -> float:
        """The seconds until the deadline. Raises TooLate after it."""
        left = self._ends - time.monotonic()
        if left <= 0:
            raise TooLate(f"no answer within {self.seconds:g} s")
        return min(left, self.seconds)


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that closes itself when an answer is late.

    The server's own timeouts do not help when the server or the network hangs.
    """

    deadline: Deadline | None = None
    used_at: float = -math.inf
    """The time of the last use, by `time.monotonic()`."""

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        """As psycopg's `wait`, until the deadline. A late answer is not read."""
        if self.deadline is None:
            return super().wait(gen, *args, **kwargs)
        try:
            return super().wait(_until(self.deadline, gen), *args, **kwargs)
        except TooLate:
            self.close()
            raise

    @cached_property
    def _watch(self) -> select.poll | None:
        if not hasattr(select, "poll"):
            return None
        watch = select.poll()
        watch.register(self.pgconn.socket, select.POLLIN)
        return watch

    def silent(self) -> bool:
        """Whether there is nothing to read. A message without a query usually means that the server hung up.

        Also False on systems without `select.poll`.
        """
        return self._watch is not None and not self.closed and not self._watch.poll(0)


def _until(deadline: Deadline, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Run `gen` with a deadline. psycopg sends 0 several times a second while it waits."""
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if not ready:
                deadline.left()
            wanted = gen.send(ready)
    except StopIteration as done:
        return done.value


def connect(conninfo: str, deadline: Deadline) -> BoundedConnection:
    """A connection in autocommit, made within the deadline (at least 2 s, the minimum of libpq)."""
    patience = max(2, math.ceil(deadline.left()))
    connection = BoundedConnection.connect(
        conninfo,
        autocommit=True,
        # Behind a pooler, the next query may reach another server without these prepared statements.
        prepare_threshold=None,
        connect_timeout=patience,
        client_encoding="utf8",
    )
    connection.deadline = deadline
    connection.used_at = time.monotonic()
    return connection


VERSIONS = "prefect_resilience_versions"
LOCK = 0x70726573
"""The number of the advisory lock that a process holds while it creates or changes the schema."""

# An index that was not finished is not valid.
_SCHEMA = (
    "SELECT to_regclass(%(table)s) IS NOT NULL AND to_regclass(%(versions)s) IS NOT NULL,"
    " EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass(%(table)s) AND attname = 'closed'),"
    " EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass(%(index)s) AND indisvalid)"
    f" OR pg_relation_size(to_regclass(%(table)s)) > {SMALL}"
)
_ADD_COLUMN = f"ALTER TABLE {TABLE} ADD COLUMN IF NOT EXISTS closed BIGINT"
# Starts at the current time, so that versions also grow when an empty database replaces this one.
_CREATE_VERSIONS = (
    f"DO $$ BEGIN EXECUTE 'CREATE SEQUENCE IF NOT EXISTS {VERSIONS} AS BIGINT START WITH '"
    " || CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS BIGINT); END $$"
)


def ensure_schema(connection: psycopg.Connection[Any]) -> bool:
    """Create the schema if it is missing; safe against other processes. May raise the driver's errors.

    Returns whether the table has the column of open documents. An older table gets it, and its index if it
    is small, unless another process is at it, or this user may not.
    """
    exists, migrated, indexed = _schema(connection)
    if exists and migrated and indexed:
        return True
    if not exists:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])
            if not _schema(connection)[0]:
                for statement in (_CREATE_VERSIONS, *creating_table("C"), _ADD_COLUMN, CREATE_INDEX):
                    connection.execute(statement.encode())
    else:
        with suppress(psycopg.Error), connection.transaction():
            # What waits for the table's lock holds up those that come after it.
            connection.execute("SET LOCAL lock_timeout = '200ms'")
            row = connection.execute("SELECT pg_try_advisory_xact_lock(%s)", [LOCK]).fetchone()
            if row is not None and row[0]:
                if not migrated:
                    connection.execute(_ADD_COLUMN.encode())
                if not indexed:
                    connection.execute(CREATE_INDEX.encode())
    return _schema(connection)[1]


def _schema(connection: psycopg.Connection[Any]) -> tuple[bool, bool, bool]:
    """Whether the table, the column of open documents and its index exist; the index of a large table counts
    as there."""
    names = {"table": TABLE, "versions": VERSIONS, "index": OPEN}
    row = connection.execute(_SCHEMA.encode(), names).fetchone()
    assert row is not None
    return row[0], row[1], row[2]


ANSWER_SECONDS = 3.0
PREPARE_AFTER = 5
"""The number of runs of a statement on a connection before psycopg prepares it at the server."""

FRESH_SECONDS = 0.5
"""Seconds after its last use in which a connection is not tested, unless the server has sent something."""


GRACE = 600
"""Seconds between the end of a document and the removal of its row: longer than any statement runs."""

_CLOCK = "CAST(EXTRACT(epoch FROM clock_timestamp()) AS DOUBLE PRECISION)"
_UNCHANGING = "CAST(EXTRACT(epoch FROM now()) AS DOUBLE PRECISION)"
_NEXT = f"nextval('{VERSIONS}')"
# Never earlier than now, so that GRACE begins when the row is written. The version is drawn while the row is
# locked; `closed` comes after it.
_COLUMNS = {
    "version": _NEXT,
    "value": ":text",
    "expires_at": "CASE WHEN CAST(:expiry AS DOUBLE PRECISION) IS NOT NULL"
    f" THEN greatest(CAST(:expiry AS DOUBLE PRECISION), {_CLOCK}) END",
    "closed": f"CASE WHEN NOT :open THEN currval('{VERSIONS}') END",
}
_OLD_COLUMNS = {name: value for name, value in _COLUMNS.items() if name != "closed"}


def _statements(columns: dict[str, str]) -> Statements:
    """The statements with psycopg's parameters, which return the new version."""
    statements = writing(columns, _CLOCK, "TRUE", "TRUE")
    return Statements(*(f"{_parameters(text)} RETURNING {TABLE}.version" for text in statements))


def _parameters(text: str) -> str:
    return re.sub(r"(?<!:):(\w+)", r"%(\1)s", text)


_WRITE, _WRITE_OLD = map(_statements, (_COLUMNS, _OLD_COLUMNS))
_REMOVE = _parameters(
    f"UPDATE {TABLE} SET version = {_NEXT}, value = '{REMOVED}', expires_at = {_CLOCK}"
    f" WHERE key = :key AND version = :expected AND {alive(_CLOCK)} RETURNING version"
)
# Skips locked rows instead of waiting for them.
_PURGE = (
    f"DELETE FROM {TABLE} WHERE key IN (SELECT key FROM {TABLE} WHERE expires_at < {_UNCHANGING} - {GRACE}"
    f" LIMIT {PURGE_AT_ONCE} FOR UPDATE SKIP LOCKED)"
)


def open_postgres(parsed: StoreUrl) -> SqlStore:
    """The store in the database that the URL names; all options except `timeout` are passed to libpq."""
    try:
        conninfo_to_dict(parsed.path)
    except psycopg.Error as error:
        wrong = redact(f"the URL {parsed.canonical} is invalid: {str(error).strip()}")
        raise ConfigurationError(f"{wrong}; {FORMS}") from None
    seconds = float(parsed.options.get("timeout", ANSWER_SECONDS))
    return SqlStore(parsed.canonical, PostgresDialect(parsed.path, seconds))


class PostgresDialect(Dialect):
    """PostgreSQL's statements and connections. Each operation takes at most `seconds`."""

    errors: tuple[type[Exception], ...] = (psycopg.Error,)
    one_writer = False
    parameter = "%({})s"
    clock = _CLOCK

    def __init__(self, conninfo: str, seconds: float) -> None:
        self.patience = seconds
        self._conninfo = conninfo
        self._deadline = Deadline(seconds)

    def begin(self) -> None:
        """Begin an operation: its deadline counts from now."""
        self._deadline.begin()

    def usable(self, connection: Connection) -> bool:
        """Whether the connection works. Tested by a query (a round trip) unless it was used just before."""
        now = time.monotonic()
        try:
            if now > connection.used_at + FRESH_SECONDS or not connection.silent():
                connection.execute("SELECT 1")
        except psycopg.Error:
            return False
        connection.used_at = now
        return True

    def swap(self, connection: Connection, asked: Swap) -> int:
        """One statement: an insert (also over a removed document), or an update of one version."""
        if asked.expected_version == 0:
            self.tidy(connection)
        statements = _WRITE if self.migrated else _WRITE_OLD
        statement = statements.change if asked.expected_version else statements.create
        values = {"key": asked.key, "text": asked.text, "expiry": asked.expires_at, "open": asked.open}
        values["expected"] = asked.expected_version
        row = connection.execute(statement + PUBLISH if asked.publish else statement, values).fetchone()
        return 0 if row is None else row[0]

    def delete(self, connection: Connection, key: str, expected_version: int) -> bool:
        """One statement, which empties the row and gives it a later version."""
        self.tidy(connection)  # a purge of letters removes millions of documents and creates none
        written = {"key": key, "expected": expected_version}
        return connection.execute(_REMOVE, written).fetchone() is not None

    def purge(self, connection: Connection) -> int:
        """Remove rows of documents that were deleted or expired more than GRACE seconds ago."""
        return connection.execute(_PURGE).rowcount

    def watch(self, prefix: str) -> PostgresWatch:
        """LISTEN on a connection of its own; fails behind a pooler, which would swallow the messages."""
        return PostgresWatch(self._conninfo, prefix, self._deadline.left())

    def connect(self) -> BoundedConnection:
        """A connection in autocommit, with timeouts at the server."""
        connection = connect(self._conninfo, self._deadline)
        try:
            milliseconds = str(max(1, int(self._deadline.seconds * 1000)))
            # statement_timeout stops abandoned statements; READ COMMITTED suffices for single statements.
            found = connection.execute(
                "SELECT pg_backend_pid(), set_config('statement_timeout', %s, false),"
                " set_config('lock_timeout', %s, false),"
                " set_config('default_transaction_isolation', 'read committed', false)",
                [milliseconds, milliseconds],
            ).fetchone()
            if found is not None and found[0] == connection.info.backend_pid:
                # There is no pooler in between, so the server keeps prepared statements of this connection.
                connection.prepare_threshold = PREPARE_AFTER
            self.migrated: bool = ensure_schema(connection)
        except BaseException:
            connection.close()
            raise
        return connection
