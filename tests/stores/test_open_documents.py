"""Open documents are listed without the others, and pages go on where the last one ended."""

import itertools
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import psycopg
import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prefect_resilience.durable.effects.ledger import PREFIX, is_open
from prefect_resilience.durable.effects.model import EffectState
from prefect_resilience.durable.letters.claims import ENTRY
from prefect_resilience.durable.letters.model import STATUSES
from prefect_resilience.durable.letters.queue import OPEN as OPEN_LETTERS
from prefect_resilience.durable.letters.queue import _is_open
from prefect_resilience.stores import open_store
from prefect_resilience.stores.base import change, scan_all, write
from prefect_resilience.stores.connected import Page, encode
from prefect_resilience.stores.postgres import PostgresStore
from prefect_resilience.stores.sql import OPEN, TABLE, SqlStore
from prefect_resilience.stores.sqlite import SqliteStore

OLD_SCRIPT = Path(__file__).parent / "redis_swap_0_2.lua"

EVERY = pytest.mark.parametrize("url", ["memory", "sqlite", "postgres", "redis"], indirect=True)


class OldProcess:
    """Writes documents with the statements of version 0.2, which name their columns."""

    def __init__(self, url: str) -> None:
        self.kind = url.partition(":")[0]
        if self.kind == "redis":
            self.client: Any = redis.Redis.from_url(url.partition("?")[0])
            self.space = f"{{{url.partition('prefix=')[2]}}}"
            self.script = self.client.register_script(OLD_SCRIPT.read_text())
        elif self.kind == "sqlite":
            self.client = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        else:
            self.client = psycopg.connect(url, autocommit=True)

    def swap(self, key: str, expected: int, value: Any) -> int:
        text = encode(value)
        if self.kind == "redis":
            keys = [f"{self.space}:{name}" for name in (f"document:{key}", "names", "expiring", "version")]
            return int(self.script(keys, [key, str(expected), "-", text, ""]))
        sign = "?" if self.kind == "sqlite" else "%s"
        if expected:
            statement = f"UPDATE {TABLE} SET version = {sign}, value = {sign} WHERE key = {sign}"
            self.client.execute(statement, (expected + 1, text, key))
        else:
            statement = f"INSERT INTO {TABLE} (key, version, value, expires_at) VALUES"
            self.client.execute(f"{statement} ({sign}, {sign}, {sign}, NULL)", (key, 1, text))
        return expected + 1

    def create_schema(self) -> None:
        creation = {"sqlite": SqliteStore.creation, "postgresql": PostgresStore.creation}.get(self.kind, ())
        for statement in creation:
            if OPEN not in statement:
                self.client.execute(statement.replace(", closed BIGINT", ""))


@pytest.fixture
def old() -> Iterator[Callable[[str], OldProcess]]:
    processes: list[OldProcess] = []

    def start(url: str) -> OldProcess:
        processes.append(OldProcess(url))
        return processes[-1]

    yield start
    for process in processes:
        process.client.close()


def open_keys(store: Any, prefix: str = "") -> list[str]:
    return [key for key, _ in scan_all(store, prefix, only_open=True)]


def test_what_is_open_among_effects_and_letters() -> None:
    ended = [state for state in get_args(EffectState) if not is_open({"state": state})]
    assert sorted(ended) == ["compensated", "done"]
    assert [status for status in STATUSES if _is_open({"status": status})] == [
        status for status in STATUSES if status in OPEN_LETTERS
    ]
    assert _is_open({})  # the default is not stored


@EVERY
def test_what_is_open_is_listed_until_it_is_written_otherwise(store: Any) -> None:
    keys = [f"{ENTRY}{number}" for number in range(6)]
    versions = [write(store, key, 0, {}, number % 2 == 0) for number, key in enumerate(keys)]
    assert open_keys(store, ENTRY) == keys[::2]
    assert open_keys(store, PREFIX) == []
    change(store, keys[0], lambda value: {**value, "status": "settled"}, is_open=_is_open)
    change(store, keys[1], lambda value: {**value, "id": "x"}, is_open=_is_open)
    assert open_keys(store, ENTRY) == [keys[1], keys[2], keys[4]]
    assert store.delete(keys[2], versions[2])
    assert store.swap(keys[4], versions[4], {}, store.now() - 1) > 0
    assert open_keys(store, ENTRY) == [keys[1]]
    assert write(store, keys[2], 0, {}, False)
    assert open_keys(store) == [keys[1]]


def test_a_store_of_an_older_version_goes_on(url: str, old: Callable[[str], OldProcess]) -> None:
    process = old(url)
    process.create_schema()
    for number in range(4):
        process.swap(f"{ENTRY}{number}", 0, {"status": "replayed"} if number % 2 else {})
    store: Any = open_store(url)
    assert set(open_keys(store, ENTRY)) >= {f"{ENTRY}0", f"{ENTRY}2"}
    write(store, f"{ENTRY}4", 0, {}, True)
    closed = write(store, f"{ENTRY}5", 0, {"status": "settled"}, False)
    assert set(open_keys(store, ENTRY)) >= {f"{ENTRY}0", f"{ENTRY}2", f"{ENTRY}4"}
    # Both go on with what the other wrote.
    process.swap(f"{ENTRY}5", closed, {})
    assert f"{ENTRY}5" in open_keys(store, ENTRY)
    found = store.load(f"{ENTRY}0")
    assert write(store, f"{ENTRY}0", found.version, {"status": "settled"}, False)
    assert {f"{ENTRY}2", f"{ENTRY}4", f"{ENTRY}5"} <= set(open_keys(store, ENTRY))
    if process.kind != "redis":  # there, everything is read from then on
        assert f"{ENTRY}0" not in open_keys(store, ENTRY)
    store.close()


@pytest.mark.parametrize("url", ["sqlite", "postgres"], indirect=True)
def test_the_plan_names_the_index(url: str, store: Any) -> None:
    for number in range(300):
        write(store, f"{ENTRY}{number:06}", 0, {}, number % 100 == 0)
    explain = "EXPLAIN QUERY PLAN " if url.startswith("sqlite") else "EXPLAIN "

    def plan(connection: Any) -> str:
        page = Page(ENTRY, ENTRY, beyond=False, size=20, only_open=True)
        with pytest.MonkeyPatch.context() as patch:
            run = store.execute
            patch.setattr(store, "execute", lambda on, text, **values: run(on, explain + text, **values))
            before = str(store._rows(connection, page))
            connection.execute(f"ANALYZE {TABLE}")
            return before + str(store._rows(connection, page))

    assert store.using(plan).count(OPEN) == 2


_numbers = itertools.count()


@pytest.fixture
def steps(store: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """The statements or commands of the last scan."""
    taken: list[Any] = []
    using = store.using
    monkeypatch.setattr(store, "using", lambda *a: taken.append(1) or using(*a))

    def count() -> int:
        number = len(taken)
        taken.clear()
        return number

    return count


def ended(store: Any, prefix: str, number: int) -> None:
    soon = store.now() + 0.5
    for one in range(number):
        assert store.swap(f"{prefix}{one:05}", 0, {}, soon)
    while store.now() <= soon:
        time.sleep(0.05)


def test_a_page_behind_them_takes_few_steps(store: Any, steps: Callable[[], int]) -> None:
    few = {"a": 300, "b": 600}
    for prefix, number in few.items():
        ended(store, f"many/{prefix}/", number)
        store._purge_at = 1e18  # of those that purge
    assert store.swap("many/c", 0, "lives")
    steps()
    assert [document.value for _, document in store.scan("many/", limit=1)] == ["lives"]
    # 1, 8, 64, ... rows or names: not one at a time
    assert steps() <= 6
    assert store.scan("many/a/", limit=5) == []


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lives=st.lists(st.booleans(), min_size=1, max_size=25),
    limit=st.integers(1, 6),
    most=st.sampled_from([2, 7]),
)
def test_pages_have_every_living_document_once(store: Any, lives: list[bool], limit: int, most: int) -> None:
    prefix = f"each/{next(_numbers)}/"
    past = store.now() - 10
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "most", most)
        for number, alive in enumerate(lives):
            store.swap(f"{prefix}{number:03}", 0, number, None if alive else past)
        found, after = list[int](), None
        while page := store.scan(prefix, after, limit):
            assert len(page) <= limit
            found += [document.value for _, document in page]
            after = page[-1][0]
    wanted = [number for number, alive in enumerate(lives) if alive]
    assert found == wanted == [document.value for _, document in scan_all(store, prefix)]


KEYS = 3_000
PAGE = 100


@pytest.mark.slow
def test_the_last_page_of_sqlite_costs_what_the_first_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'many.db'}")
    assert isinstance(store, SqlStore)
    for number in range(KEYS):
        assert store.swap(f"item/{number:06}", 0, {})
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    def counted(connection: sqlite3.Connection, _: Any = None) -> list[tuple[int]]:
        connection.set_progress_handler(step, 10)
        return [(0,)]

    store.using(counted)
    costs: list[int] = []
    after = None
    while page := store.scan("item/", after, PAGE):
        costs.append(steps)
        steps, after = 0, page[-1][0]
    assert len(costs) == KEYS // PAGE
    assert costs[0] > 0
    assert max(costs) <= 2 * costs[0]
