"""Watches whose connection ends, on real servers and files: StoreUnavailable, and a new watch hears again."""

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
import redis

from prefect_resilience.errors.exceptions import StoreUnavailable
from prefect_resilience.stores import open_store
from prefect_resilience.stores.base import Watch, WatchedStore
from prefect_resilience.stores.postgres import CHANNEL
from tests.operations.diagnosis.pooler import Pooler
from tests.stores.proxy import Proxy
from tests.stores_servers import PostgresServer, RedisServer, Server

pytestmark = pytest.mark.slow

TIMEOUT = 1.0
PATIENCE = 30.0


@pytest.fixture(params=["postgres", "redis"])
def server(request: pytest.FixtureRequest) -> Server:
    return request.getfixturevalue(f"own_{request.param}")


def opened(url: str) -> WatchedStore:
    store = open_store(url)
    assert isinstance(store, WatchedStore)
    return store


@pytest.fixture
def store(server: Server) -> Iterator[WatchedStore]:
    store = opened(server.url(timeout=TIMEOUT))
    yield store
    store.close()


def hears(watch: Watch, key: str) -> bool:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if any(news.key == key for news in watch.wait(1)):
            return True
    return False


def ended(watch: Watch, end: Callable[[], object]) -> None:
    """Assert that a thread that waits gets StoreUnavailable soon after `end`."""
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            while True:
                watch.wait(PATIENCE)
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    time.sleep(0.2)
    end()
    thread.join(PATIENCE / 2)
    assert [type(error) for error in caught] == [StoreUnavailable]


def test_a_lost_connection_ends_the_wait_and_a_new_watch_hears(server: Server, store: WatchedStore) -> None:
    watch = store.watch("a/")
    ended(watch, server.stop)
    with pytest.raises(StoreUnavailable):
        watch.wait(0)
    with pytest.raises(StoreUnavailable):
        store.watch("a/")
    watch.close()  # a connection that is gone can still be closed
    server.start()
    with closing(store.watch("a/")) as again:
        assert store.swap("a/1", 0, "back", publish=True)
        assert hears(again, "a/1")


def test_a_watch_closed_by_another_thread_ends_the_next_wait(store: WatchedStore) -> None:
    watch = store.watch("a/")
    assert watch.wait(0) == []
    watch.close()
    with pytest.raises(StoreUnavailable):
        watch.wait(0.1)
    watch.close()


def test_a_connection_cut_while_it_waits(server: Server) -> None:
    proxy = Proxy(server.port)
    store = opened(server.url(proxy.port, timeout=TIMEOUT))
    watch = store.watch("a/")
    ended(watch, proxy.close)
    watch.close()
    store.close()


def test_a_subscription_that_is_never_confirmed(own_redis: RedisServer) -> None:
    proxy = Proxy(own_redis.port)
    proxy.cut, proxy.marker = "never", b"SUBSCRIBE"
    with closing(opened(own_redis.url(proxy.port, timeout=TIMEOUT))) as store:
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match="not confirmed"):
            store.watch("a/")
        assert TIMEOUT / 2 < time.monotonic() - began < PATIENCE
        assert proxy.cuts == 1
        # The next one is.
        with closing(store.watch("a/")) as watch:
            store.swap("a/1", 0, 1, publish=True)
            assert hears(watch, "a/1")
    proxy.close()


def test_a_pooler_in_between_is_reported(own_postgres: PostgresServer) -> None:
    """A pooler in transaction mode would lose the messages without an error."""
    # The greeting is the last connection's, and no statement of a watch gets as far as that one.
    pooler = Pooler(own_postgres.port, 20)
    try:
        with (
            closing(opened(own_postgres.url(pooler.port, sslmode="disable"))) as store,
            pytest.raises(StoreUnavailable, match="LISTEN needs a connection without a pooler"),
        ):
            store.watch("a/")
    finally:
        pooler.close()


def assert_only_ours_is_heard(store: WatchedStore, watch: Watch) -> None:
    assert store.swap("a/2", 0, "ours", publish=True)
    heard = list[str]()
    while "a/2" not in heard:
        heard += [news.key for news in watch.wait(PATIENCE)]
    assert heard == ["a/2"]


def test_messages_of_other_programs_are_ignored(postgres_url: str) -> None:
    store = opened(postgres_url)
    with closing(store.watch("")) as watch, psycopg.connect(postgres_url, autocommit=True) as other:
        table = other.execute("SELECT CAST(to_regclass('prefect_resilience_documents') AS oid)").fetchone()
        assert table is not None
        for text in ("", "hello", "x a/1 1 - 1", "3 a/1 no version", "3 a/1 1 - not json"):
            payload = f"{table[0]} {text}" if text else ""
            other.execute("SELECT pg_notify(%s, %s)", [CHANNEL, payload])
        assert_only_ours_is_heard(store, watch)
    store.close()


def test_messages_of_other_programs_to_redis_are_ignored(redis_url: str, redis_server_url: str) -> None:
    store = opened(redis_url)
    prefix = redis_url.partition("prefix=")[2]
    with closing(store.watch("")) as watch, redis.Redis.from_url(redis_server_url) as other:
        for payload in (b"", b"hello", b"\xff", b"no version at all", b"1 - not json"):
            assert other.publish(f"{{{prefix}}}:news:0:a/1", payload) == 1
        assert_only_ours_is_heard(store, watch)
    store.close()


# -- SQLite


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def local(path: Path) -> Iterator[WatchedStore]:
    store = opened(f"sqlite:///{path}?timeout=0.3")
    yield store
    store.close()


def test_a_deleted_file_ends_the_wait_and_a_new_watch_hears(local: WatchedStore, path: Path) -> None:
    watch = local.watch("a/")

    def delete() -> None:
        for file in path.parent.iterdir():
            file.unlink()

    ended(watch, delete)
    watch.close()
    with closing(local.watch("a/")) as again:
        assert local.swap("a/1", 0, "new file", publish=True)
        assert hears(again, "a/1")


def test_changes_elsewhere_in_the_file_are_not_news(local: WatchedStore) -> None:
    with closing(local.watch("a/")) as watch:
        assert local.swap("b/1", 0, 1, publish=True)
        assert watch.wait(0.2) == []
        assert local.swap("a/1", 0, 1, publish=True)
        assert hears(watch, "a/1")


def test_the_last_prefix_of_all_is_watched_to_the_end(local: WatchedStore) -> None:
    """No string is after the strings that begin with the greatest code point."""
    with closing(local.watch("\U0010ffff")) as watch:
        assert local.swap("a", 0, 1, publish=True)
        assert local.swap("\U0010ffff\U0010ffff", 0, 1, publish=True)
        assert hears(watch, "\U0010ffff\U0010ffff")


@pytest.mark.parametrize("held", [0.1, None])
def test_a_locked_new_file_is_waited_for(path: Path, held: float | None) -> None:
    """The change to a write-ahead log does not wait by itself."""
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    # A transaction that reads: others read too, but the log cannot be changed.
    other.execute("CREATE TABLE theirs (id)")
    other.execute("BEGIN")
    other.execute("SELECT * FROM theirs").fetchall()
    with closing(open_store(f"sqlite:///{path}?timeout={0.2 if held is None else PATIENCE}")) as store:
        if held is None:
            with pytest.raises(StoreUnavailable, match="locked"):
                store.swap("key", 0, 1)
        else:
            release = threading.Timer(held, lambda: other.execute("COMMIT"))
            release.start()
            assert store.swap("key", 0, 1)
            release.join()
    other.close()
