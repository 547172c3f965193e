"""An HTTP proxy on loopback in front of a Prefect API, which may refuse, hang, or not be there."""

import itertools
import random
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx

NOT_PASSED_ON = {"host", "connection", "content-length", "transfer-encoding", "content-encoding"}


class ApiProxy:
    """What the API at `target` answers, unless `trouble` says otherwise for a request's number.

    `trouble(number)` gives a status to answer with, "hang" for no answer, or None for the API's own.
    """

    def __init__(self, target: str) -> None:
        self.trouble: Callable[[int], int | str | None] = lambda number: None
        self.asked = self.refused = 0
        self._target = target.rstrip("/")
        self._numbers = itertools.count()
        self._end = threading.Event()
        self._client = httpx.Client(timeout=60)
        self._port = 0
        self._server: ThreadingHTTPServer | None = None
        self.start()
        self.url: str = f"http://127.0.0.1:{self._port}/api"

    def start(self) -> None:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                proxy._handle(self)

            do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = handle_any

            def log_message(self, format: str, *args: object) -> None:
                return

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            allow_reuse_address = True

            def handle_error(self, request: object, client_address: object) -> None:
                return  # who asked is gone

        self._server = Server(("127.0.0.1", self._port), Handler)
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Refuse connections from now on."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def close(self) -> None:
        self._end.set()
        self.stop()
        self._client.close()

    def _handle(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("content-length") or 0))
        self.asked += 1
        if self._server is None:  # a connection that was open when it stopped
            request.close_connection = True
            request.connection.shutdown(socket.SHUT_RDWR)
            return
        trouble = self.trouble(next(self._numbers))
        if trouble is not None:
            self.refused += 1
        if trouble == "hang":
            self._end.wait()
            request.close_connection = True
        elif trouble is not None:
            self._reply(request, int(trouble), {}, b"{}")
        else:
            headers = {
                key: value for key, value in request.headers.items() if key.lower() not in NOT_PASSED_ON
            }
            url = self._target + request.path.removeprefix("/api")
            answer = self._client.request(request.command, url, content=body, headers=headers)
            self._reply(request, answer.status_code, dict(answer.headers), answer.content)

    def _reply(
        self, request: BaseHTTPRequestHandler, status: int, headers: dict[str, str], body: bytes
    ) -> None:
        request.send_response(status)
        for key, value in headers.items():
            if key.lower() not in NOT_PASSED_ON:
                request.send_header(key, value)
        if status not in (204, 304):
            request.send_header("content-length", str(len(body)))
        request.end_headers()
        if status not in (204, 304):
            request.wfile.write(body)


def half_busy(seed: int) -> Callable[[int], int | None]:
    """503 to half of the requests, drawn by lot."""
    dice = random.Random(seed)
    return lambda number: 503 if dice.random() < 0.5 else None
