"""A store in Redis (6.2 or later), shared by a fleet, through redis-py.

A document is one string, changed by a small Lua script and expired by Redis itself. One sorted set holds the
names in order, so that a scan reads pages and never the whole keyspace; another has those of open documents.
The URL's `?prefix=` is the common part of this store's keys ("prefect_resilience"); all keys are in one slot
of a cluster.

The server's configuration decides how durable a swap is. With `appendonly yes` a crash loses up to a second
of swaps, and none with `appendfsync always`; without it, everything since the last snapshot. A failover loses
the swaps that the replica had not received. Circuits and rates can use any of these; a ledger of effects
needs `appendonly yes` and `appendfsync always`. Set `maxmemory-policy noeviction`: a server that evicts keys
may drop a document at any time, and then reports that it does not exist.

The client waits `?timeout=` seconds (3) for each answer, and as long to connect. An operation needs one or
two answers, a scan two more per 100 documents or 1,000 expired ones. No command is sent twice.
"""

from __future__ import annotations

import math
import re
import socket
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import cache, partial
from typing import Any, TypeVar, cast

import redis
from redis.backoff import NoBackoff
from redis.commands.core import Script
from redis.retry import Retry

from prefect_resilience.errors.exceptions import StoreUnavailable
from prefect_resilience.stores.base import ConnectedStore, Document, Swap, check_key, check_text, decode
from prefect_resilience.stores.urls import StoreUrl
from prefect_resilience.stores.watching import News

# The atomic operations: two small Lua scripts for Redis 6.2 and later.
#
# Keys: 1 the document ("version expires_at json"), 2 the set of all names in order, 3 the names that
# expire, by time, 4 the greatest version ever given, 5 the names of open documents. Each script writes the
# document last, so that an error in between (memory, a read-only replica) leaves the document unchanged. Only
# a document that is no longer open leaves its set after that.
#
# A process with an older version does not keep the set of open documents. So two spaces follow the greatest
# version while every swap has kept it (Lua's `tonumber` ignores them). A swap of version 0.2 writes the
# number alone, and from then on all documents of the store are read to find those that are open.

_IS_EXPECTED = """
local held = redis.call('GETRANGE', KEYS[1], 0, 19)
local version = string.match(held, '^%d+') or '0'
if version ~= ARGV[2] then return '0' end
"""

# Lua counts in doubles, which are exact up to 2^53: microseconds until the year 2255.
SWAP = (
    _IS_EXPECTED
    + """
local name, expires_at, text, ends = ARGV[1], ARGV[3], ARGV[4], ARGV[5]
local greatest = redis.call('GET', KEYS[4])
if not greatest then greatest = redis.call('EXISTS', KEYS[2]) == 0 and '0  ' or '0' end
local kept = string.match(greatest, ' *$')
local time = redis.call('TIME')
local micros = time[1] * 1000000 + time[2]
local new = string.format('%.0f', math.max(micros, tonumber(greatest) + 1))
redis.call('SET', KEYS[4], new .. (kept == '  ' and kept or ''))

local ended = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf',
    string.format('(%.0f', math.floor(micros / 1000)), 'LIMIT', 0, 50)
if #ended > 0 then
    redis.call('ZREM', KEYS[2], unpack(ended))
    redis.call('ZREM', KEYS[3], unpack(ended))
    redis.call('ZREM', KEYS[5], unpack(ended))
end

redis.call('ZADD', KEYS[2], 0, name)
if ARGV[7] == '1' then redis.call('ZADD', KEYS[5], 0, name) end
if ends == '' then
    redis.call('ZREM', KEYS[3], name)
    redis.call('SET', KEYS[1], new .. ' ' .. expires_at .. ' ' .. text)
else
    redis.call('ZADD', KEYS[3], ends, name)
    redis.call('SET', KEYS[1], new .. ' ' .. expires_at .. ' ' .. text)
    redis.call('PEXPIREAT', KEYS[1], ends)
end
if ARGV[7] ~= '1' then redis.call('ZREM', KEYS[5], name) end
if ARGV[6] ~= '' then
    -- Protected: a user without the right to publish still writes
    redis.pcall('PUBLISH', ARGV[6] .. name, name .. '\\0' .. new .. ' ' .. expires_at .. ' ' .. text)
end
return new
"""
)

DELETE = (
    _IS_EXPECTED
    + """
for place = 2, 5 do if place ~= 4 then redis.call('ZREM', KEYS[place], ARGV[1]) end end
redis.call('DEL', KEYS[1])
return '1'
"""
)

# Keys: 1 the greatest version, 2 the names of open documents.
PAGE_OF_OPEN = """
local greatest = redis.call('GET', KEYS[1])
if not greatest or string.match(greatest, ' *$') ~= '  ' then return false end
return redis.call('ZRANGEBYLEX', KEYS[2], ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3])
"""


@cache
def script(text: str) -> Any:
    """A script of Lua, to be called with keys, arguments and a client. Its digest is computed once."""
    return cast("Any", Script)(None, text.encode())


ANSWER_SECONDS = 3.0
POOL_SIZE = 10
PREFIX = "prefect_resilience"
LAST_MILLISECOND = 9e15
"""A document that expires later than this is kept forever: about the year 287,000."""
PAGE = 100
MOST_NAMES = 1_000
"""The page of a scan grows up to this, if documents in it have expired."""

KEEPALIVE = {
    getattr(socket, option): value
    for option, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 2))
    if hasattr(socket, option)
}
"""In seconds, and a number of probes: a dead connection of a watch is found within 10 s."""

T = TypeVar("T")


def open_redis(parsed: StoreUrl) -> RedisStore:
    """The store that the URL names."""
    seconds = float(parsed.options.get("timeout", ANSWER_SECONDS))
    return RedisStore(parsed.canonical, parsed.path, parsed.options.get("prefix", PREFIX), seconds)


class RedisStore(ConnectedStore[Any]):
    """Documents as strings. Safe between threads, processes, and across a fork.

    `address` is the URL for redis-py, `seconds` the timeout of each answer.
    """

    def __init__(self, url: str, address: str, prefix: str = PREFIX, seconds: float = ANSWER_SECONDS) -> None:
        super().__init__(url)
        self._address = address
        self._seconds = seconds
        # The braces put all keys of the store into one slot, as scripts require.
        self._space = f"{{{prefix}}}"
        # Each key has a channel. A channel belongs to all databases of the server.
        number = cast("Any", redis).connection.parse_url(address).get("db", 0)
        self._channels = f"{self._space}:news:{number}:"
        self._shared = [f"{self._space}:{name}" for name in ("names", "expiring", "version", "unclosed")]

    def load(self, key: str) -> Document | None:
        """The live document under `key`, or None."""
        name = self._name(check_key(key))
        held = self._ask(lambda client: client.get(name))
        return None if held is None else _document(held, key)

    def _swap(self, asked: Swap) -> int:
        expiry = _expiry(asked.expires_at, asked.text)
        channels = self._channels if asked.publish else ""
        arguments = [asked.key, str(asked.expected_version), *expiry, channels, "1" if asked.open else ""]
        return int(self._run(SWAP, self._name(asked.key), arguments))

    def _delete(self, key: str, expected_version: int) -> bool:
        return self._run(DELETE, self._name(key), [key, str(expected_version)]) == b"1"

    def _scan(
        self, prefix: str, after: str | None, limit: int, only_open: bool
    ) -> list[tuple[str, Document]]:
        start = prefix.encode()
        beyond = None if after is None else check_text(after).encode()
        low = b"[" + start if beyond is None or beyond < start else b"(" + beyond
        # UTF-8 never contains the byte 255, so this bound is after all names that begin with the prefix.
        high = b"[" + start + b"\xff"
        found: list[tuple[str, Document]] = []
        size = min(PAGE, limit)
        while len(found) < limit:
            names, held = self._ask(partial(self._page, only_open, low, high, size))
            keys = (name.decode() for name in names)
            found += [(key, _document(text, key)) for key, text in zip(keys, held, strict=True) if text]
            if len(names) < size:
                break
            low = b"(" + names[-1]
            # Names of expired documents are in the way until a swap removes them: more at once.
            size = min(MOST_NAMES, 2 * size) if None in held else min(PAGE, limit - len(found))
        self._check_open()
        return found[:limit]

    def now(self) -> float:
        """Seconds since the epoch by the server's clock."""
        seconds, micros = self._ask(lambda client: client.time())
        return float(seconds) + float(micros) / 1e6

    def watch(self, prefix: str) -> RedisWatch:
        """Subscribe to the swaps that publish, over one connection. Raises StoreUnavailable."""
        self._check_open()
        try:
            return RedisWatch(self, self._address, self._channels, check_text(prefix), self._seconds)
        except (redis.RedisError, OSError) as error:
            raise self.unavailable(error) from error

    def close(self) -> None:
        """Close the connections of this process."""
        self.closed = True
        if (client := self._let_go()) is not None:
            client.connection_pool.disconnect()

    def _page(
        self, only_open: bool, low: bytes, high: bytes, size: int, client: Any
    ) -> tuple[list[bytes], list[bytes | None]]:
        """Up to `size` names in order, and their documents; None for an expired one."""
        names: list[bytes] | None = None
        if only_open:
            names = script(PAGE_OF_OPEN)(self._shared[2:], [low, high, size], client)
        if names is None:
            names = cast("list[bytes]", client.zrangebylex(self._shared[0], low, high, 0, size))
        return names, client.mget([self._name(name.decode()) for name in names]) if names else []

    def _name(self, key: str) -> str:
        return f"{self._space}:document:{key}"

    def _run(self, text: str, name: str, arguments: list[str]) -> bytes:
        return self._ask(lambda client: script(text)([name, *self._shared], arguments, client))

    def _ask(self, question: Callable[[Any], T]) -> T:
        """The answer to `question`. Errors of the connection and the server become StoreUnavailable."""
        try:
            return question(self._connect())
        except (redis.RedisError, OSError, UnicodeDecodeError) as error:
            # The state of the connections is unknown, so the next operation opens new ones. Connections
            # that other threads use stay open for them.
            self._let_go()
            raise self.unavailable(error) from error

    def _open(self) -> Any:
        pool = cast("Any", redis.BlockingConnectionPool).from_url(
            self._address,
            max_connections=POOL_SIZE,
            timeout=self._seconds,
            socket_timeout=self._seconds,
            socket_connect_timeout=self._seconds,
            # A swap retried after a lost answer would find its own version and report that it lost.
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )
        return redis.Redis(connection_pool=pool)


class RedisWatch:
    """A subscription to the swaps of one store. TCP's keep-alive finds a connection that is dead."""

    def __init__(self, store: RedisStore, address: str, channels: str, prefix: str, seconds: float) -> None:
        self._store = store
        self._channels = channels
        self._seconds = seconds
        self._pattern = re.sub(r"([\\*?\[\]])", r"\\\1", channels + prefix) + "*"
        self._followed: set[str] | None = None
        self._early: list[News] = []
        self._closed = False
        self._client = cast("Any", redis.Redis).from_url(
            address,
            socket_timeout=seconds,
            socket_connect_timeout=seconds,
            socket_keepalive=True,
            socket_keepalive_options=KEEPALIVE,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )
        self._subscription = self._client.pubsub()
        try:
            self._subscription.psubscribe(self._pattern)
            self._confirm(1)
        except BaseException:
            self.close()
            raise

    def wait(self, seconds: float) -> list[News]:
        """The changes of the prefix: waits for the first message, and returns all that have arrived."""
        found, self._early = self._early, []
        try:
            if self._closed:
                raise redis.ConnectionError("the watch has been closed")
            message = self._subscription.get_message(timeout=0 if found else seconds)
            while message is not None:
                found += _news(message)
                message = self._subscription.get_message(timeout=0)
        except (redis.RedisError, OSError, ValueError) as error:
            # ValueError: another thread has closed the connection.
            raise self._store.unavailable(error) from error
        return found

    def follow(self, keys: Collection[str]) -> None:
        """Subscribe to the channels of these keys instead of the prefix."""
        wanted = {self._channels + key for key in keys}
        before = self._followed or set()
        come, gone = wanted - before, before - wanted
        try:
            if come:
                self._subscription.subscribe(*come)
            if gone:
                self._subscription.unsubscribe(*gone)
            if self._followed is None:
                self._subscription.punsubscribe(self._pattern)
            self._confirm(len(come) + len(gone) + (self._followed is None))
        except (redis.RedisError, OSError, ValueError) as error:
            raise self._store.unavailable(error) from error
        self._followed = wanted

    def _confirm(self, number: int) -> None:
        """Wait for Redis' confirmations: what is published from then on arrives here."""
        while number:
            message = self._subscription.get_message(timeout=self._seconds)
            if message is None:
                raise redis.TimeoutError("the subscription was not confirmed")
            number -= message["type"].endswith("subscribe")
            self._early += _news(message)

    def close(self) -> None:
        """End the subscription and its connection."""
        self._closed = True
        with suppress(redis.RedisError, OSError):
            self._subscription.close()
        self._client.connection_pool.disconnect()


def _news(message: dict[str, Any]) -> list[News]:
    """The change that a swap published; none if the message is a confirmation, or not ours."""
    if not message["type"].endswith("message"):
        return []
    name, separator, held = message["data"].partition(b"\0")
    try:
        key = name.decode()
        return [News(key, _document(held, key))] if separator else []
    except (UnicodeDecodeError, StoreUnavailable):
        return []


def _expiry(expires_at: float | None, text: str) -> list[str]:
    """The script's arguments: the given expiry, the text, the expiry in whole milliseconds."""
    if expires_at is None:
        return ["-", text, ""]
    milliseconds = expires_at * 1000
    ends = str(max(1, math.floor(milliseconds))) if milliseconds < LAST_MILLISECOND else ""
    return [repr(float(expires_at)), text, ends]


def _document(held: bytes, key: str) -> Document:
    try:
        version, expires_at, text = held.decode().split(" ", 2)
        return Document(decode(text, key), int(version), None if expires_at == "-" else float(expires_at))
    except ValueError:
        raise StoreUnavailable(f"the document under {key!r} is no longer in the store's format") from None
