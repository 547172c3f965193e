"""News of changes in PostgreSQL, by NOTIFY in the statement of the swap and LISTEN on one connection."""

from __future__ import annotations

from collections.abc import Collection

import psycopg

from prefect_resilience.stores.connected import ConnectedWatch, news_of
from prefect_resilience.stores.sql import TABLE, SqlStore
from prefect_resilience.stores.watching import News

CHANNEL = "prefect_resilience_news"

LONGEST_MESSAGE = 7_900
"""Bytes of a message; PostgreSQL's limit is 8,000. A longer message has only the key."""

CHANNELS = 256
"""Each key has one of these channels, by its hash, so that few messages of other keys reach a process."""

_CHANNELS_OF = "SELECT DISTINCT hashtext(key) & %s FROM unnest(CAST(%s AS TEXT[])) key"
_KEY = f"concat_ws(' ', {TABLE}.tableoid, char_length({TABLE}.key), {TABLE}.key)"
# In the same statement, so that the message is sent if and only if the swap is committed.
PUBLISH = (
    f", pg_notify('{CHANNEL}_' || (hashtext({TABLE}.key) & {CHANNELS - 1}), CASE"
    f" WHEN octet_length({TABLE}.key) + octet_length({TABLE}.value) < {LONGEST_MESSAGE - 100} THEN"
    f" concat_ws(' ', {_KEY}, {TABLE}.version, coalesce({TABLE}.expires_at::TEXT, '-'), {TABLE}.value)"
    f" ELSE {_KEY} END)"
)


class PostgresWatch(ConnectedWatch[SqlStore]):
    """LISTEN on one connection."""

    def _begin(self) -> None:
        self._keys: frozenset[str] | None = None
        self._channels = frozenset[int]()
        self._connection = self._store.connect()
        if self._connection.prepare_threshold is None:
            raise psycopg.OperationalError("LISTEN needs a connection without a pooler in between")
        self._listen(frozenset(range(CHANNELS)))
        # A channel belongs to the whole database, which may have a store in each of its schemas.
        self._table = self._connection.execute("SELECT CAST(to_regclass(%s) AS oid)", [TABLE]).fetchone()[0]
        self._connection.deadline = None  # it waits as long as it is asked to

    def _wait(self, seconds: float) -> list[News]:
        """The changes: waits for the first message, and returns all that came with it."""
        messages = self._connection.notifies(timeout=seconds, stop_after=1)
        return [news for message in messages for news in self._news(message.payload)]

    def _follow(self, keys: Collection[str]) -> None:
        """Listen to the channels of these keys only."""
        rows = self._connection.execute(_CHANNELS_OF, [CHANNELS - 1, list(keys)]).fetchall()
        self._listen(frozenset(number for (number,) in rows))
        self._keys = frozenset(keys)

    def _listen(self, channels: frozenset[int]) -> None:
        changes = [f"LISTEN {CHANNEL}_{number}" for number in channels - self._channels]
        changes += [f"UNLISTEN {CHANNEL}_{number}" for number in self._channels - channels]
        if changes:
            self._connection.execute("; ".join(changes))
        self._channels = channels

    def _news(self, payload: str) -> list[News]:
        """The change that a swap published; none if the message is not of this table and these keys."""
        table, _, message = payload.partition(" ")
        length, _, rest = message.partition(" ")
        if table != str(self._table) or not length.isdecimal():
            return []
        key, text = rest[: int(length)], rest[int(length) + 1 :]
        if not key.startswith(self._prefix) if self._keys is None else key not in self._keys:
            return []
        return news_of(key, text) if text else [News(key, None)]
