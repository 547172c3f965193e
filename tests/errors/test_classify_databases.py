"""Databases, provoked for real: PostgreSQL where it is installed, SQLite, Redis's replies over a socket."""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
import redis
import sqlalchemy
from redis.backoff import NoBackoff
from redis.retry import Retry
from sqlalchemy import exc

from prefect_resilience import ErrorCategory as C
from prefect_resilience import ErrorInfo, classify
from tests.free_ports import free_port
from tests.stores_servers import PostgresServer

pytestmark = pytest.mark.slow


def caught(call: Callable[[], object]) -> ErrorInfo:
    with pytest.raises(Exception) as info:  # noqa: PT011 - which one is the subject of the test
        call()
    return classify(info.value)


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The connection string of a real server, of its own, with a password."""
    tools = PostgresServer()
    initdb, server = tools.bin / "initdb", tools.bin / "postgres"
    user = "nobody" if os.geteuid() == 0 else None  # PostgreSQL refuses to run as root
    home = Path(subprocess.check_output(["mktemp", "-d"], text=True, user=user).strip())
    words = home / "words"
    subprocess.run(["sh", "-c", f"echo rightly > {words}"], check=True, user=user)
    options = ["-D", str(home / "data"), "-U", "owner", "-A", "scram-sha-256", f"--pwfile={words}", "-N"]
    subprocess.run([initdb, *options], check=True, capture_output=True, user=user, cwd="/")
    port = free_port()
    command = [server, "-D", str(home / "data"), "-p", str(port), "-h", "127.0.0.1", "-k", "", "-F"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, user=user, cwd="/")
    url = f"host=127.0.0.1 port={port} user=owner password=rightly dbname=postgres connect_timeout=5"
    for _ in range(200):
        try:
            psycopg.connect(url).close()
            break
        except psycopg.OperationalError as error:
            assert classify(error).category in (C.NETWORK, C.UNAVAILABLE), str(error)  # noqa: PT017
            threading.Event().wait(0.05)
    yield url
    process.terminate()
    process.wait(10)
    shutil.rmtree(home, ignore_errors=True)
    tools.remove()


STATEMENTS = [
    ("select * from nowhere", C.INVALID, "42P01"),
    ("selekt", C.INVALID, "42601"),
    ("select 1/0", C.INVALID, "22012"),
    ("insert into one values (1)", C.CONFLICT, "23505"),
    ("insert into one values (null)", C.INVALID, "23502"),
    ("set statement_timeout = 20; select pg_sleep(5)", C.TIMEOUT, "57014"),
    ("select pg_cancel_backend(pg_backend_pid())", C.CANCELLED, "57014"),
    ("select pg_terminate_backend(pg_backend_pid())", C.UNAVAILABLE, "57P01"),
    ("do $$ begin raise exception 'x'; end $$", C.INVALID, "P0001"),
    ("do $$ begin raise exception 'x' using errcode = '40001'; end $$", C.UNAVAILABLE, "40001"),
    ("do $$ begin raise exception 'x' using errcode = '40P01'; end $$", C.UNAVAILABLE, "40P01"),
    ("do $$ begin raise exception 'x' using errcode = '53300'; end $$", C.UNAVAILABLE, "53300"),
    ("do $$ begin raise exception 'x' using errcode = '53100'; end $$", C.RESOURCE_EXHAUSTED, "53100"),
    ("do $$ begin raise exception 'x' using errcode = '42501'; end $$", C.AUTH, "42501"),
    ("do $$ begin raise exception 'x' using errcode = '08006'; end $$", C.NETWORK, "08006"),
]


@pytest.mark.parametrize(("statement", "category", "code"), STATEMENTS)
def test_postgres_statements(postgres, statement, category, code) -> None:
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("create table if not exists one (n int primary key)")
        connection.execute("insert into one values (1) on conflict do nothing")
        info = caught(lambda: connection.execute(statement))
    assert (info.category, info.code, info.retryable) == (category, code, category.retryable)


def test_postgres_locks_and_deadlocks(postgres) -> None:
    with psycopg.connect(postgres) as one, psycopg.connect(postgres) as two:
        one.execute("create table if not exists pair (n int primary key, v int)")
        one.execute("insert into pair values (1, 0), (2, 0) on conflict do nothing")
        one.commit()
        one.execute("select * from pair where n = 1 for update")
        info = caught(lambda: two.execute("select * from pair where n = 1 for update nowait"))
        assert (info.category, info.code, info.retryable) == (C.UNAVAILABLE, "55P03", True)
        two.rollback()
        two.execute("set deadlock_timeout = '10ms'")
        two.execute("select * from pair where n = 2 for update")
        thread = threading.Thread(target=lambda: one.execute("select * from pair where n = 2 for update"))
        thread.start()
        info = caught(lambda: two.execute("select * from pair where n = 1 for update"))
        assert (info.category, info.code) == (C.UNAVAILABLE, "40P01")
        two.rollback()
        thread.join()


def test_postgres_connections(postgres, closed_port) -> None:
    connect = psycopg.connect
    assert caught(lambda: connect(postgres.replace("rightly", "wrongly"))).category is C.AUTH
    assert caught(lambda: connect(postgres.replace("rightly", "''"))).category is C.AUTH
    assert caught(lambda: connect(postgres.replace("dbname=postgres", "dbname=none"))).category is C.NOT_FOUND
    port = closed_port.rpartition(":")[2]
    info = caught(lambda: connect(f"host=127.0.0.1 port={port} user=a dbname=b"))
    assert (info.category, info.code, info.retryable) == (C.NETWORK, "NETWORK_ERROR", True)
    engine = sqlalchemy.create_engine(f"postgresql+psycopg://a:b@127.0.0.1:{port}/c")
    assert caught(engine.connect).category is C.NETWORK
    assert caught(lambda: connect("host=nowhere.invalid connect_timeout=2")).category is C.NETWORK


def test_psycopg_without_a_server() -> None:
    assert classify(psycopg.errors.UniqueViolation("x")).category is C.CONFLICT
    assert classify(psycopg.errors.lookup("57P04")("x")).category is C.NOT_FOUND
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


def test_a_lost_connection_in_sqlalchemy() -> None:
    lost = exc.DBAPIError("select 1", {}, Exception("gone"), connection_invalidated=True)
    assert classify(lost).category is C.NETWORK
    assert classify(exc.DBAPIError("select 1", {}, Exception("strange"))).category is C.INVALID
    assert classify(exc.OperationalError("select 1", {}, Exception("strange"))).category is C.UNAVAILABLE
    assert classify(exc.IntegrityError("select 1", {}, Exception("strange"))).category is C.CONFLICT
    assert classify(exc.StatementError("x", "select 1", {}, None)).category is C.INVALID


@pytest.fixture
def reply_of_redis() -> Iterator[Callable[[str], ErrorInfo]]:
    """What redis-py makes of an error reply, sent by a server on loopback that says nothing else."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        line = [b""]

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    while connection.recv(4096):
                        connection.sendall(line[0])

        threading.Thread(target=serve, daemon=True).start()

        def ask(reply: str) -> ErrorInfo:
            line[0] = f"-{reply}\r\n".encode()
            client = redis.Redis(
                port=server.getsockname()[1], protocol=2, driver_info=None, retry=Retry(NoBackoff(), 0)
            )
            return caught(lambda: client.execute_command("GET", "x"))

        yield ask
        server.shutdown(socket.SHUT_RDWR)


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
def test_redis_replies(reply_of_redis, reply, category) -> None:
    assert reply_of_redis(reply).category is category


def test_redis_connections(closed_port, silent_port) -> None:
    no_retry = Retry(NoBackoff(), 0)
    closed = redis.Redis(port=int(closed_port.rpartition(":")[2]), retry=no_retry)
    assert caught(closed.ping).code == "NETWORK_ERROR"
    silent = redis.Redis(port=int(silent_port.rpartition(":")[2]), socket_timeout=0.05, retry=no_retry)
    assert caught(silent.ping).code == "TIMEOUT"
    assert classify(redis.exceptions.WatchError("x")).category is C.CONFLICT
    assert classify(redis.exceptions.DataError("x")).category is C.INVALID
    assert classify(redis.exceptions.LockError("x")).category is C.CONFLICT


def test_mysql_by_its_numbers() -> None:
    """No MySQL driver is installed here: the classes have only the names of PyMySQL's and of Oracle's."""
    pymysql = type("OperationalError", (type("MySQLError", (Exception,), {"__module__": "pymysql.err"}),), {})
    assert classify(pymysql(1213, "Deadlock found")).category is C.UNAVAILABLE
    assert classify(pymysql(1045, "Access denied")).category is C.AUTH
    assert classify(pymysql(2006, "gone away")).code == "2006"
    assert classify(pymysql(9999, "?")).category is C.UNEXPECTED
    assert classify(pymysql()).category is C.UNEXPECTED
    oracle = type("Error", (Exception,), {"__module__": "mysql.connector.errors", "errno": 1062})
    assert classify(oracle("duplicate")).category is C.CONFLICT
