"""PostgreSQL under `SqlStore`: one database, shared by a fleet, through psycopg 3.

Each change is one statement that commits by itself, by the server's clock. Versions come from a sequence:
they only grow, whatever the clock does. A deleted document leaves an empty row behind, as an expired one
does, which is removed GRACE seconds later; so a change that was held up meets the row of an earlier life
and never begins a life with an older version.

Every operation ends within `?timeout=` seconds (3), or 2 s more when it has to connect first. Durability is
the server's: what was swapped survives its crash unless `synchronous_commit` is off.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import psycopg
import sqlalchemy as sa
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import event, exc
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.engine import Engine
from sqlalchemy.pool import ConnectionPoolEntry

from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.redact import redact
from prefect_resilience.stores.postgres_schema import VERSIONS, ensure_schema
from prefect_resilience.stores.postgres_wire import BoundedConnection, Deadline, connect, silence_of
from prefect_resilience.stores.sql import Connection, SqlStore, Statement
from prefect_resilience.stores.tables import REMOVED, alive, documents
from prefect_resilience.stores.urls import FORMS, StoreUrl

ANSWER_SECONDS = 3.0
POOL_SIZE = 5
PREPARE_AFTER = 5
"""How often a connection runs a statement before it has the server keep its plan."""

FRESH_SECONDS = 0.5
"""For so long a connection that was used is taken to be there still, unless the server hung up on it."""

GRACE = 600
"""Seconds between the end of a document and the removal of its row: longer than any statement runs."""
PURGE_AT_ONCE = 50
PURGE_PAUSE = 1.0
"""Seconds between two attempts of one process to purge when there is little to do."""

# The statements, and what they take: keys, versions, values and times.
_writes = PGDialect_psycopg()
_clock: sa.ColumnElement[Any] = sa.cast(sa.extract("epoch", sa.func.clock_timestamp()), sa.Double)
_unchanging = sa.cast(sa.extract("epoch", sa.func.now()), sa.Double)
_next_version = sa.Sequence(VERSIONS).next_value()
_unchanged = sa.and_(
    documents.c.key == sa.bindparam("the_key"),
    documents.c.version == sa.bindparam("the_version"),
    alive(_clock),
)


def _writing(expires_at: sa.ColumnElement[Any]) -> tuple[Statement, Statement]:
    """To create a document and to change one. The version is drawn last, when nobody else holds the row."""
    fields: dict[str, Any] = {
        "version": _next_version,
        "value": sa.bindparam("text"),
        "expires_at": expires_at,
    }
    create = (
        insert(documents)
        .values(key=sa.bindparam("the_key"), **fields)
        .on_conflict_do_update(index_elements=["key"], set_=fields, where=sa.not_(alive(_clock)))
    )
    change = sa.update(documents).where(_unchanged).values(**fields)
    version = documents.c.version
    return Statement(create.returning(version), _writes), Statement(change.returning(version), _writes)


_now = Statement(sa.select(_clock), _writes)
_create, _change = _writing(sa.null())
# Never earlier than now, so that GRACE counts from when the row was written.
_expiry = sa.cast(sa.bindparam("expiry"), sa.Double)
_create_expiring, _change_expiring = _writing(sa.func.greatest(_expiry, _clock))
_remove = Statement(
    sa.update(documents)
    .where(_unchanged)
    .values(version=_next_version, value=REMOVED, expires_at=_clock)
    .returning(documents.c.version),
    _writes,
)
# Without waiting for whoever holds a row.
_ended = (
    sa.select(documents.c.key)
    .where(documents.c.expires_at < _unchanging - GRACE)
    .limit(PURGE_AT_ONCE)
    .with_for_update(skip_locked=True)
)
_purge = Statement(sa.delete(documents).where(documents.c.key.in_(_ended)), _writes)


def open_postgres(parsed: StoreUrl) -> SqlStore:
    """The store in the database that the URL names; all options but `timeout` are libpq's."""
    try:
        conninfo_to_dict(parsed.path)
    except psycopg.Error as error:
        wrong = redact(f"the URL {parsed.canonical} cannot be meant: {str(error).strip()}")
        raise ConfigurationError(f"{wrong}; {FORMS}") from None
    seconds = float(parsed.options.get("timeout", ANSWER_SECONDS))
    return SqlStore(parsed.canonical, PostgresDialect(parsed.path, seconds))


class PostgresDialect:
    """A pool of a few connections, each tried before it is used. `seconds` bound each operation."""

    errors: tuple[type[Exception], ...] = (psycopg.Error,)
    one_writer = False
    writes: sa.Dialect = _writes
    clock: sa.ColumnElement[Any] = _clock

    def __init__(self, conninfo: str, seconds: float) -> None:
        self._conninfo = conninfo
        self._deadline = Deadline(seconds)
        self._purge_at = -math.inf

    def begin(self) -> None:
        """The seconds are counted from here."""
        self._deadline.begin()

    def engine(self) -> Engine:
        """Connects to nothing yet: each new connection looks for the schema itself."""
        engine = sa.create_engine(
            "postgresql+psycopg://",
            creator=self._connect,
            isolation_level="AUTOCOMMIT",
            use_native_hstore=False,
            pool_size=POOL_SIZE,
            max_overflow=POOL_SIZE,
            pool_timeout=self._deadline.seconds,
            # There never is a transaction to end.
            pool_reset_on_return=None,
        )
        event.listen(engine, "checkout", _on_checkout)
        return engine

    def stale(self) -> bool:
        """Never: a server that went away shows itself."""
        return False

    def now(self, ask: Callable[[Statement], Any]) -> float:
        """The server's clock."""
        return float(ask(_now))

    def swap(
        self, connection: Connection, key: str, expected_version: int, text: str, expires_at: float | None
    ) -> int:
        """One statement: an upsert over a document that is gone, or an update of one version."""
        written: dict[str, Any] = {"the_key": key, "text": text}
        if expires_at is not None:
            written["expiry"] = expires_at
        if expected_version == 0:
            self._tidy(connection)
            create = _create if expires_at is None else _create_expiring
            row = create.run(connection, **written).fetchone()
        else:
            change = _change if expires_at is None else _change_expiring
            row = change.run(connection, the_version=expected_version, **written).fetchone()
        return 0 if row is None else row[0]

    def delete(self, connection: Connection, key: str, expected_version: int) -> bool:
        """One statement, after which the row is empty and has a later version."""
        return _remove.run(connection, the_key=key, the_version=expected_version).fetchone() is not None

    def _tidy(self, connection: Connection) -> None:
        """Remove some rows of documents that ended a while ago, in passing; the next ones soon."""
        now = time.monotonic()
        if now < self._purge_at:
            return
        if _purge.run(connection).rowcount < PURGE_AT_ONCE:
            self._purge_at = now + PURGE_PAUSE

    def _connect(self) -> BoundedConnection:
        connection = connect(self._conninfo, self._deadline)
        try:
            milliseconds = str(max(1, int(self._deadline.seconds * 1000)))
            # Whom we no longer wait for also stops; what one statement does needs no stricter isolation.
            found = connection.execute(
                "SELECT pg_backend_pid(), set_config('statement_timeout', %s, false),"
                " set_config('lock_timeout', %s, false),"
                " set_config('default_transaction_isolation', 'read committed', false)",
                [milliseconds, milliseconds],
            ).fetchone()
            if found is not None and found[0] == connection.info.backend_pid:
                # No pooler answers for the server: what is prepared there is there the next time.
                connection.prepare_threshold = PREPARE_AFTER
            ensure_schema(connection)
        except BaseException:
            connection.close()
            raise
        return connection


def _on_checkout(connection: Any, record: ConnectionPoolEntry, _: object) -> None:
    """Try a connection before it is used: after a while, by a question, which costs a round trip."""
    now = time.monotonic()
    if "watch" not in record.info:
        record.info["watch"] = silence_of(connection)
    if now > record.info.get("used_at", -math.inf) + FRESH_SECONDS or not record.info["watch"]():
        try:
            connection.execute("SELECT 1")
        except psycopg.Error as error:
            raise exc.InvalidatePoolError(str(error)) from error
    record.info["used_at"] = now
