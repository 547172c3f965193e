"""Stores that answer but will not write: read-only, locked, full, or with the wrong password."""

import time

import psycopg
import pytest

from prefect_resilience.errors.exceptions import StoreUnavailable
from prefect_resilience.stores import open_store
from tests.stores_servers import RedisServer

pytestmark = pytest.mark.slow


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
