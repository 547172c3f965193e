"""Real parts that many tests need."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import certifi
import hypothesis
import pytest

pytest_plugins = ["tests.prefect_api", "tests.prefect_runs", "tests.stores_servers"]


def trust_one_authority() -> None:
    """Every HTTP client reads the certificates of all authorities, which takes a processor 20 ms and more.

    No test leaves the loopback: one certificate is as good as all, here and in the processes started here.
    Prefect reads the variable when it is imported. Who does leave finds what it was in AUTHORITIES.
    """
    if "AUTHORITIES" in os.environ:  # a worker of pytest-xdist
        return
    end = "-----END CERTIFICATE-----\n"
    first = Path(certifi.where()).read_text(encoding="utf-8").partition(end)[0] + end
    folder = tempfile.mkdtemp(prefix="authority-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    file = Path(folder) / "one.pem"
    file.write_text(first, encoding="utf-8")
    os.environ["AUTHORITIES"] = os.environ.get("SSL_CERT_FILE", "")
    os.environ["SSL_CERT_FILE"] = str(file)


trust_one_authority()

# A shell's background job ignores Ctrl-C and hands that down to its children, which tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How many examples Hypothesis tries where a test does not say it itself: `make test` sets `ci`
hypothesis.settings.register_profile("ci", max_examples=30)
hypothesis.settings.register_profile("all", hypothesis.settings())
hypothesis.settings.register_profile("nightly", max_examples=300)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "all"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first: other workers need not wait for them at the end.

    Files that coverage does not measure come last: it would miss what they import or cache for other tests.
    """
    slow, unmeasured = (
        {item.path for item in items if item.get_closest_marker(mark)} for mark in ("slow", "no_cover")
    )
    items.sort(key=lambda item: (item.path in unmeasured, item.path not in slow))


@dataclass
class Reply:
    """One scripted answer of the service. `delay` is in seconds; `drop` cuts the connection instead."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: str = "{}"
    delay: float = 0.0
    drop: bool = False


class Service:
    """A real HTTP service on loopback that answers by a script, and then the last line of it for ever."""

    def __init__(self) -> None:
        self.script: list[Reply | Callable[[], Reply]] = [Reply()]
        self.calls: list[float] = []
        self.paths: list[str] = []
        self._lock = threading.Lock()
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                service.answer(self)

            def log_message(self, *_: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def says(self, *script: int | Reply | Callable[[], Reply]) -> None:
        self.script = [Reply(line) if isinstance(line, int) else line for line in script]

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        with self._lock:
            line = self.script[min(len(self.calls), len(self.script) - 1)]
            self.calls.append(time.time())
            self.paths.append(handler.path)
        reply = line() if callable(line) else line
        time.sleep(reply.delay)
        if reply.drop:
            handler.connection.close()
            return
        handler.send_response(reply.status)
        for name, value in reply.headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(reply.body)))
        handler.end_headers()
        handler.wfile.write(reply.body.encode())

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    yield made
    made.close()


@pytest.fixture
def warm_children() -> None:
    """Two children for calls with `mode="process"` are ready: the first one's start counts as its call's."""
    from prefect_resilience.guards.timeouts.children import POOL
    from prefect_resilience.guards.timeouts.process import ChildCall

    while POOL.ready < 2:
        if not POOL.starting:
            ChildCall(int, (), {}).call(100)
        time.sleep(0.01)


@pytest.fixture
def reply() -> type[Reply]:
    return Reply
