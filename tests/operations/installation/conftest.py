"""A real server of the tests' own with its automations at work, a worker, and a webhook that remembers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

from tests.free_ports import free_port


class Programs:
    """Programs of Prefect's, which are ended with the tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str, **environment: str) -> subprocess.Popen[bytes]:
        """`prefect <words>`, with this environment and no other settings of Prefect's."""
        log = (self.folder / f"{len(self.running)}-{words[0]}.log").open("wb")
        env = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        # A session of its own, so that its children end with it.
        process = subprocess.Popen(
            [sys.executable, "-m", "prefect", *words],
            env={**env, **environment},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.running.append(process)
        return process

    def end(self) -> None:
        for process in reversed(self.running):
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            process.wait()


def wait_for(condition: Callable[[], Any], seconds: float = 100) -> Any:
    """What `condition` comes to, asked until then."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.2)
    return found


@pytest.fixture(name="wait_for", scope="session")
def wait_for_fixture() -> Callable[..., Any]:
    return wait_for


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    started = Programs(tmp_path_factory.mktemp("programs"))
    yield started
    started.end()


@pytest.fixture(scope="module")
def server(programs: Programs) -> Iterator[dict[str, str]]:
    """A new server; the environment in which its API is the one that is meant."""
    port = free_port()
    home = programs.folder / "home"
    environment = {
        "PREFECT_HOME": str(home),
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_RESILIENCE_STORE_URL": f"sqlite:///{programs.folder}/fleet.db",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_LOGGING_LEVEL": "WARNING",
    }
    programs.start("server", "start", "--port", str(port), "--no-ui", **environment)
    wait_for(lambda: answers(f"{environment['PREFECT_API_URL']}/health"))
    with temporary_settings({PREFECT_API_URL: environment["PREFECT_API_URL"], PREFECT_HOME: home}):
        yield environment


def answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 200
    except httpx.TransportError:
        return False


class Webhook:
    """A real HTTP server on loopback that keeps what is posted to it."""

    def __init__(self) -> None:
        self.posted: list[dict[str, Any]] = []
        webhook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                webhook.posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hooks/night"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def about(self, text: str) -> list[dict[str, Any]]:
        """What was posted with this in its subject."""
        return [post for post in self.posted if text in post["subject"]]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="module")
def webhook() -> Iterator[Webhook]:
    made = Webhook()
    yield made
    made.close()
