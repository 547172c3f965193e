"""A store in a PostgreSQL database, shared by a fleet, through psycopg 3.

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
import time
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import psycopg
from psycopg.conninfo import conninfo_to_dict

from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.stores import FORMS, StoreUrl
from prefect_resilience.stores.base import News
from prefect_resilience.stores.connected import ConnectedWatch, Swap, news_of
from prefect_resilience.stores.sql import (
    PURGE_AT_ONCE,
    REMOVED,
    TABLE,
    Connection,
    Deadline,
    SqlStore,
    alive,
    assign,
    creating_table,
    upsert,
)


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that closes itself when an answer is late.

    The server's own timeouts do not help when the server or the network hangs.
    """

    deadline: Deadline | None = None
    used_at: float = -math.inf
    """The time of the last use, by `time.monotonic()`."""

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        """As psycopg's `wait`, until the deadline. A late answer is not read."""
        until = gen if self.deadline is None else _until(self.deadline, gen)
        try:
            return super().wait(until, *args, **kwargs)
        except TimeoutError:
            self.close()
            raise


def _until(deadline: Deadline, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Run `gen` with a deadline. psycopg sends 0 several times a second while it waits."""
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if not ready:
                deadline.seconds_left()
            wanted = gen.send(ready)
    except StopIteration as done:
        return done.value


KEEPALIVE = {"keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 2}
"""In seconds, and a number of probes: a dead connection is found within 10 s."""


VERSIONS = "prefect_resilience_versions"
LOCK = 0x70726573
"""The number of the advisory lock that a process holds while it creates or changes the schema."""

PREPARE_AFTER = 5
"""The number of runs of a statement on a connection before psycopg prepares it at the server."""

FRESH_SECONDS = 0.5
"""Seconds after its last use in which a connection is not tested."""

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
    "expires_at": "CASE WHEN CAST(:expires_at AS DOUBLE PRECISION) IS NOT NULL"
    f" THEN greatest(CAST(:expires_at AS DOUBLE PRECISION), {_CLOCK}) END",
    "closed": f"CASE WHEN NOT :open THEN currval('{VERSIONS}') END",
}
_EXPECTED = f"WHERE key = :key AND version = :expected_version AND {alive(_CLOCK)} RETURNING {TABLE}.version"
_CREATE = f"{upsert(_COLUMNS)} WHERE NOT {alive(_CLOCK)} RETURNING {TABLE}.version"
_CHANGE = f"UPDATE {TABLE} SET {assign(_COLUMNS)} {_EXPECTED}"
_REMOVED = {"version": _NEXT, "value": f"'{REMOVED}'", "expires_at": _CLOCK}
_REMOVE = f"UPDATE {TABLE} SET {assign(_REMOVED)} {_EXPECTED}"
# Skips locked rows instead of waiting for them.
_PURGE = (
    f"DELETE FROM {TABLE} WHERE key IN (SELECT key FROM {TABLE} WHERE expires_at < {_UNCHANGING} - {GRACE}"
    f" LIMIT {PURGE_AT_ONCE} FOR UPDATE SKIP LOCKED)"
)


# -- news of changes: NOTIFY in the statement of the swap, LISTEN on one connection

CHANNEL = "prefect_resilience_news"

LONGEST_MESSAGE = 7_900
"""Bytes of a message; PostgreSQL's limit is 8,000. A longer message has only the key."""

_KEY = f"concat_ws(' ', {TABLE}.tableoid, char_length({TABLE}.key), {TABLE}.key)"
# In the same statement, so that the message is sent if and only if the swap is committed.
PUBLISH = (
    f", pg_notify('{CHANNEL}', CASE"
    f" WHEN octet_length({TABLE}.key) + octet_length({TABLE}.value) < {LONGEST_MESSAGE - 100} THEN"
    f" concat_ws(' ', {_KEY}, {TABLE}.version, coalesce({TABLE}.expires_at::TEXT, '-'), {TABLE}.value)"
    f" ELSE {_KEY} END)"
)


@cache
def _rename_parameters(statement: str) -> str:
    """A statement with psycopg's notation of parameters."""
    return re.sub(r"(?<!:):(\w+)", r"%(\1)s", statement)


class PostgresStore(SqlStore):
    """PostgreSQL's statements and connections. libpq gets the URL's options."""

    errors: tuple[type[Exception], ...] = (psycopg.Error,)
    clock: str = _CLOCK
    schema: str = (
        f"SELECT to_regclass('{TABLE}') IS NOT NULL AND to_regclass('{VERSIONS}') IS NOT NULL, EXISTS"
        f" (SELECT FROM pg_attribute WHERE attrelid = to_regclass('{TABLE}') AND attname = 'closed')"
    )
    creation: tuple[str, ...] = (
        # Starts at the current time, so that versions also grow when an empty database replaces this one.
        f"DO $$ BEGIN EXECUTE 'CREATE SEQUENCE IF NOT EXISTS {VERSIONS} AS BIGINT START WITH '"
        " || CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS BIGINT); END $$",
        *creating_table("C"),
    )

    def __init__(self, parsed: StoreUrl) -> None:
        try:
            conninfo_to_dict(parsed.path)
        except psycopg.Error as error:
            wrong = redact(f"the URL {parsed.canonical} is invalid: {str(error).strip()}")
            raise ConfigurationError(f"{wrong}; {FORMS}") from None
        super().__init__(parsed)

    def now(self) -> float:
        """Seconds since the epoch by the server's clock."""
        return self.using(lambda connection: self.execute(connection, f"SELECT {_CLOCK}").fetchone()[0])

    def watch(self, prefix: str) -> PostgresWatch:
        """LISTEN on a connection of its own. Raises StoreUnavailable, also behind a pooler."""
        return PostgresWatch(self, prefix)

    def execute(self, connection: Connection, statement: str, **values: Any) -> Any:
        """Run a statement with these parameters; the cursor."""
        return connection.execute(_rename_parameters(statement), values)

    def _write(self, connection: Connection, asked: Swap) -> int:
        """One statement: an insert (also over a removed document), or an update of one version."""
        is_new = asked.expected_version == 0
        if is_new:
            self._tidy(connection)
        statement = (_CREATE if is_new else _CHANGE) + (PUBLISH if asked.publish else "")
        row = self.execute(connection, statement, **asked._asdict()).fetchone()
        return 0 if row is None else row[0]

    def _remove(self, connection: Connection, key: str, expected_version: int) -> bool:
        """One statement, which empties the row and gives it a later version."""
        self._tidy(connection)  # a purge of letters removes millions of documents and creates none
        cursor = self.execute(connection, _REMOVE, key=key, expected_version=expected_version)
        return cursor.fetchone() is not None

    def _purge(self, connection: Connection) -> int:
        """Remove rows of documents that were deleted or expired more than GRACE seconds ago."""
        return connection.execute(_PURGE).rowcount

    def dial(self) -> BoundedConnection:
        """A connection in autocommit, made within the deadline (at least 2 s, the minimum of libpq)."""
        options: dict[str, Any] = {**KEEPALIVE, **conninfo_to_dict(self._path)}
        seconds = max(2, math.ceil(self.deadline.seconds_left()))
        options |= {"connect_timeout": seconds, "client_encoding": "utf8"}
        # Behind a pooler, the next query may reach another server without prepared statements.
        connection = BoundedConnection.connect(autocommit=True, prepare_threshold=None, **options)
        connection.deadline = self.deadline
        connection.used_at = time.monotonic()
        return connection

    def _prepare(self, connection: Connection) -> None:
        milliseconds = str(max(1, int(self.deadline.seconds * 1000)))
        # statement_timeout stops abandoned statements; READ COMMITTED suffices for single statements.
        row = connection.execute(
            "SELECT pg_backend_pid(), set_config('statement_timeout', %s, false),"
            " set_config('lock_timeout', %s, false),"
            " set_config('default_transaction_isolation', 'read committed', false)",
            [milliseconds, milliseconds],
        ).fetchone()
        if row[0] == connection.info.backend_pid:
            # There is no pooler in between, so the server keeps prepared statements of this connection.
            connection.prepare_threshold = PREPARE_AFTER
        super()._prepare(connection)

    @contextmanager
    def _alone(self, connection: Connection) -> Generator[None]:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])
            yield

    def is_usable(self, connection: Connection) -> bool:
        """Whether the connection works. Tested by a query (a round trip) unless it was used just before."""
        now = time.monotonic()
        try:
            if now > connection.used_at + FRESH_SECONDS:
                connection.execute("SELECT 1")
        except (TimeoutError, psycopg.Error):
            return False
        connection.used_at = now
        return True


class PostgresWatch(ConnectedWatch[PostgresStore]):
    """LISTEN on one connection."""

    def _begin(self) -> None:
        self._connection = self._store.connect()
        if self._connection.prepare_threshold is None:
            raise psycopg.OperationalError("LISTEN needs a connection without a pooler in between")
        self._connection.execute(f"LISTEN {CHANNEL}")
        # A channel belongs to the whole database, which may have a store in each of its schemas.
        self._table = self._connection.execute("SELECT CAST(to_regclass(%s) AS oid)", [TABLE]).fetchone()[0]
        self._connection.deadline = None  # it waits as long as it is asked to

    def _wait(self, seconds: float) -> list[News]:
        """The changes: waits for the first message, and returns all that came with it."""
        messages = self._connection.notifies(timeout=seconds, stop_after=1)
        return [news for message in messages for news in self._news(message.payload)]

    def _news(self, payload: str) -> list[News]:
        """The change that a swap published; none if the message is not of this table and prefix."""
        table, _, message = payload.partition(" ")
        length, _, rest = message.partition(" ")
        if table != str(self._table) or not length.isdecimal():
            return []
        key, text = rest[: int(length)], rest[int(length) + 1 :]
        if not key.startswith(self._prefix):
            return []
        return news_of(key, text) if text else [News(key, None)]


# -- durability settings of the server, which the doctor reads


class PostgresFacts(NamedTuple):
    """Facts about a PostgreSQL server. `pooler`: whether there is one in between."""

    in_recovery: bool
    synchronous_commit: str
    fsync: str
    pooler: bool


def postgres_facts(parsed: StoreUrl) -> PostgresFacts:
    """Ask a PostgreSQL server."""
    store = PostgresStore(parsed)
    with store.translating(), store.dial() as connection:
        row: Any = connection.execute(
            "SELECT pg_is_in_recovery(), current_setting('synchronous_commit'), current_setting('fsync'),"
            " pg_backend_pid() <> %s",
            [connection.info.backend_pid],
        ).fetchone()
        return PostgresFacts(*row)
