"""A connection to PostgreSQL on which nobody waits for ever."""

from __future__ import annotations

import math
import select
import threading
import time
from collections.abc import Generator
from functools import cached_property
from typing import Any

import psycopg

from prefect_resilience.stores.sql import EXPIRES, TABLE


class TooLate(psycopg.OperationalError):
    """The operation's time is over."""


class Deadline(threading.local):
    """Until when the operation that runs in this thread may wait. `seconds` are for each operation."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._ends = math.inf

    def begin(self) -> None:
        """An operation begins."""
        self._ends = time.monotonic() + self.seconds

    def left(self) -> float:
        """Seconds; raises TooLate when there are none."""
        left = self._ends - time.monotonic()
        if left <= 0:
            raise TooLate(f"no answer within {self.seconds:g} s")
        return min(left, self.seconds)


class BoundedConnection(psycopg.Connection[Any]):
    """Closes itself when an answer is not there in time.

    The server's own timeouts do not help when it is the server, or the way to it, that is stuck.
    """

    deadline: Deadline | None = None
    used_at: float = -math.inf
    """By `time.monotonic()`."""

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        """As psycopg's, until the deadline; what a late answer would mean is never looked at."""
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
        """Whether there is nothing to read: what a server says unasked is most often good-bye.

        False where that cannot be seen without asking.
        """
        return self._watch is not None and not self.closed and not self._watch.poll(0)


def _until(deadline: Deadline, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """The same steps as `gen`'s. psycopg hands in 0 several times a second while nothing happens."""
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
    """A connection in autocommit, ready within the deadline (at least 2 s, which libpq insists on)."""
    patience = max(2, math.ceil(deadline.left()))
    connection = BoundedConnection.connect(
        conninfo,
        autocommit=True,
        # Statements that are prepared on a server behind a pooler may be others, or gone, the next time.
        prepare_threshold=None,
        connect_timeout=patience,
        client_encoding="utf8",
    )
    connection.deadline = deadline
    connection.used_at = time.monotonic()
    return connection


VERSIONS = "prefect_resilience_versions"
LOCK = 0x70726573
"""An advisory lock's number, by which processes that find no schema take turns to make it."""


def ensure_schema(connection: psycopg.Connection[Any]) -> None:
    """Make what is missing, in a race with other processes. May raise the driver's errors."""
    if _exists(connection):
        return
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])
        if not _exists(connection):
            for statement in _statements(connection):
                connection.execute(statement.encode())


def _exists(connection: psycopg.Connection[Any]) -> bool:
    names = "SELECT to_regclass(%s) IS NOT NULL AND to_regclass(%s) IS NOT NULL"
    row = connection.execute(names, [TABLE, VERSIONS]).fetchone()
    return row is not None and bool(row[0])


def _statements(connection: psycopg.Connection[Any]) -> list[str]:
    # From the time on, so that versions also grow from one database to its empty successor.
    row = connection.execute("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint").fetchone()
    start = row[0] if row else 1
    return [
        f"CREATE SEQUENCE IF NOT EXISTS {VERSIONS} AS BIGINT START WITH {start}",
        # Keys are ordered by code point, whatever the database's language.
        f'CREATE TABLE IF NOT EXISTS {TABLE} (key TEXT COLLATE "C" PRIMARY KEY, version BIGINT NOT NULL,'
        " value TEXT NOT NULL, expires_at DOUBLE PRECISION)",
        # Partial: rows without an expiry need no index entry.
        f"CREATE INDEX IF NOT EXISTS {EXPIRES} ON {TABLE} (expires_at) WHERE expires_at IS NOT NULL",
    ]
