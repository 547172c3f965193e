"""Databases: what their drivers raise, SQLite provoked for real, Redis's replies over a socket."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import redis
import sqlalchemy
from redis._parsers import BaseParser
from redis.backoff import NoBackoff
from redis.retry import Retry
from sqlalchemy import exc

from prefect_resilience import ErrorCategory as C
from prefect_resilience import ErrorInfo, classify
from tests.errors.by_name import caught

SQLSTATES = {
    C.INVALID: "42P01 42601 22012 23502 P0001",
    C.CONFLICT: "23505",
    C.CANCELLED: "57014",
    C.UNAVAILABLE: "57P01 40001 40P01 53300 55P03",
    C.NOT_FOUND: "57P04",
    C.RESOURCE_EXHAUSTED: "53100",
    C.AUTH: "42501",
    C.NETWORK: "08006",
}


@pytest.mark.parametrize("category", SQLSTATES)
def test_postgres_states(category: C) -> None:
    for state in SQLSTATES[category].split():
        info = classify(psycopg.errors.lookup(state)("x"))
        assert (info.category, info.code, info.retryable) == (category, state, category.retryable)
    slow = psycopg.errors.QueryCanceled("canceling statement due to statement timeout")
    assert classify(slow).category is C.TIMEOUT


def test_postgres_connections(closed_port) -> None:
    port = closed_port.rpartition(":")[2]
    info = caught(lambda: psycopg.connect(f"host=127.0.0.1 port={port} user=a dbname=b"))
    assert (info.category, info.code, info.retryable) == (C.NETWORK, "NETWORK_ERROR", True)
    engine = sqlalchemy.create_engine(f"postgresql+psycopg://a:b@127.0.0.1:{port}/c")
    assert caught(engine.connect).category is C.NETWORK
    refused = psycopg.OperationalError('FATAL: password authentication failed for user "a"')
    assert classify(refused).category is C.AUTH
    missing = psycopg.OperationalError('FATAL: database "none" does not exist')
    assert classify(missing).category is C.NOT_FOUND


def test_psycopg_without_a_server() -> None:
    assert classify(psycopg.IntegrityError("x")).category is C.CONFLICT
    assert classify(psycopg.ProgrammingError("x")).category is C.INVALID
    assert classify(psycopg.DataError("x")).category is C.INVALID
    assert classify(psycopg.NotSupportedError("x")).category is C.INVALID
    assert classify(psycopg.OperationalError("connection timeout expired")).code == "TIMEOUT"
    assert classify(psycopg.OperationalError("the database system is starting up")).category is C.UNAVAILABLE
    assert classify(psycopg.InterfaceError("x")).category is C.UNEXPECTED


def test_sqlstate_by_shape() -> None:
    class Strange(Exception):
        sqlstate = "99999"

    class OfPsycopg2(Exception):
        pgcode = "40001"

    assert classify(Strange()).category is C.UNEXPECTED
    assert classify(OfPsycopg2()).category is C.UNAVAILABLE


@pytest.fixture
def lite(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path / "x.db", timeout=0, isolation_level=None)
    connection.execute("create table one (n integer primary key, v text not null)")
    connection.execute("insert into one values (1, 'a')")
    yield connection
    connection.close()


def test_sqlite(lite, tmp_path) -> None:
    def run(statement: str) -> ErrorInfo:
        return caught(lambda: lite.execute(statement))

    assert run("insert into one values (1, 'b')").category is C.CONFLICT
    assert run("insert into one values (2, null)").category is C.INVALID
    assert run("select * from nowhere").category is C.INVALID
    assert run("selekt").category is C.INVALID
    other = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
    other.execute("begin immediate")
    info = run("insert into one values (3, 'c')")
    assert (info.category, info.code, info.retryable) == (C.UNAVAILABLE, "SQLITE_BUSY", True)
    other.close()
    assert caught(lambda: sqlite3.connect(tmp_path / "no" / "x.db")).category is C.NOT_FOUND
    lite.execute("pragma max_page_count = 1")
    lite.execute("pragma query_only = 1")
    assert run("insert into one values (4, 'd')").category is C.AUTH
    lite.execute("pragma query_only = 0")
    full = run("insert into one values (5, zeroblob(1000000))")
    assert (full.category, full.code) == (C.RESOURCE_EXHAUSTED, "SQLITE_FULL")
    (tmp_path / "not.db").write_bytes(b"no database at all" * 100)
    assert (
        caught(lambda: sqlite3.connect(tmp_path / "not.db").execute("select 1 from x")).category is C.INVALID
    )
    assert caught(lambda: lite.execute("select ?", ())).category is C.INVALID


def test_sqlalchemy(tmp_path) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/y.db", connect_args={"timeout": 0})
    with engine.connect() as connection:

        def run(statement: str) -> ErrorInfo:
            return caught(lambda: connection.execute(sqlalchemy.text(statement)))

        connection.execute(sqlalchemy.text("create table one (n integer primary key)"))
        connection.execute(sqlalchemy.text("insert into one values (1)"))
        assert run("insert into one values (1)").category is C.CONFLICT
        assert run("select * from nowhere").category is C.INVALID
        assert run("select :missing").category is C.INVALID
        other = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/y.db", connect_args={"timeout": 0})
        with other.connect() as second:
            info = caught(lambda: second.execute(sqlalchemy.text("insert into one values (2)")))
        assert (info.category, info.code) == (C.UNAVAILABLE, "SQLITE_BUSY")
        none = connection.execute(sqlalchemy.text("select * from one where n = 9"))
        assert caught(none.one).category is C.NOT_FOUND
    pool = sqlalchemy.create_engine(
        "sqlite://", poolclass=sqlalchemy.QueuePool, pool_size=1, max_overflow=0, pool_timeout=0.01
    )
    with pool.connect():
        assert caught(pool.connect).code == "TIMEOUT"
    assert caught(lambda: sqlalchemy.create_engine("nonsense")).category is C.INVALID
    assert classify(exc.DisconnectionError("x")).category is C.NETWORK


REDIS = [
    ("LOADING Redis is loading the dataset in memory", C.UNAVAILABLE),
    ("READONLY You can't write against a read only replica.", C.UNAVAILABLE),
    ("BUSY Redis is busy running a script", C.UNAVAILABLE),
    ("CLUSTERDOWN The cluster is down", C.UNAVAILABLE),
    ("OOM command not allowed when used memory > 'maxmemory'.", C.RESOURCE_EXHAUSTED),
    ("NOAUTH Authentication required.", C.AUTH),
    ("WRONGPASS invalid username-password pair or user is disabled.", C.AUTH),
    ("NOPERM User default has no permissions", C.AUTH),
    ("ERR unknown command", C.INVALID),
    ("WRONGTYPE Operation against a key", C.INVALID),
]


@pytest.mark.parametrize(("reply", "category"), REDIS)
def test_redis_replies(reply, category) -> None:
    assert classify(BaseParser.parse_error(reply)).category is category


def test_redis_connections(closed_port, silent_port) -> None:
    no_retry = Retry(NoBackoff(), 0)
    closed = redis.Redis(port=int(closed_port.rpartition(":")[2]), retry=no_retry)
    assert caught(closed.ping).code == "NETWORK_ERROR"
    silent = redis.Redis(port=int(silent_port.rpartition(":")[2]), socket_timeout=0.05, retry=no_retry)
    assert caught(silent.ping).code == "TIMEOUT"
    assert classify(redis.exceptions.WatchError("x")).category is C.CONFLICT
    assert classify(redis.exceptions.DataError("x")).category is C.INVALID
    assert classify(redis.exceptions.LockError("x")).category is C.CONFLICT
