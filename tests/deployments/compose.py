"""compose.yaml without Docker: the same services, from this machine's binaries, on loopback."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import psycopg
import yaml

from tests.free_ports import free_port
from tests.stores_servers import RedisServer

FILE = Path(__file__).parents[2] / "deployments" / "compose.yaml"
METRICS = FILE.with_name("compose.metrics.yaml")
POSTGRES = Path("/usr/lib/postgresql/15/bin")
"""Prefect's server wants PostgreSQL 15 with contrib (pg_trgm), as in Debian's postgresql-15."""


def read(file: Path = FILE, **environment: str) -> dict[str, Any]:
    """A file as Compose understands it: merged, and with its variables filled in."""

    def filled(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return environment.get(match[1]) or match[2] or ""

    def fill(value: Any) -> Any:
        if isinstance(value, str):
            return re.sub(r"\$\$|\$\{(\w+)(?::-([^}]*))?\}", filled, value)
        if isinstance(value, dict):
            return {name: fill(item) for name, item in value.items()}
        return [fill(item) for item in value] if isinstance(value, list) else value

    return fill(yaml.safe_load(file.read_text()))


def wait_for(condition: Callable[[], Any], seconds: float = 100) -> Any:
    """What `condition` comes to, asked until then."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.2)
    return found


class Fleet:
    """The services of the file. Where it names a host in its network, it is this machine here."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        self.services: dict[str, Any] = read(**environment)["services"]
        self.databases = read()["configs"]["databases"]["content"]
        self.redis = RedisServer()
        self.ports = {"postgres:5432": free_port(), "redis:6379": self.redis.port, "4200": free_port()}
        # Where another user may go, whose the test's own folder is not.
        self.home = Path(tempfile.mkdtemp(prefix="pr-postgres-"))
        self.running: list[subprocess.Popen[bytes]] = []

    @property
    def api(self) -> str:
        return f"http://127.0.0.1:{self.ports['4200']}/api"

    def environment(self, service: str) -> dict[str, str]:
        """What the service is told, and a home of its own as a container has it."""
        told: Mapping[str, str] = self.services[service].get("environment", {})
        home = self.folder / service
        return {
            **{name: self.here(value) for name, value in told.items()},
            "PREFECT_HOME": str(home),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_LOGGING_LEVEL": "WARNING",
            "PREFECT_WORKER_QUERY_SECONDS": "1",
        }

    def here(self, text: str) -> str:
        """Names and ports of the file as they are on this machine."""
        text = text.replace("postgres:5432", f"127.0.0.1:{self.ports['postgres:5432']}")
        text = text.replace("redis:6379", f"127.0.0.1:{self.ports['redis:6379']}")
        text = text.replace("server:4200", "127.0.0.1:4200").replace("4200", str(self.ports["4200"]))
        words = {"redis": "127.0.0.1", "6379": str(self.ports["redis:6379"]), "0.0.0.0": "127.0.0.1"}
        return words.get(text, text).replace("/srv/results", str(self.folder / "results"))

    def start(self) -> None:
        """Start everything in the order of the file's dependencies."""
        self.redis.start()
        self._start_postgres()
        self._start("server")
        wait_for(lambda: answers(f"{self.api}/health"))
        assert self._start("install").wait(120) == 0, self.log("install")
        for service in ("worker-east", "worker-west"):
            self._start(service)

    def log(self, service: str) -> str:
        return (self.folder / f"{service}.log").read_text()

    def end(self) -> None:
        for process in reversed(self.running):
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            process.wait()
        self.redis.remove()
        shutil.rmtree(self.home, ignore_errors=True)

    def _start(self, service: str) -> subprocess.Popen[bytes]:
        words = [self.here(word) for word in self.services[service]["command"]]
        command = [sys.executable, "-m", "prefect", *words[1:]] if words[0] == "prefect" else words
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        path = f"{Path(sys.executable).parent}{os.pathsep}{clean['PATH']}"
        return self._run(service, command, {**clean, "PATH": path, **self.environment(service)})

    def _run(
        self, service: str, command: list[str], environment: Mapping[str, str], **rights: Any
    ) -> subprocess.Popen[bytes]:
        with (self.folder / f"{service}.log").open("ab") as log:
            # A session of its own, so that its children end with it.
            process = subprocess.Popen[bytes](
                command, env=environment, stdout=log, stderr=log, start_new_session=True, **rights
            )
        self.running.append(process)
        return process

    def _start_postgres(self) -> None:
        """PostgreSQL 15 of the system, which refuses root, with the databases that the file asks for."""
        told = self.services["postgres"]["environment"]
        rights: dict[str, Any] = {}
        home = self.home
        if os.geteuid() == 0:
            rights = {"user": "postgres", "group": "postgres", "extra_groups": []}
            shutil.chown(home, "postgres", "postgres")
        data = home / "data"
        make = [POSTGRES / "initdb", "-D", data, "-U", told["POSTGRES_USER"], "--auth=trust", "--no-sync"]
        subprocess.run(make, check=True, capture_output=True, cwd=home, **rights)
        port = str(self.ports["postgres:5432"])
        run = [POSTGRES / "postgres", "-D", data, "-p", port, "-h", "127.0.0.1", "-k", home, "-F"]
        self._run("postgres", [str(word) for word in run], {"PATH": os.environ["PATH"]}, **rights)
        url = f"postgresql://{told['POSTGRES_USER']}@127.0.0.1:{port}"
        wait_for(lambda: connects(f"{url}/postgres"))
        with psycopg.connect(f"{url}/postgres", autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {told['POSTGRES_DB']}".encode())
            connection.execute(self.databases.encode())


def connects(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.Error:
        return False
    return True


def answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 200
    except httpx.TransportError:
        return False
