"""The tables of a store in a SQL database, and which of their rows are documents that exist."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

REMOVED = ""
"""A row's value when its document was deleted; JSON is never empty."""

# Keys are ordered by code point everywhere, whatever the database's language.
_KEY = sa.Text(collation="BINARY").with_variant(sa.Text(collation="C"), "postgresql")

metadata: sa.MetaData = sa.MetaData()
documents: sa.Table = sa.Table(
    "prefect_resilience_documents",
    metadata,
    sa.Column("key", _KEY, primary_key=True),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("value", sa.Text, nullable=False),
    sa.Column("expires_at", sa.Double, nullable=True),
)
# Only of what expires: everything else is written faster without.
_expires = documents.c.expires_at.is_not(None)
sa.Index(
    "ix_prefect_resilience_documents_expires_at",
    documents.c.expires_at,
    sqlite_where=_expires,
    postgresql_where=_expires,
)


def alive(now: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
    """Whether a row is a document at the time `now`, rather than one that expired or was deleted."""
    lasting = sa.or_(documents.c.expires_at.is_(None), documents.c.expires_at > now)
    return sa.and_(documents.c.value != REMOVED, lasting)
