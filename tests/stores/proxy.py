"""A TCP proxy on loopback that makes a server slow, or cuts the connection in the middle of a question."""

import contextlib
import socket
import threading
import time

CHUNK = 65536


class Proxy:
    """Stands before the server at `port` on 127.0.0.1.

    `delay` is in seconds, for each chunk of an answer. Once a question contains `marker`, the connection is
    cut: before the server sees the question when `cut` is "before", after it has answered when it is "after".
    With `cut` "never" the question is lost, and the connection stays open.
    """

    def __init__(self, port: int) -> None:
        self.delay = 0.0
        self.marker: bytes | None = None
        self.cut = "after"
        self.cuts = 0
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for end in [self._listener, *self._open]:
            _close(end)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                _close(client)
                continue
            self._open += [client, server]
            line = Line(self, client, server)
            for work in (line.questions, line.answers):
                threading.Thread(target=work, daemon=True).start()


class Line:
    """One connection through the proxy."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self.proxy, self.client, self.server = proxy, client, server
        self.cutting = False

    def questions(self) -> None:
        with contextlib.suppress(OSError):
            while chunk := self.client.recv(CHUNK):
                if self.proxy.marker is not None and self.proxy.marker in chunk:
                    self.proxy.marker = None
                    self.proxy.cuts += 1
                    if self.proxy.cut == "before":
                        break
                    if self.proxy.cut == "never":
                        continue
                    self.cutting = True
                self.server.sendall(chunk)
        if not self.cutting:
            self._end()

    def answers(self) -> None:
        with contextlib.suppress(OSError):
            while chunk := self.server.recv(CHUNK):
                if self.cutting:
                    break
                if self.proxy.delay:
                    time.sleep(self.proxy.delay)
                self.client.sendall(chunk)
        self._end()

    def _end(self) -> None:
        _close(self.client)
        _close(self.server)


def _close(end: socket.socket) -> None:
    # Closing alone would not wake the thread that reads from it.
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
