"""Stores on real servers and files that are away or refuse to write: an error within a bounded time."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from prefect_resilience.errors.exceptions import StoreUnavailable
from prefect_resilience.stores import Store, open_store, parse_url
from prefect_resilience.stores.postgres import FRESH_SECONDS, postgres_facts
from prefect_resilience.stores.redis import redis_facts
from prefect_resilience.testing.stores import in_threads
from tests.stores.proxy import Proxy
from tests.stores_servers import RedisServer, Server

pytestmark = pytest.mark.slow

TIMEOUT = 1.0
BOUND = TIMEOUT + 2 + 8
"""Seconds; the last eight are for a busy machine."""
SLOW = 15.0


@pytest.fixture(params=["postgres", "redis"])
def server(request: pytest.FixtureRequest) -> Server:
    return request.getfixturevalue(f"own_{request.param}")


@pytest.fixture
def store(server: Server) -> Iterator[Store]:
    store = open_store(server.url(timeout=TIMEOUT))
    yield store
    store.close()


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    proxy = Proxy(server.port)
    yield proxy
    proxy.close()


@pytest.fixture
def behind(server: Server, proxy: Proxy) -> Iterator[Store]:
    """The store on the other side of the proxy."""
    store = open_store(server.url(proxy.port, timeout=TIMEOUT))
    yield store
    store.close()


def operations(store: Store, version: int) -> list[Callable[[], Any]]:
    return [
        lambda: store.load("key"),
        lambda: store.swap("key", version, "lost"),
        lambda: store.delete("key", version),
        lambda: store.scan("k"),
        store.now,
    ]


def is_unavailable(operation: Callable[[], Any], match: str | None = None) -> None:
    """Assert it, and that it took a bounded time."""
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match=match):
        operation()
    assert time.monotonic() - began < BOUND


def value(store: Store) -> Any:
    found = store.load("key")
    return None if found is None else found.value


def test_a_server_that_stopped_is_unavailable_until_it_is_back(server: Server, store: Store) -> None:
    version = store.swap("key", 0, "kept")
    server.stop()
    for operation in operations(store, version):
        is_unavailable(operation)
    server.start()
    assert value(store) == "kept"
    assert store.swap("key", version, "on") > version


def test_a_server_that_restarted_meanwhile_is_not_even_noticed(server: Server, store: Store) -> None:
    version = store.swap("key", 0, "kept")
    server.stop()
    server.start()
    time.sleep(FRESH_SECONDS)
    assert store.swap("key", version, "on") > version


def test_an_emptied_database_is_used_empty(server: Server, store: Store) -> None:
    """Emptied under open connections, which is noticed by at most one operation."""
    version = store.swap("key", 0, "lost")
    if isinstance(server, RedisServer):
        server.client().execute_command("FLUSHALL")
        server.client().execute_command("SCRIPT", "FLUSH")
    else:
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        is_unavailable(lambda: store.load("key"), "does not exist")
    assert store.load("key") is None
    assert store.swap("key", 0, "new") > version


@pytest.mark.parametrize("connected", [True, False])
def test_a_slow_server_is_unavailable_after_a_bounded_wait(
    server: Server, store: Store, proxy: Proxy, behind: Store, connected: bool
) -> None:
    version = store.swap("key", 0, "kept")
    if connected:
        assert value(behind) == "kept"
    proxy.delay = SLOW
    for operation in operations(behind, version)[:2]:
        is_unavailable(operation)
    proxy.delay = 0
    assert value(behind) in ("kept", "lost")
    found = behind.load("key")
    assert found is not None
    assert behind.swap("key", found.version, "on")


@pytest.mark.parametrize("cut", ["before", "after"])
def test_a_connection_cut_in_the_middle_of_a_swap_leaves_the_truth_to_the_next_load(
    server: Server, proxy: Proxy, behind: Store, cut: str
) -> None:
    version = behind.swap("key", 0, "old")
    proxy.cut, proxy.marker = cut, b"EVALSHA" if isinstance(server, RedisServer) else b"UPDATE prefect"
    is_unavailable(lambda: behind.swap("key", version, "new"))
    assert proxy.cuts == 1
    found = behind.load("key")
    assert found is not None
    assert found.value == ("old" if cut == "before" else "new")
    assert (found.version == version) is (cut == "before")
    assert behind.swap("key", found.version, "on")


def test_a_crash_under_many_writers_loses_nothing_that_was_confirmed(server: Server, store: Store) -> None:
    stop = threading.Event()

    def write() -> int:
        confirmed = 0
        mine = f"count/{threading.get_ident()}"
        while not stop.is_set():
            try:
                found = store.load(mine)
                held = found.value if found else 0
                assert held >= confirmed
                if store.swap(mine, found.version if found else 0, held + 1):
                    confirmed = held + 1
            except StoreUnavailable:
                time.sleep(0.02)
        return confirmed

    def crash() -> None:
        for _ in range(2):
            time.sleep(0.4)
            server.stop()
            server.start()
        time.sleep(0.4)
        stop.set()

    crasher = threading.Thread(target=crash)
    crasher.start()
    confirmed = in_threads(write, 4)
    crasher.join()
    held = [document.value for _, document in store.scan("count/")]
    assert min(confirmed) > 0
    assert sum(held) >= sum(confirmed)


def test_the_settings_of_a_server_that_is_away_are_unavailable(server: Server) -> None:
    parsed = parse_url(server.url(timeout=TIMEOUT))
    facts = redis_facts if isinstance(server, RedisServer) else postgres_facts
    facts(parsed)
    server.stop()
    is_unavailable(lambda: facts(parsed))


@pytest.mark.parametrize(
    ("begin", "end", "says"),
    [
        ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE", "(?i)read.?only"),
        ("CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0", "(?i)replicas"),
        ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0", "(?i)memory"),
    ],
)
def test_a_redis_that_does_not_write_is_unavailable_and_nothing_has_changed(
    own_redis: RedisServer, begin: str, end: str, says: str
) -> None:
    store = open_store(own_redis.url())
    version = store.swap("key", 0, "kept")
    own_redis.client().execute_command(*begin.split())
    for operation in (lambda: store.swap("key", version, 1), lambda: store.swap("other", 0, 1)):
        with pytest.raises(StoreUnavailable, match=says):
            operation()
    assert [(key, found.value) for key, found in store.scan("")] == [("key", "kept")]
    own_redis.client().execute_command(*end.split())
    assert store.swap("key", version, "on")
    assert store.swap("other", 0, 1)


def wait_for_free_rows(connection: psycopg.Connection) -> None:
    """Wait until no statement of this server waits for a row."""
    deadline = time.monotonic() + 30
    while connection.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'").fetchone():
        assert time.monotonic() < deadline, "the server still waits for a row"
        time.sleep(0.02)


def test_a_row_that_another_session_holds_is_waited_for_a_bounded_time(postgres_url: str) -> None:
    """A swap that was given up does not happen later, when the row is free again."""
    store = open_store(f"{postgres_url}&timeout=0.5")
    version = store.swap("key", 0, 1)
    with psycopg.connect(postgres_url) as holder:
        holder.execute("SELECT * FROM prefect_resilience_documents FOR UPDATE")
        began = time.monotonic()
        with pytest.raises(StoreUnavailable):
            store.swap("key", version, 2)
        assert 0.3 < time.monotonic() - began < 30
        found = store.load("key")
        assert found is not None
        assert found.value == 1
        wait_for_free_rows(holder)
    assert store.swap("key", version, 3)


def test_no_message_names_the_password(own_redis: RedisServer) -> None:
    own_redis.client().execute_command("CONFIG", "SET", "requirepass", "right-one")
    urls = [
        own_redis.url().replace("://", "://:hunter2hunter2@"),
        own_redis.url(password="hunter2hunter2"),
        "postgresql://me:hunter2hunter2@127.0.0.1:1/db",
        "postgresql://127.0.0.1:1/db?user=me&password=hunter2hunter2",
        "redis://me:p%40hunter2hunter2@127.0.0.1:1/0",
        "sqlite:////proc/password=hunter2hunter2/store.db",
    ]
    for url in urls:
        store = open_store(url)
        with pytest.raises(StoreUnavailable) as caught:
            store.load("key")
        store.close()
        with pytest.raises(StoreUnavailable) as closed:
            store.load("key")
        for error in (caught.value, closed.value):
            assert "hunter2" not in str(error)
    assert open_store(own_redis.url().replace("://", "://:right-one@")).swap("key", 0, 1)
