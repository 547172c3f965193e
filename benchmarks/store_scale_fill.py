"""Fills a store with documents of the true form, faster than calls could: through the driver, in bulk."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Any, cast

import psycopg
import redis

from benchmarks.dead_letters import fill as bury
from prefect_resilience import open_store
from prefect_resilience.durable.effects.ledger import PREFIX, Ledger, place_of
from prefect_resilience.durable.effects.model import Succeeded
from prefect_resilience.durable.effects.opening import batch_place, new_batch
from prefect_resilience.durable.letters.claims import ENTRY, entry_key
from prefect_resilience.durable.letters.queue import DeadLetterQueue, new_id
from prefect_resilience.stores import MemoryStore
from prefect_resilience.stores.base import Store
from prefect_resilience.stores.sql import TABLE

Row = tuple[str, str, float | None]
"""A key, its JSON and its expiry."""

YEAR = 365 * 86_400.0
PIECE = 5_000
DOUBTS = 20
"""So many letters and effects, spread over all of them, are in doubt."""


def fill(store: Store, rows: Iterable[Row]) -> None:
    """Write documents that do not exist yet."""
    scheme = store.url.partition(":")[0]
    {"sqlite": _sqlite, "postgresql": _postgres, "redis": _redis}[scheme](cast("Any", store), rows)


def _sqlite(store: Any, rows: Iterable[Row]) -> None:
    def insert(connection: Any) -> None:
        connection.execute("PRAGMA synchronous=OFF")
        connection.execute("BEGIN")
        connection.executemany(
            f"INSERT INTO {TABLE} (key, version, value, expires_at, closed) VALUES (?, 1, ?, ?, ?)",
            ((*row, None if _is_open(row) else 1) for row in rows),
        )
        connection.execute("COMMIT")
        # One transaction of a million rows leaves a log that no program of ours would have.
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA synchronous=FULL")

    store.using(insert)


def _postgres(store: Any, rows: Iterable[Row]) -> None:
    store.load("any")  # the schema exists
    with psycopg.connect(store._path, autocommit=True) as connection:
        columns = "key, version, value, expires_at, closed"
        with connection.cursor().copy(f"COPY {TABLE} ({columns}) FROM STDIN") as copy:
            for row in rows:
                key, text, expires_at = row
                copy.write_row((key, 1, text, expires_at, None if _is_open(row) else 1))
        connection.execute(f"VACUUM ANALYZE {TABLE}")


def _redis(store: Any, rows: Iterable[Row]) -> None:
    names, expiring, version, unclosed = store._shared
    with redis.Redis.from_url(store._address, socket_timeout=60) as client:
        client.set(version, "1  ")  # every swap has kept the set of open documents
        iterator = iter(rows)
        while piece := [*islice(iterator, PIECE)]:
            with client.pipeline(transaction=False) as pipe:
                pipe.mset(
                    {store._name(key): f"1 {'-' if at is None else at} {text}" for key, text, at in piece}
                )
                pipe.zadd(names, {key: 0 for key, _, _ in piece})
                if opened := {row[0]: 0 for row in piece if _is_open(row)}:
                    pipe.zadd(unclosed, opened)
                for key, _, at in piece:
                    if at is not None:
                        pipe.zadd(expiring, {key: at * 1000})
                        pipe.pexpireat(store._name(key), int(at * 1000))
                pipe.execute()


def _is_open(row: Row) -> bool:
    key, text, _ = row
    if key.startswith(PREFIX):
        return '"state":"done"' not in text
    return key.startswith(ENTRY) and not text.startswith('{"status":"replayed"')


# -- letters


def letters(number: int, start: int = 0) -> Iterator[Row]:
    """Entries of letters, spread over the year before now, in the order of their keys: the newest first.

    9 of 10 are replayed, a few in doubt, the others wait.
    """
    store = open_store("memory://")
    queue = DeadLetterQueue(store)
    bury(queue, 1)
    like = next(queue.letters())
    text = json.dumps(store.load(entry_key(like.id)).value, separators=(",", ":"))  # type: ignore[union-attr]
    made = json.dumps(like.model_dump(mode="json")["created_at"])
    now = time.time()
    every = max(1, number // DOUBTS)
    for one in range(start, number):
        at = now - 60 - one * (YEAR / number)
        letter_id = new_id(at, one)
        status = "in_doubt" if one % every == every - 1 else "" if one % 10 == 9 else "replayed"
        mine = text.replace(like.id, letter_id).replace(made, json.dumps(_iso(at)))
        if status:
            mine = f'{{"status":"{status}","settled_at":{json.dumps(_iso(at))},{mine[1:]}'
        yield entry_key(letter_id), mine, None


def letter_at(number: int, place: int) -> str:
    """The id of the letter at a place among `number` letters; the last bits may differ."""
    return new_id(time.time() - 60 - place * (YEAR / number), place)


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")


# -- effects


def effects_of(batch: str, number: int) -> Iterator[Row]:
    """The effects of one batch, and its document: all done but a few in doubt."""
    done, doubt = _templates()
    every = max(1, number // DOUBTS)
    now = time.time()
    for one in range(number):
        key = f"send-{one:08}"
        text = doubt if one % every == every - 1 else done
        yield place_of(batch, key), _dated(text, batch, key, now - number + one), None
    document = {**new_batch(batch), "created": {"process": number}}
    yield batch_place(batch), json.dumps(document, separators=(",", ":")), None


def batches(number: int) -> Iterator[Row]:
    """So many batches of one effect: all done but a few in doubt."""
    done, doubt = _templates()
    every = max(1, number // DOUBTS)
    now = time.time()
    for one in range(number):
        batch, text = batch_at(one), doubt if one % every == every - 1 else done
        yield place_of(batch, "send"), _dated(text, batch, "send", now - YEAR + one * (YEAR / number)), None


def batch_at(place: int) -> str:
    return f"{place:08}-0000-4000-8000-000000000000"


def _templates() -> tuple[str, str]:
    """The JSON of an effect that is done, and of one in doubt."""
    ledger = Ledger(MemoryStore())  # one that no earlier fill has used
    about = {
        **{"batch": "BATCH", "key": "KEY", "task": "shop.orders.send", "flow": "orders"},
        "flow_run_id": "00000000-0000-4000-8000-000000000000",
        "task_run_id": "00000000-0000-4000-8000-000000000001",
    }
    place = place_of("BATCH", "KEY")
    ledger.intend(place, "CLAIM", "external", about)
    found = ledger.store.load(place)
    doubt = json.dumps(found.value, separators=(",", ":"))  # type: ignore[union-attr]
    ledger.report(place, Succeeded("CLAIM", {"json": {"receipt": "r-00000001"}}, "ext-1"))
    found = ledger.store.load(place)
    done = json.dumps(found.value, separators=(",", ":"))  # type: ignore[union-attr]
    return done, doubt


def _dated(text: str, batch: str, key: str, at: float) -> str:
    value = text.replace('"BATCH"', json.dumps(batch)).replace('"KEY"', json.dumps(key))
    # Times are numbers of 17 digits; replacing them by a parser would be ten times slower.
    for name in ("first_at", "intended_at", "settled_at"):
        head, mark, rest = value.partition(f'"{name}":')
        ends = min(place for place in (rest.find(","), rest.find("}")) if place >= 0)
        if mark and rest[:4] != "null":
            value = f"{head}{mark}{at:.3f}{rest[ends:]}"
    return value


# -- expired documents


def expired(number: int) -> Iterator[Row]:
    """Documents whose time is over, before one that lives."""
    past = time.time() - 10_000
    for one in range(number):
        yield f"leases/{one:09}", '{"owner":"gone"}', past
    yield "leases/living", '{"owner":"here"}', None
