"""What only stores on servers have: many hosts, a clock of their own, and things to be tidied away."""

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from tempfile import TemporaryFile
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import redis

from prefect_resilience.errors.exceptions import StoreUnavailable
from prefect_resilience.stores import Store, open_store, postgres
from prefect_resilience.stores.base import News, WatchedStore
from tests.operations.diagnosis.pooler import Pooler
from tests.stores.counting import COUNT
from tests.stores.forks import use_in_forked_child
from tests.stores_servers import PostgresServer, RedisServer

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def sql(postgres_url: str) -> Iterator[Callable[..., Any]]:
    """Run a statement in the schema of the test; its rows, if it has any."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:

        def run(statement: str, *parameters: object) -> Any:
            cursor = connection.execute(statement.encode(), parameters)
            return cursor.fetchall() if cursor.description else None

        yield run


ON_SERVERS = pytest.mark.parametrize("url", ["postgres", "redis"], indirect=True)


# -- many processes


MANY = pytest.param(16, 1000, marks=[pytest.mark.long, pytest.mark.timeout(900)])


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "increments"), [(8, 200), MANY])
def test_no_increment_of_many_processes_is_lost(
    python: Start, url: str, processes: int, increments: int
) -> None:
    """They also create the schema in a race: it is touched for the first time."""
    process = python(COUNT, url, processes, increments)
    _, errors = process.communicate(timeout=800)
    assert (process.returncode, errors) == (0, "")
    found = open_store(url).load("count")
    assert found is not None
    assert found.value == processes * increments


def test_a_forked_child_uses_connections_of_its_own(store: Store, url: str) -> None:
    use_in_forked_child(store, url)


def test_a_redis_is_also_reached_by_its_socket(own_redis: RedisServer) -> None:
    own_redis.stop()
    path = own_redis.folder / "redis.sock"
    own_redis.start("--unixsocket", str(path))
    by_socket, by_port = open_store(f"unix://{path}?db=0"), open_store(own_redis.url())
    version = by_socket.swap("key", 0, 1)
    assert by_port.swap("key", version, 2)


def test_postgres_keeps_plans_for_those_who_speak_to_it_without_a_pooler(
    own_postgres: PostgresServer,
) -> None:
    def kept(port: int) -> int:
        store: Any = open_store(own_postgres.url(port, sslmode="disable"))
        version = 0
        for number in range(2 * postgres.PREPARE_AFTER):
            version = store.swap("key", version, number)
            assert store.load("key").value == number
        count = "SELECT count(*) FROM pg_prepared_statements"
        plans = store.using(lambda connection: connection.execute(count, prepare=False).fetchone()[0])
        store.delete("key", version)
        store.close()
        return plans

    assert kept(own_postgres.port) == 2
    # The greeting is the last connection's, and statements take turns on both.
    with closing(Pooler(own_postgres.port, 2)) as pooler:
        assert kept(pooler.port) == 0


def test_postgres_is_not_asked_whether_it_is_there_while_it_is_busy(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what libpq itself writes down of what it sends."""
    store: Any = open_store(postgres_url)
    with TemporaryFile("w+") as sent:
        store.using(lambda connection: connection.pgconn.trace(sent.fileno()))
        for fresh in (60.0, -1.0):
            monkeypatch.setattr(postgres, "FRESH_SECONDS", fresh)
            store.load("key")
        monkeypatch.setattr(postgres, "FRESH_SECONDS", 60.0)
        store.using(lambda connection: connection.pgconn.untrace())
        sent.seek(0)
        # The query, then "SELECT 1", which has no parameters, and the query
        assert re.findall(r"\t(Bind|Query)\t", sent.read()) == ["Bind", "Query", "Bind"]
    store.close()


# -- the server's clock


@ON_SERVERS
def test_the_clock_of_this_host_decides_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    now = store.now()
    version = store.swap("key", 0, 1, expires_at=now + 600)
    for error in (86_400.0, -86_400.0):
        monkeypatch.setattr(time, "time", lambda error=error: now + error)
        assert abs(store.now() - now) < 60
        assert store.load("key") is not None
        version, before = store.swap("key", version, 2, expires_at=now + 600), version
        assert version > before
        assert store.swap(f"short {error}", 0, 1, expires_at=now - 1) > before
        assert store.load(f"short {error}") is None


# -- tidying


def test_a_deleted_row_stays_for_a_while_and_is_purged_some_at_a_time(
    postgres_url: str, sql: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prefect_resilience.stores.sql.PURGE_PAUSE", 0.0)
    store = open_store(postgres_url)
    assert store.delete("deleted", store.swap("deleted", 0, 1))
    assert store.swap("recent", 0, 1, expires_at=store.now() - 1)
    table = "prefect_resilience_documents"
    sql(
        f"INSERT INTO {table} SELECT 'old/' || n, n, '1', extract(epoch FROM now()) - 3600"
        " FROM generate_series(1, 120) n"
    )
    counts: list[int] = []
    for number in range(3):
        store.swap(f"new/{number}", 0, 1)
        counts.append(sql(f"SELECT count(*) FROM {table} WHERE key LIKE 'old/%%'")[0][0])
    assert counts == [70, 20, 0]
    assert [
        key for (key,) in sql(f"SELECT key FROM {table} WHERE key IN ('deleted', 'recent') ORDER BY key")
    ] == ["deleted", "recent"]
    assert [key for key, _ in store.scan("")] == ["new/0", "new/1", "new/2"]


def test_what_is_not_ours_under_our_prefix_is_unavailable(redis_url: str, redis_server_url: str) -> None:
    store = open_store(redis_url)
    prefix = urlsplit(redis_url).query.partition("prefix=")[2]
    with redis.Redis.from_url(redis_server_url) as client:
        client.set(f"{{{prefix}}}:document:text", "no document")
        client.set(f"{{{prefix}}}:document:bytes", b"\xff \xff \xff")
        client.lpush(f"{{{prefix}}}:document:list", "item")
    for key in ("text", "bytes", "list"):
        with pytest.raises(StoreUnavailable):
            store.load(key)
    with pytest.raises(StoreUnavailable):
        store.swap("list", 0, 1)


def test_news_stays_in_its_schema(postgres_url: str, postgres_server_url: str) -> None:
    """Two stores in two schemas of one database do not hear each other."""
    assert _heard_elsewhere(open_store(postgres_url), open_store(postgres_server_url)) == []


def test_news_stays_in_its_redis_database(redis_url: str) -> None:
    """Two stores with one prefix in two databases of a server do not hear each other."""
    other = re.sub(r"/\d+\?", "/7?", redis_url)
    assert other != redis_url
    assert _heard_elsewhere(open_store(redis_url), open_store(other)) == []


def _heard_elsewhere(one: Store, other: Store) -> list[News]:
    """What a watch of `one` hears of a swap in `other`, before it hears one of its own."""
    assert isinstance(one, WatchedStore)
    assert isinstance(other, WatchedStore)
    key = f"circuit/apart {time.time_ns()}"
    with closing(one.watch("circuit/")) as watch:
        assert other.swap(key, 0, 1, other.now() + 60, publish=True)
        assert one.swap(key + " own", 0, 1, one.now() + 60, publish=True)
        heard = list[News]()
        deadline = time.monotonic() + 10
        while not any(news.key == key + " own" for news in heard) and time.monotonic() < deadline:
            heard += watch.wait(1)
    assert heard.pop().key == key + " own"
    return heard
