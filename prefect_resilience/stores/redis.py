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
two answers, a scan two more per 1,000 documents, also expired ones. No command is sent twice.
"""

from __future__ import annotations

import math
import re
import socket
from contextlib import closing, suppress
from functools import cache
from typing import Any, NamedTuple, cast

import redis
from redis.backoff import NoBackoff
from redis.commands.core import Script
from redis.retry import Retry

from prefect_resilience.errors.exceptions import StoreUnavailable
from prefect_resilience.stores import StoreUrl
from prefect_resilience.stores.base import Document, News
from prefect_resilience.stores.connected import (
    ConnectedStore,
    ConnectedWatch,
    Found,
    Page,
    Swap,
    check_key,
    news_of,
    read_document,
)

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
local name, ends, document = ARGV[1], ARGV[4], ' ' .. ARGV[3]
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
    for _, place in ipairs({2, 3, 5}) do redis.call('ZREM', KEYS[place], unpack(ended)) end
end

redis.call('ZADD', KEYS[2], 0, name)
if ARGV[6] == '1' then redis.call('ZADD', KEYS[5], 0, name) end
if ends == '' then redis.call('ZREM', KEYS[3], name) else redis.call('ZADD', KEYS[3], ends, name) end
redis.call('SET', KEYS[1], new .. document)
if ends ~= '' then redis.call('PEXPIREAT', KEYS[1], ends) end
if ARGV[6] ~= '1' then redis.call('ZREM', KEYS[5], name) end
-- Protected: a user without the right to publish still writes
if ARGV[5] ~= '' then redis.pcall('PUBLISH', ARGV[5] .. name, new .. document) end
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


POOL_SIZE = 10
PREFIX = "prefect_resilience"
LAST_MILLISECOND = 9e15
"""A document that expires later than this is kept forever: about the year 287,000."""

KEEPALIVE = {
    getattr(socket, option): value
    for option, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 2))
    if hasattr(socket, option)
}
"""In seconds, and a number of probes: a dead connection is found within 10 s."""


class RedisStore(ConnectedStore[Any]):
    """Documents as strings. Safe between threads, processes, and across a fork."""

    # ValueError: what is stored is no text, or another thread has closed the connection of a watch.
    errors: tuple[type[Exception], ...] = (redis.RedisError, ValueError)
    most: int = 1_000

    def __init__(self, parsed: StoreUrl) -> None:
        super().__init__(parsed.canonical)
        self._address = parsed.path
        self.seconds: float = parsed.seconds
        # The braces put all keys of the store into one slot, as scripts require.
        self._space = f"{{{parsed.options.get('prefix', PREFIX)}}}"
        # Each key has a channel. A channel belongs to all databases of the server.
        number = cast("Any", redis).connection.parse_url(parsed.path).get("db", 0)
        self.channels: str = f"{self._space}:news:{number}:"
        self._shared = [f"{self._space}:{name}" for name in ("names", "expiring", "version", "unclosed")]

    def load(self, key: str) -> Document | None:
        """The live document under `key`, or None."""
        name = self._name(check_key(key))
        held = self.using(lambda client: client.get(name))
        return None if held is None else _document(held, key)

    def now(self) -> float:
        """Seconds since the epoch by the server's clock."""
        seconds, micros = self.using(lambda client: client.time())
        return float(seconds) + float(micros) / 1e6

    def watch(self, prefix: str) -> RedisWatch:
        """Subscribe to the swaps that publish, over one connection. Raises StoreUnavailable."""
        return RedisWatch(self, prefix)

    def close(self) -> None:
        """Close the connections of this process."""
        self.closed = True
        if (client := self._let_go()) is not None:
            client.connection_pool.disconnect()

    def open_connections(self) -> Any:
        """A client with connections of its own."""
        is_local = self._address.startswith("unix:")
        pool = cast("Any", redis.BlockingConnectionPool).from_url(
            self._address,
            max_connections=POOL_SIZE,
            timeout=self.seconds,
            socket_timeout=self.seconds,
            socket_connect_timeout=self.seconds,
            **({} if is_local else {"socket_keepalive": True, "socket_keepalive_options": KEEPALIVE}),
            # A swap retried after a lost answer would find its own version and report that it lost.
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )
        return redis.Redis(connection_pool=pool)

    def _swap(self, asked: Swap) -> int:
        expires_at, ends = asked.expires_at, ""
        if expires_at is not None and expires_at * 1000 < LAST_MILLISECOND:
            ends = str(max(1, math.floor(expires_at * 1000)))
        document = f"{'-' if expires_at is None else repr(float(expires_at))} {asked.text}"
        channels, is_open = self.channels if asked.publish else "", "1" if asked.open else ""
        return int(self._run(SWAP, asked.key, str(asked.expected_version), document, ends, channels, is_open))

    def _delete(self, key: str, expected_version: int) -> bool:
        return self._run(DELETE, key, str(expected_version)) == b"1"

    def _run(self, text: str, key: str, *arguments: str) -> bytes:
        """The answer of a script that changes the document under `key`."""
        keys = [self._name(key), *self._shared]
        return self.using(lambda client: script(text)(keys, [key, *arguments], client))

    def _read(self, page: Page) -> tuple[Found, str | None]:
        names, held = self.using(self._page, page)
        keys = [name.decode() for name in names]
        entries = [(key, _document(text, key)) for key, text in zip(keys, held, strict=True) if text]
        return entries, keys[-1] if len(keys) == page.size else None

    def _page(self, client: Any, page: Page) -> tuple[list[bytes], list[bytes | None]]:
        """The names of a page, and their documents; None for an expired one."""
        low = (b"(" if page.beyond else b"[") + page.start.encode()
        # UTF-8 never contains the byte 255, so this bound is after all names that begin with the prefix.
        high = b"[" + page.prefix.encode() + b"\xff"
        names: list[bytes] | None = None
        if page.only_open:
            names = script(PAGE_OF_OPEN)(self._shared[2:], [low, high, page.size], client)
        if names is None:
            names = cast("list[bytes]", client.zrangebylex(self._shared[0], low, high, 0, page.size))
        return names, client.mget([self._name(name.decode()) for name in names]) if names else []

    def _name(self, key: str) -> str:
        return f"{self._space}:document:{key}"


class RedisWatch(ConnectedWatch[RedisStore]):
    """A subscription to the swaps of one store."""

    def _begin(self) -> None:
        self._connection = self._store.open_connections().pubsub()
        pattern = re.sub(r"([\\*?\[\]])", r"\\\1", self._store.channels + self._prefix)
        self._connection.psubscribe(pattern + "*")
        # What is published after Redis' confirmation arrives here.
        if self._connection.get_message(timeout=self._store.seconds) is None:
            raise redis.TimeoutError("the subscription was not confirmed")

    def _wait(self, seconds: float) -> list[News]:
        """The changes: waits for the first message, and returns all that have arrived."""
        if self.closed:
            raise redis.ConnectionError("the watch has been closed")
        news, message = list[News](), self._connection.get_message(timeout=seconds)
        while message is not None:
            news += self._news(message)
            message = self._connection.get_message(timeout=0)
        return news

    def _news(self, message: dict[str, Any]) -> list[News]:
        """The change that a swap published; none if the message is not ours."""
        channel, text = (message[part].decode(errors="replace") for part in ("channel", "data"))
        return news_of(channel.removeprefix(self._store.channels), text)


def _document(held: bytes, key: str) -> Document:
    try:
        return read_document(held.decode(), key)
    except ValueError:
        raise StoreUnavailable(f"the document under {key!r} is no longer in the store's format") from None


# -- durability settings of the server, which the doctor reads


class RedisFacts(NamedTuple):
    """Facts about a Redis server; None for a fact that the server does not tell."""

    policy: str | None = None
    appendonly: bool | None = None
    appendfsync: str | None = None
    role: str | None = None


def redis_facts(parsed: StoreUrl) -> RedisFacts:
    """Ask a Redis server by CONFIG and INFO; a managed service may forbid CONFIG."""

    def ask(client: Any) -> dict[str, Any]:
        answers: dict[str, Any] = {}
        questions = [(client.config_get, name) for name in ("maxmemory-policy", "appendonly", "appendfsync")]
        questions += [(client.info, name) for name in ("memory", "persistence", "replication")]
        for read, name in questions:
            with suppress(redis.ResponseError):  # forbidden or unknown at this service
                answers |= read(name)
        return answers

    with closing(RedisStore(parsed)) as store:
        facts = store.using(ask)
    appendonly = facts.get("appendonly", facts.get("aof_enabled"))
    return RedisFacts(
        policy=facts.get("maxmemory-policy") or facts.get("maxmemory_policy"),
        appendonly=None if appendonly is None else appendonly in ("yes", 1),
        appendfsync=facts.get("appendfsync"),
        role=facts.get("role"),
    )
