"""A real HTTP service on loopback that answers by a script."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from prefect_resilience.errors.exceptions import ConfigurationError


@dataclass(frozen=True)
class Reply:
    """One answer. `delay` is in seconds; `drop` cuts the connection in place of an answer, `half` in the
    middle of the body. A body that is not a string is sent as JSON."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: Any = "{}"
    delay: float = 0.0
    drop: bool = False
    half: bool = False

    @property
    def content(self) -> bytes:
        """The body in bytes."""
        return (self.body if isinstance(self.body, str) else json.dumps(self.body)).encode()


Line = int | Reply | Callable[[], Reply]
Answering = Callable[["ReceivedRequest"], Reply]


@dataclass(frozen=True)
class ReceivedRequest:
    """A request that the service received. `at` is the time, in seconds since the epoch."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    at: float


class ScriptedService:
    """Answers each request with the next line of its script. The last line is repeated.

        with ScriptedService(503, Reply(429, {"Retry-After": "2"}), 200) as service:
            httpx.get(service.url)
        assert len(service.requests) == 1

    A line is a status, a `Reply`, or a function that returns a `Reply`. `on(path, ...)` sets a separate
    script for a path. `requests` holds the received requests. Raises ConfigurationError for an invalid line.
    """

    def __init__(self, *script: Line) -> None:
        self.requests: list[ReceivedRequest] = []
        self._scripts: dict[str | None, list[Line]] = {}
        self._met: dict[str | None, int] = {}
        self._lock = threading.Lock()
        self._around: Callable[[ReceivedRequest, Answering], Reply] | None = None
        self.says(*script or (200,))
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self._server.daemon_threads = True
        self.url: str = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def says(self, *script: Line) -> Self:
        """Begin this script, for every path without its own script."""
        return self._begin(None, script)

    def on(self, path: str, *script: Line) -> Self:
        """Begin this script for one path; the query is ignored."""
        return self._begin(path, script)

    def _begin(self, path: str | None, script: tuple[Line, ...]) -> Self:
        if not script:
            raise ConfigurationError("a script needs at least one line: write says(503, 200)")
        for line in script:
            if not (isinstance(line, Reply) or callable(line) or 100 <= line <= 599):
                raise ConfigurationError(f"{line!r} is not an answer: write a status, a Reply, or a function")
        with self._lock:
            self._scripts[path], self._met[path] = list(script), 0
        return self

    def watch(self, around: Callable[[ReceivedRequest, Answering], Reply] | None) -> None:
        """Pass each request to `around` with the function that answers it; None ends this."""
        self._around = around

    def clear(self) -> None:
        """Forget the received requests, and begin all scripts again."""
        with self._lock:
            self.requests.clear()
            self._met = dict.fromkeys(self._met, 0)

    def answer(self, request: ReceivedRequest) -> Reply:
        """Record a request, and return the reply of the next line of the script."""
        return self._answer(request) if self._around is None else self._around(request, self._answer)

    def _answer(self, request: ReceivedRequest) -> Reply:
        path = request.path.partition("?")[0]
        with self._lock:
            self.requests.append(request)
            of = path if path in self._scripts else None
            script, met = self._scripts[of], self._met[of]
            self._met[of] += 1
        line = script[min(met, len(script) - 1)]
        if isinstance(line, int):
            return Reply(line)
        return line if isinstance(line, Reply) else line()

    def close(self) -> None:
        """Stop the service and release the port."""
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _handler_of(service: ScriptedService) -> type[BaseHTTPRequestHandler]:
    class ServiceHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # or a kept connection waits 40 ms for the body of each answer

        def handle(self) -> None:
            with suppress(ConnectionError):  # the process of a client was killed
                super().handle()

        def _any(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            request = ReceivedRequest(self.command, self.path, dict(self.headers), body, time.time())
            _send(self, service.answer(request))

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = _any

        def log_message(self, format: str, *args: Any) -> None:
            return

    return ServiceHandler


def _send(handler: BaseHTTPRequestHandler, reply: Reply) -> None:
    time.sleep(reply.delay)
    if not reply.drop:
        content = reply.content
        handler.send_response(reply.status)
        for name, value in {**reply.headers, "Content-Length": str(len(content))}.items():
            handler.send_header(name, value)
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(content[: len(content) // 2] if reply.half else content)
    if reply.drop or reply.half:
        handler.close_connection = True
        handler.connection.close()
