"""The index of open documents in Redis: a sorted set, kept by the script that swaps a document.

Its members are "open <key>" and "in_doubt <key>", and marks. It is complete if it has the mark "complete",
and if every swap since that mark was made has kept it. A process with an older version does not keep it. So
the greatest version, which every swap writes, ends with KEPT only if the swap before did so too: a swap of an
older version ends this, and the index is not used until it is made anew. A server that evicts the index
evicts its mark, too.

The index is made page by page beside all other work. A mark "building <token>" lasts as long as every swap
keeps the index.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, cast
from uuid import uuid4

from redis.commands.core import Script

from prefect_resilience.stores.opened import OPEN_DOCUMENTS, PREFIXES, Which, indexes_of

KEPT = " "
"""Follows the greatest version. Lua's `tonumber` ignores spaces, also in scripts of an older version. Other
OPEN_DOCUMENTS need another number of spaces: then the index is made anew."""

NAMES_AT_ONCE = 500
PAUSE = 600.0
"""Seconds until a process tries again to make an index that a swap of an older version has ended."""

# Lines of the scripts that change a document: KEYS[4] is the greatest version, KEYS[5] the index.

START_IF_EMPTY = f"""
local greatest = redis.call('GET', KEYS[4])
if not greatest then
    greatest = '0'
    if redis.call('EXISTS', KEYS[2]) == 0 then
        greatest = '0{KEPT}'
        redis.call('ZADD', KEYS[5], 0, 'complete')
    end
end
local kept = string.match(greatest, ' *$') == '{KEPT}' and '{KEPT}' or ''
"""

REMOVE = f"""
local function forget(names)
    for _, which in ipairs({{{", ".join(map(repr, OPEN_DOCUMENTS))}}}) do
        local members = {{}}
        for place, name in ipairs(names) do members[place] = which .. ' ' .. name end
        redis.call('ZREM', KEYS[5], unpack(members))
    end
end
"""

# Keys: 1 the index, 2 the greatest version.

_PAGE = f"""
local greatest = redis.call('GET', KEYS[2])
if not greatest or string.match(greatest, ' *$') ~= '{KEPT}' then return false end
if not redis.call('ZSCORE', KEYS[1], 'complete') then return false end
return redis.call('ZRANGEBYLEX', KEYS[1], ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3])
"""

_BEGIN = f"""
local greatest = redis.call('GET', KEYS[2]) or '0'
if string.match(greatest, ' *$') ~= '{KEPT}' then
    redis.call('UNLINK', KEYS[1])
    redis.call('SET', KEYS[2], string.match(greatest, '%d+') .. '{KEPT}')
end
redis.call('ZADD', KEYS[1], 0, 'building ' .. ARGV[1])
"""

_FINISH = f"""
local greatest = redis.call('GET', KEYS[2])
if not greatest or string.match(greatest, ' *$') ~= '{KEPT}' then return 0 end
if redis.call('ZSCORE', KEYS[1], 'complete') then return 1 end
if not redis.call('ZSCORE', KEYS[1], 'building ' .. ARGV[1]) then return 0 end
redis.call('ZREMRANGEBYLEX', KEYS[1], '[building ', '[building!')
redis.call('ZADD', KEYS[1], 0, 'complete')
return 1
"""

# Keys: 1 the document, 2 the index. Arguments: the version that is not open, or 0, and the member.
_TIDY = """
local held = redis.call('GETRANGE', KEYS[1], 0, 19)
if (string.match(held, '^%d+') or '0') == ARGV[1] then redis.call('ZREM', KEYS[2], ARGV[2]) end
"""


@cache
def script(text: str) -> Any:
    """A script of Lua, to be called with keys, arguments and a client. Its digest is computed once."""
    return cast("Any", Script)(None, text.encode())


Ask = Callable[[Callable[[Any], Any]], Any]


class NotComplete(Exception):
    """The index cannot be used."""


class OpenNames:
    """Reads and makes the index of one store. `ask` runs a function with a client."""

    def __init__(self, ask: Ask, index: str, version: str, name: Callable[[str], str]) -> None:
        self._ask = ask
        self._keys = [index, version]
        self._name = name
        self._build_at = 0.0

    def page(
        self, client: Any, which: Which, low: bytes, high: bytes, size: int
    ) -> tuple[list[bytes], list[bytes | None]]:
        """Up to `size` members in order, and their documents; None for one that is not open.

        Raises NotComplete.
        """
        members: list[bytes] | None = script(_PAGE)(self._keys, [low, high, size], client)
        if members is None:
            raise NotComplete
        keys = [member[len(which) + 1 :].decode() for member in members]
        held: list[bytes | None] = client.mget([self._name(key) for key in keys]) if keys else []
        opened = [is_in(which, key, text) for key, text in zip(keys, held, strict=True)]
        for key, member, text, is_open in zip(keys, members, held, opened, strict=True):
            if not is_open:
                version = "0" if text is None else text.partition(b" ")[0]
                script(_TIDY)([self._name(key), self._keys[0]], [version, member], client)
        return members, [text if is_open else None for text, is_open in zip(held, opened, strict=True)]

    def build(self, page: Callable[..., tuple[list[bytes], list[bytes | None]]]) -> bool:
        """Make the index from pages of all documents. False if a swap did not keep it meanwhile."""
        if time.monotonic() < self._build_at:
            return False
        token = uuid4().hex
        self._ask(lambda client: script(_BEGIN)(self._keys, [token], client))
        for prefix in PREFIXES:
            self._add(page, prefix)
        done = self._ask(lambda client: script(_FINISH)(self._keys, [token], client)) == 1
        if not done:
            self._build_at = time.monotonic() + PAUSE
        return done

    def _add(self, page: Callable[..., tuple[list[bytes], list[bytes | None]]], prefix: str) -> None:
        low, high = b"[" + prefix.encode(), b"[" + prefix.encode() + b"\xff"

        def read_on(client: Any) -> list[bytes]:
            names, held = page(client, low, high, NAMES_AT_ONCE)
            if members := _members(names, held):
                client.zadd(self._keys[0], dict.fromkeys(members, 0))
            return names

        while names := self._ask(read_on):
            low = b"(" + names[-1]


def is_in(which: Which, key: str, held: bytes | None) -> bool:
    """Whether an index has a document, which may not exist."""
    return held is not None and indexes_of(key, held.decode()).get(which, False)


def _members(names: Sequence[bytes], held: Sequence[bytes | None]) -> list[str]:
    found = [(name.decode(), text.decode()) for name, text in zip(names, held, strict=True) if text]
    return [f"{which} {key}" for key, text in found for which, has in indexes_of(key, text).items() if has]
