"""A fleet for flows that are killed: a Prefect API, a worker, deployments, and the messages' receiver."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psycopg
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.settings import PREFECT_API_URL, temporary_settings

from tests.durable.effects.receiver import Receiver
from tests.durable.effects.victim import Book
from tests.free_ports import free_port

ROOT = Path(__file__).parents[3]
SHIM = Path(__file__).with_name("worker_kills_shim.py")
ENTRYPOINT = "tests/durable/effects/worker_kills_flow.py:invoices"
ROUTES = ("forked", "engine", "started")
"""How the worker's child comes to be: forked from a parent that is warm; by the command of Prefect's engine;
or, in full, as a deployment's run is that says nothing of it."""

START_SECONDS = 300.0
"""How long a program may take to start, on a machine that has much else to do."""

T = TypeVar("T")


class Till(Receiver):
    """Takes messages; of those with a key that it honours, one. Kills whoever asks for it while it does."""

    def __init__(self) -> None:
        super().__init__()
        self.arrived: Counter[str] = Counter()
        self.honoured: set[str] = set()
        """The batches whose keys it honours."""
        self.held: dict[str, threading.Event] = {}
        """What it waits for before it answers a message, by key."""
        self.rows = ""
        """The database of the rows that are written without it."""

    def written_in(self, url: str) -> None:
        """Let rows be written in that database."""
        self.rows = url
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS till (key text)")

    def count_rows(self, batch_id: str) -> None:
        """Count the rows of a batch as messages that arrived and were taken."""
        with psycopg.connect(self.rows) as connection:
            found = connection.execute(
                "SELECT key, count(*) FROM till WHERE key LIKE %s GROUP BY key", (f"{batch_id}.%",)
            ).fetchall()
        with self._lock:
            self.arrived.update({key: number - self.arrived[key] for key, number in found})
            self.taken.update({key: number - self.taken[key] for key, number in found})

    def _post(self, handler: BaseHTTPRequestHandler) -> None:
        if handler.path == "/busy":
            self._answer(handler, 429, {})
            return
        key = handler.headers["Idempotency-Key"]
        wish = handler.headers.get("X-Kill")
        with self._lock:
            self.arrived[key] += 1
            known = self.taken[key] > 0 and key.partition(".")[0] in self.honoured
        if wish == "holding":
            self._kill(handler)
        if not known:
            with self._lock:
                self.taken[key] += 1
        if wish == "taken":
            self._kill(handler)
        if key in self.held:
            self.held[key].wait(30)
        self._answer(handler, 200, {"id": f"m-{key}"})

    def _kill(self, handler: BaseHTTPRequestHandler) -> None:
        pid, wish = int(handler.headers["X-Pid"]), handler.headers["X-Kill"]
        order = int(handler.headers["Idempotency-Key"].rpartition(".")[2])
        phase = handler.headers["X-Phase"]
        book = Book(handler.headers["X-Book"].removesuffix(".book"))
        book.write("killed", pid=pid, order=order, phase=phase, where=f"its receiver, {wish}")
        os.kill(pid, signal.SIGKILL)


def wait_until(condition: Callable[[], T], seconds: float = 90.0, pause: float = 0.2) -> T:
    """What `condition` comes to, asked until then."""
    until = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > until:
            raise AssertionError("it did not come to pass")
        time.sleep(pause)
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Programs:
    """Programs in sessions of their own, so that their children end with them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, *words: str, **environment: str) -> subprocess.Popen[bytes]:
        env = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        env |= {"PYTHONPATH": str(ROOT), "PREFECT_SERVER_ANALYTICS_ENABLED": "false", **environment}
        with (self.folder / f"{name}.log").open("ab") as log:
            program = subprocess.Popen(
                [sys.executable, "-m", *words],
                env=env,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.running.append(program)
        return program

    def all_run(self) -> bool:
        """Whether they do; what the first of them said that does not."""
        for program in self.running:
            if program.poll() is not None:
                said = "\n".join(log.read_text()[-2_000:] for log in sorted(self.folder.glob("*.log")))
                raise RuntimeError(f"{program.args} ended:\n{said}")
        return True

    def end(self) -> None:
        for program in reversed(self.running):
            try:
                os.killpg(program.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            finally:
                program.wait()


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """A Prefect server of its own; the URL of its API."""
    port = free_port()
    api = f"http://127.0.0.1:{port}/api"
    programs = Programs(folder)
    words = ("prefect", "server", "start", "--port", str(port), "--no-ui")
    quiet = {"PREFECT_LOGGING_LEVEL": "WARNING", "PREFECT_SERVER_LOGGING_LEVEL": "WARNING"}
    try:
        programs.start("server", *words, PREFECT_HOME=str(folder / "home"), PREFECT_API_URL=api, **quiet)
        wait_until(lambda: programs.all_run() and _answers(f"{api}/health"), START_SECONDS)
        yield api
    finally:
        programs.end()


def _answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 200
    except httpx.TransportError:
        return False


class Fleet:
    """One real process worker, and a deployment for each route."""

    def __init__(self, folder: Path, api: str) -> None:
        self.folder, self.api = folder, api
        self.till = Till()
        self.programs = Programs(folder)
        self.pool = f"kills-{os.getpid()}-{time.monotonic_ns()}"
        # The path of a socket must be short.
        self.socket = f"{tempfile.mkdtemp(prefix='forks-')}/socket"
        home = {"PREFECT_HOME": str(folder / "home"), "PREFECT_API_URL": api}
        quiet = {"PREFECT_LOGGING_TO_API_ENABLED": "false", "PREFECT_LOGGING_LEVEL": "WARNING"}
        patient = {"PREFECT_CLIENT_RETRY_EXTRA_CODES": "500", "PREFECT_WORKER_QUERY_SECONDS": "1"}
        self.environment = {**home, **quiet, **patient}

    def __enter__(self) -> Fleet:
        forks = ("tests.durable.effects.worker_kills_forks", self.socket)
        worker = ("prefect", "worker", "start", "--type", "process", "--pool", self.pool)
        self.programs.start("forks", *forks, **self.environment)
        with temporary_settings({PREFECT_API_URL: self.api}):
            with get_client(sync_client=True) as client:
                client.create_work_pool(WorkPoolCreate(name=self.pool, type="process"))
            self.programs.start("worker", *worker, **self.environment)
            self.deployments = {route: self._deployed(route) for route in ROUTES}
        wait_until(lambda: self.programs.all_run() and os.path.exists(self.socket), START_SECONDS)
        return self

    def _deployed(self, route: str) -> Any:
        commands = {"forked": f"-I -S {SHIM} {self.socket}", "engine": "-m prefect.engine"}
        return flow.from_source(str(ROOT), ENTRYPOINT).deploy(
            name=f"{self.pool}-{route}",
            work_pool_name=self.pool,
            job_variables={"command": f"{sys.executable} {commands[route]}"} if route in commands else {},
            print_next_steps=False,
            ignore_warnings=True,
        )

    def __exit__(self, *_: object) -> None:
        self.programs.end()
        self.till.close()
        shutil.rmtree(os.path.dirname(self.socket), ignore_errors=True)
