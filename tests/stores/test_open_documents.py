"""The index of open documents: complete, small, made by itself in an old store, and not needed.

test_open_in_redis.py has that of Redis with processes of an older version.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prefect_resilience.durable.effects.ledger import PREFIX
from prefect_resilience.durable.effects.model import EffectState
from prefect_resilience.durable.letters.claims import ENTRY
from prefect_resilience.durable.letters.model import STATUSES
from prefect_resilience.durable.letters.queue import OPEN as OPEN_LETTERS
from prefect_resilience.stores import MemoryStore, open_store, postgres, sqlite
from prefect_resilience.stores.base import encode
from prefect_resilience.stores.opened import OPEN_DOCUMENTS, IndexedStore, scan_open
from prefect_resilience.stores.sql import INDEXES, TABLE, creating_indexes

ENDED = ("done", "compensated")


Open = Callable[[], Any]


@pytest.fixture(params=["sqlite", "postgres"])
def sql_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    is_sqlite = request.param == "sqlite"
    return f"sqlite:///{tmp_path}/store.db" if is_sqlite else request.getfixturevalue("postgres_url")


@pytest.fixture
def opened(sql_url: str) -> Iterator[Open]:
    yield from opening(sql_url)


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def indexed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    is_sqlite = request.param == "sqlite"
    yield from opening(
        f"sqlite:///{tmp_path}/store.db" if is_sqlite else request.getfixturevalue(f"{request.param}_url")
    )


def opening(url: str) -> Iterator[Open]:
    stores: list[Any] = []

    def make() -> Any:
        stores.append(open_store(url))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


def drop_index(store: Any) -> None:
    """The store as a version before the index left it."""
    for index in INDEXES.values():
        store._using(lambda connection, index=index: connection.execute(f"DROP INDEX {index}"))
    store.close()


def fill(store: Any) -> set[str]:
    """Effects and letters in every state; the keys of those that are open."""
    found = set[str]()
    for number, state in enumerate(get_args(EffectState)):
        key = f"{PREFIX}batch/{number}"
        store.swap(key, 0, {"batch": "batch", "state": state, "result": None})
        found |= set() if state in ENDED else {key}
    for number, status in enumerate(STATUSES):
        key = f"{ENTRY}{number}"
        store.swap(key, 0, {"id": "x"} if status == "waiting" else {"status": status, "id": "x"})
        found |= {key} if status in OPEN_LETTERS else set()
    for key in ("effects-batch/x", "dead-letter-contents:x", "effects", "circuit/x"):
        store.swap(key, 0, {"state": "intended"})
    return found


def open_keys(store: Any) -> set[str]:
    return {key for prefix in (PREFIX, ENTRY) for key, _ in scan_open(store, prefix)}


def test_the_index_knows_every_state_of_the_ledger_and_of_letters() -> None:
    effects, letters = OPEN_DOCUMENTS["open"]
    (doubtful,) = OPEN_DOCUMENTS["in_doubt"]
    states = [state for state in get_args(EffectState) if state not in ENDED]
    assert (effects.prefix, letters.prefix, doubtful.prefix) == (PREFIX, ENTRY, ENTRY)
    assert sorted(effects.any_of) == sorted(encode({"state": state})[1:-1] for state in states)
    settled = [encode({"status": one})[1:-1] for one in STATUSES if one not in OPEN_LETTERS]
    assert sorted(letters.none_of) == sorted(settled)
    doubts = OPEN_LETTERS - {"waiting"}
    assert sorted(doubtful.any_of) == sorted(encode({"status": one})[1:-1] for one in doubts)


def test_what_is_open_is_found(indexed: Open) -> None:
    store = indexed()
    wanted = fill(store)
    assert isinstance(store, IndexedStore)
    assert open_keys(store) == wanted
    doubts = [found.value["status"] for _, found in scan_open(store, ENTRY, which="in_doubt")]
    assert sorted(doubts) == ["in_doubt", "replaying"]
    for key in wanted:  # all of it is settled
        name = "state" if key.startswith(PREFIX) else "status"
        ended = "done" if name == "state" else "replayed"
        found = store.load(key)
        assert store.swap(key, found.version, {**found.value, name: ended})
    assert open_keys(store) == set()


def test_pages_of_what_is_open(indexed: Open) -> None:
    store = indexed()
    for number in range(30):
        store.swap(f"{ENTRY}{number:02}", 0, {"status": "settled"} if number % 3 else {})
    first = store.scan_open(ENTRY, None, 4)
    assert [key for key, _ in first] == [f"{ENTRY}{number:02}" for number in (0, 3, 6, 9)]
    assert store.scan_open(ENTRY, first[-1][0], 4)[0][0] == f"{ENTRY}12"
    assert store.scan_open(ENTRY, limit=0) == []
    version = store.load(f"{ENTRY}00").version
    assert store.delete(f"{ENTRY}00", version)
    assert store.scan_open(ENTRY, None, 1)[0][0] == f"{ENTRY}03"


texts = st.sampled_from(['"state":"intended"', '"status":"replayed"', '\\"status\\":\\"settled\\"', "plain"])


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=texts, nested=st.dictionaries(texts, texts, max_size=2), state=st.sampled_from(["intended", "done"])
)
def test_no_text_in_a_document_hides_what_is_open(
    tmp_path: Path, text: str, nested: dict[str, str], state: str
) -> None:
    store = open_store(f"sqlite:///{tmp_path}/{abs(hash((text, str(nested), state)))}.db")
    store.swap(f"{PREFIX}b/1", 0, {"note": text, "result": nested, "state": state})
    store.swap(f"{ENTRY}1", 0, {"message": text, "left": nested})
    found = open_keys(store)
    assert f"{ENTRY}1" in found
    assert (f"{PREFIX}b/1" in found) is (state == "intended")
    store.close()


def test_an_old_store_gets_the_index_when_a_process_opens_it(opened: Open) -> None:
    store = opened()
    wanted = fill(store)
    drop_index(store)
    later = opened()
    assert open_keys(later) == wanted
    assert later._dialect.indexed


def test_a_large_old_store_is_read_without_the_index(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened()
    wanted = fill(store)
    drop_index(store)
    for module in (sqlite, postgres):
        monkeypatch.setattr(module, "SMALL", 0)
    later = opened()
    assert open_keys(later) > wanted
    assert not later._dialect.indexed
    # A person creates them.
    for statement in creating_indexes(later._dialect.contains):
        later._using(lambda connection, statement=statement: connection.execute(statement))
    later.close()
    assert open_keys(opened()) == wanted


def test_the_index_is_named_by_the_plan(opened: Open) -> None:
    store = opened()
    for number in range(3_000):
        store.swap(f"{ENTRY}{number:06}", 0, {"status": "replayed"} if number % 1000 else {})
    is_sqlite = store.url.startswith("sqlite")
    explain = "EXPLAIN QUERY PLAN " if is_sqlite else "EXPLAIN "

    def plan(connection: Any) -> str:
        connection.execute(f"ANALYZE {TABLE}")
        query = (
            f"{explain}{store._select_open['open']}> '{ENTRY}' AND key < 'dead-letter;' ORDER BY key LIMIT 20"
        )
        return str(connection.execute(query).fetchall())

    assert INDEXES["open"] in store._using(plan)


def test_another_store_is_scanned() -> None:
    store = MemoryStore()
    wanted = fill(store)
    assert open_keys(store) > wanted


def test_a_locked_old_file_is_read_without_the_index(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/store.db")
    wanted = fill(store)
    drop_index(store)
    with sqlite3.connect(tmp_path / "store.db", isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        waiting: Any = open_store(f"sqlite:///{tmp_path}/store.db?timeout=0.1")
        assert open_keys(waiting) > wanted
        other.execute("COMMIT")
        waiting.close()
    later: Any = open_store(f"sqlite:///{tmp_path}/store.db")
    assert open_keys(later) == wanted
    later.close()


def test_an_index_that_another_process_makes_is_not_waited_for(postgres_url: str) -> None:
    store: Any = open_store(postgres_url)
    wanted = fill(store)
    drop_index(store)
    with psycopg.connect(postgres_url) as other:
        other.execute("SELECT pg_advisory_xact_lock(%s)", [postgres.LOCK])
        waiting: Any = open_store(postgres_url)
        assert open_keys(waiting) > wanted
        waiting.close()
    later: Any = open_store(postgres_url)
    assert open_keys(later) == wanted
    later.close()
