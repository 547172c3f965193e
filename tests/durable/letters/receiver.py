"""A real HTTP receiver that counts what it gets."""

import json
import threading
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiver:
    """Takes messages, or refuses them while `broken`. `on_message` is called before it answers."""

    def __init__(self) -> None:
        self.broken = False
        self.got: list[str] = []
        self.on_message: Callable[[str], None] = lambda message: None
        self._lock = threading.Lock()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                message = json.loads(body)["message"]
                if not receiver.broken:
                    with receiver._lock:
                        receiver.got.append(message)
                    receiver.on_message(message)
                self.send_response(503 if receiver.broken else 200)
                self.end_headers()
                self.wfile.write(message.encode())

            def log_message(self, *_: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def counts(self) -> Counter[str]:
        return Counter(self.got)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
