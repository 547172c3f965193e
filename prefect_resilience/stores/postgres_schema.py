"""The schema in PostgreSQL: the table of documents, and the sequence that versions come from."""

from __future__ import annotations

from typing import Any

import psycopg

from prefect_resilience.stores.sql import EXPIRES, TABLE

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
