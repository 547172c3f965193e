"""PostgreSQL under `SqlStore`: one database, shared by a fleet, through psycopg 3.

Each change is one statement that commits by itself, by the server's clock. Versions come from a sequence:
they only grow, whatever the clock does. A deleted document leaves an empty row behind, as an expired one
does, which is removed GRACE seconds later; so a change that was held up meets the row of an earlier life
and never begins a life with an older version.

Every operation ends within `?timeout=` seconds (3), or 2 s more when it has to connect first. Durability is
the server's: what was swapped survives its crash unless `synchronous_commit` is off.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import sqlalchemy as sa
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.engine import Connection, Engine

from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.redact import redact
from prefect_resilience.stores.postgres_schema import VERSIONS, ensure_schema
from prefect_resilience.stores.postgres_wire import BoundedConnection, Deadline, connect
from prefect_resilience.stores.sql import SqlStore
from prefect_resilience.stores.tables import REMOVED, alive, documents
from prefect_resilience.stores.urls import FORMS, StoreUrl

ANSWER_SECONDS = 3.0
POOL_SIZE = 5
GRACE = 600
"""Seconds between the end of a document and the removal of its row: longer than any statement runs."""
PURGE_AT_ONCE = 50

_next_version = sa.Sequence(VERSIONS).next_value()
_unchanging = sa.cast(sa.extract("epoch", sa.func.now()), sa.Double)


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

    def __init__(self, conninfo: str, seconds: float) -> None:
        self._conninfo = conninfo
        self._deadline = Deadline(seconds)

    def begin(self) -> None:
        """The seconds are counted from here."""
        self._deadline.begin()

    def engine(self) -> Engine:
        """Connects to nothing yet: each new connection looks for the schema itself."""
        return sa.create_engine(
            "postgresql+psycopg://",
            creator=self._connect,
            isolation_level="AUTOCOMMIT",
            use_native_hstore=False,
            pool_size=POOL_SIZE,
            max_overflow=POOL_SIZE,
            pool_timeout=self._deadline.seconds,
            pool_pre_ping=True,
        )

    def stale(self) -> bool:
        """Never: a server that went away shows itself."""
        return False

    def now(self, read: Callable[[sa.Select[Any]], Any]) -> float:
        """The server's clock."""
        return float(read(sa.select(self.clock())))

    def clock(self) -> sa.ColumnElement[float]:
        """The server's clock at the moment when the expression is evaluated."""
        return sa.cast(sa.extract("epoch", sa.func.clock_timestamp()), sa.Double)

    def swap(
        self, connection: Connection, key: str, expected_version: int, text: str, expires_at: float | None
    ) -> int:
        """One statement: an upsert over a document that is gone, or an update of one version."""
        fields: dict[str, Any] = {
            "version": _next_version,
            "value": text,
            "expires_at": self._expiry(expires_at),
        }
        live = alive(self.clock())
        if expected_version == 0:
            _purge(connection)
            change = (
                insert(documents)
                .values(key=key, **fields)
                .on_conflict_do_update(index_elements=["key"], set_=fields, where=sa.not_(live))
            )
        else:
            same = sa.and_(documents.c.key == key, documents.c.version == expected_version)
            change = sa.update(documents).where(same, live).values(**fields)
        return connection.execute(change.returning(documents.c.version)).scalar() or 0

    def delete(self, connection: Connection, key: str, expected_version: int) -> bool:
        """One statement, after which the row is empty and has a later version."""
        same = sa.and_(documents.c.key == key, documents.c.version == expected_version)
        fields = {"version": _next_version, "value": REMOVED, "expires_at": self.clock()}
        change = sa.update(documents).where(same, alive(self.clock())).values(**fields)
        return connection.execute(change).rowcount == 1

    def _expiry(self, expires_at: float | None) -> sa.ColumnElement[float] | None:
        # Never earlier than now, so that GRACE counts from when the row was written.
        return (
            None if expires_at is None else sa.func.greatest(sa.literal(expires_at, sa.Double), self.clock())
        )

    def _connect(self) -> BoundedConnection:
        connection = connect(self._conninfo, self._deadline)
        try:
            milliseconds = str(max(1, int(self._deadline.seconds * 1000)))
            # Whom we no longer wait for also stops; what one statement does needs no stricter isolation.
            connection.execute(
                "SELECT set_config('statement_timeout', %s, false), set_config('lock_timeout', %s, false),"
                " set_config('default_transaction_isolation', 'read committed', false)",
                [milliseconds, milliseconds],
            )
            ensure_schema(connection)
        except BaseException:
            connection.close()
            raise
        return connection


def _purge(connection: Connection) -> None:
    """Remove some rows of documents that ended a while ago, without waiting for whoever holds one."""
    ended = (
        sa.select(documents.c.key)
        .where(documents.c.expires_at < _unchanging - GRACE)
        .limit(PURGE_AT_ONCE)
        .with_for_update(skip_locked=True)
    )
    connection.execute(sa.delete(documents).where(documents.c.key.in_(ended)))
