"""A service on loopback that answers every request as it was told to."""

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Service:
    """`says` an answer, `cuts` it in the middle, or `hangs`; `refused` is an address where nobody listens."""

    def __init__(self) -> None:
        self.status = 200
        self.headers: dict[str, str] = {}
        self.body = b"{}"
        self.cut = False
        self.stopped = threading.Event()
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                service.answer(self)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = answer

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._silent = socket.create_server(("127.0.0.1", 0))
        self.silent = f"http://127.0.0.1:{self._silent.getsockname()[1]}"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.refused = f"http://127.0.0.1:{probe.getsockname()[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def says(self, status: int, body: object = None, headers: Mapping[str, str] | None = None) -> None:
        self.status, self.cut = status, False
        self.body = body if isinstance(body, bytes) else json.dumps(body if body is not None else {}).encode()
        self.headers = {
            "Content-Type": "application/json",
            "X-Elastic-Product": "Elasticsearch",
            **(headers or {}),
        }

    def cuts(self) -> None:
        """Half of an answer, and then the connection is closed."""
        self.says(200, b'{"half": ')
        self.cut = True

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        handler.send_response_only(self.status)  # no Date: the clock of the cases is their own
        length = len(self.body) + (1000 if self.cut else 0)
        for name, value in {**self.headers, "Content-Length": str(length)}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(self.body)
        handler.close_connection = handler.close_connection or self.cut

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._silent.close()


@contextmanager
def service() -> Iterator[Service]:
    made = Service()
    try:
        yield made
    finally:
        made.close()
