"""News of changes in PostgreSQL, by NOTIFY in the statement of the swap and LISTEN on one connection."""

from __future__ import annotations

import math
from collections.abc import Collection

import psycopg

from prefect_resilience.errors.exceptions import StoreUnavailable
from prefect_resilience.stores.base import Document, decode
from prefect_resilience.stores.sql import TABLE
from prefect_resilience.stores.watching import News

CHANNEL = "prefect_resilience_news"

LONGEST_MESSAGE = 7_900
"""Bytes of a message; PostgreSQL's limit is 8,000. A longer message has only the key."""

CHANNELS = 256
"""Each key has one of these channels, by its hash, so that few messages of other keys reach a process."""

_CHANNELS_OF = "SELECT DISTINCT hashtext(key) & %s FROM unnest(CAST(%s AS TEXT[])) key"
_MESSAGE = (
    f"concat_ws(' ', {TABLE}.tableoid, {TABLE}.version, coalesce(CAST({TABLE}.expires_at AS TEXT), '-'),"
    f" char_length({TABLE}.key), {TABLE}.key)"
)
# In the same statement, so that the message is sent if and only if the swap is committed.
PUBLISH = (
    f", pg_notify('{CHANNEL}_' || (hashtext({TABLE}.key) & {CHANNELS - 1}), CASE"
    f" WHEN octet_length({TABLE}.key) + octet_length({TABLE}.value) < {LONGEST_MESSAGE - 100}"
    f" THEN {_MESSAGE} || {TABLE}.value ELSE {_MESSAGE} END)"
)


class PostgresWatch:
    """LISTEN on one connection. TCP's keep-alive finds a connection that is dead, within 10 s."""

    def __init__(self, conninfo: str, prefix: str, seconds: float) -> None:
        self._prefix = prefix
        self._keys: frozenset[str] | None = None
        self._channels = frozenset[int]()
        self._connection = psycopg.Connection.connect(
            conninfo,
            autocommit=True,
            prepare_threshold=None,
            connect_timeout=max(2, math.ceil(seconds)),
            client_encoding="utf8",
            keepalives_idle=5,
            keepalives_interval=2,
            keepalives_count=2,
        )
        try:
            found = self._connection.execute("SELECT pg_backend_pid()").fetchone()
            if found is None or found[0] != self._connection.info.backend_pid:
                raise psycopg.OperationalError("LISTEN needs a connection without a pooler in between")
            self._listen(frozenset(range(CHANNELS)))
            # A channel belongs to the whole database, which may have a store in each of its schemas.
            table = self._connection.execute("SELECT CAST(to_regclass(%s) AS oid)", [TABLE]).fetchone()
            self._table = str(table[0]) if table else ""
        except BaseException:
            self._connection.close()
            raise

    def wait(self, seconds: float) -> list[News]:
        """The changes of the prefix: waits for the first message, and returns all that came with it."""
        messages = self._connection.notifies(timeout=seconds, stop_after=1)
        news = (_news(message.payload, self._table) for message in messages)
        return [one for one in news if one is not None and self._is_wanted(one.key)]

    def follow(self, keys: Collection[str]) -> None:
        """Listen to the channels of these keys only."""
        rows = self._connection.execute(_CHANNELS_OF, [CHANNELS - 1, list(keys)]).fetchall()
        self._listen(frozenset(number for (number,) in rows))
        self._keys = frozenset(keys)

    def _listen(self, channels: frozenset[int]) -> None:
        changes = [f"LISTEN {CHANNEL}_{number}" for number in channels - self._channels]
        changes += [f"UNLISTEN {CHANNEL}_{number}" for number in self._channels - channels]
        if changes:
            self._connection.execute("; ".join(changes).encode())
        self._channels = channels

    def _is_wanted(self, key: str) -> bool:
        return key.startswith(self._prefix) if self._keys is None else key in self._keys

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _news(payload: str, wanted: str) -> News | None:
    """The change that a swap published; None if the message is not of the table `wanted`."""
    try:
        table, version, expires_at, length, rest = payload.split(" ", 4)
        if table != wanted:
            return None
        key, value = rest[: int(length)], rest[int(length) :]
        ends = None if expires_at == "-" else float(expires_at)
        return News(key, Document(decode(value, key), int(version), ends) if value else None)
    except (ValueError, StoreUnavailable):
        return None
