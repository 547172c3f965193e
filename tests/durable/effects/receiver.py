"""A real HTTP service that counts what it gets, by its `Idempotency-Key`."""

from __future__ import annotations

import json
import socket
import threading
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class _InOrder(ThreadingHTTPServer):
    """Knows which connections were there first: a question is answered when those have ended."""

    daemon_threads = True
    request_queue_size = 100

    def __init__(self, *args: Any) -> None:
        self.open: list[Any] = []
        self.changed = threading.Condition()
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self.changed:
            self.open.append(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        with self.changed:
            self.open.remove(request)
            self.changed.notify_all()

    def wait_for_earlier(self, request: Any) -> None:
        with self.changed:
            earlier = self.open[: self.open.index(request)]
            self.changed.wait_for(lambda: not any(one in self.open for one in earlier), 10)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients of these tests die."""


class Receiver:
    """What arrives is done and counted, then answered by a script, and for ever by the last line of it.

    A line is a status (below 400 and from 500 on the message was taken, else it was refused), "cut" (taken,
    and the connection ends without an answer), or a function that is called with the
    key and returns one of these.
    """

    def __init__(self) -> None:
        self.script: list[Any] = [200]
        self.taken: Counter[str] = Counter()
        self.calls: list[str] = []
        self._lock = threading.Lock()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # Small answers are not to wait for an acknowledgement.
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                receiver._post(self)

            def do_GET(self) -> None:
                """How often the key in the path was taken, by all who came before."""
                receiver._server.wait_for_earlier(self.connection)
                with receiver._lock:
                    taken = receiver.taken[self.path.removeprefix("/")]
                receiver._answer(self, 200, {"taken": taken})

            def log_message(self, *_: Any) -> None:
                return

        self._server = _InOrder(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def says(self, *script: int | str | Callable[[str], Any]) -> None:
        self.script = list(script)
        self.calls = []

    def _post(self, handler: BaseHTTPRequestHandler) -> None:
        key = handler.headers.get("Idempotency-Key", "")
        with self._lock:
            line = self.script[min(len(self.calls), len(self.script) - 1)]
            self.calls.append(key)
        if callable(line):
            line = line(key)
        if not isinstance(line, int) or not 400 <= line < 500:
            with self._lock:
                self.taken[key] += 1
        if isinstance(line, int):
            self._answer(handler, line, {"id": f"m-{key}"})
        else:
            handler.close_connection = True
            handler.connection.shutdown(socket.SHUT_RDWR)

    def _answer(self, handler: BaseHTTPRequestHandler, status: int, body: Any) -> None:
        text = json.dumps(body).encode()
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(text)))
        handler.end_headers()
        handler.wfile.write(text)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
