"""A pooler in transaction mode, as small as it can be: clients share server connections by the statement.

It speaks as much of PostgreSQL's protocol as a client without passwords needs.
"""

import itertools
import socket
import struct
import threading
from contextlib import suppress

NO_ENCRYPTION = (80877103, 80877104)
END_OF_BATCH = (b"S", b"Q")
READY = b"Z"


class Stream:
    """Messages to and from one side."""

    def __init__(self, opened: socket.socket) -> None:
        self.socket = opened
        self.file = opened.makefile("rb")

    def exactly(self, size: int) -> bytes:
        read = self.file.read(size)
        if len(read) < size:
            raise ConnectionError("closed")
        return read

    def startup(self) -> bytes:
        """The first message, which has no type."""
        while True:
            head = self.exactly(4)
            body = self.exactly(struct.unpack("!I", head)[0] - 4)
            if struct.unpack("!I", body[:4])[0] not in NO_ENCRYPTION:
                return head + body
            self.socket.sendall(b"N")

    def message(self) -> tuple[bytes, bytes]:
        kind, head = self.exactly(1), self.exactly(4)
        return kind, kind + head + self.exactly(struct.unpack("!I", head)[0] - 4)

    def until(self, *kinds: bytes) -> bytes:
        """Messages up to one of these kinds."""
        read = b""
        while True:
            kind, message = self.message()
            if kind == b"X":
                raise ConnectionError("good-bye")
            read += message
            if kind in kinds:
                return read


class Pooler:
    """In front of the server at `port`, with so many connections to it."""

    def __init__(self, port: int, connections: int) -> None:
        self.server, self.size = port, connections
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.lock = threading.Lock()
        self.open: list[Stream] = list[Stream]()
        self.next = itertools.count()
        self.greeting = b""
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self.listener.close()
        for stream in self.open:
            stream.socket.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client = Stream(self.listener.accept()[0])
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: Stream) -> None:
        with suppress(OSError):
            startup = client.startup()
            with self.lock:
                while len(self.open) < self.size:
                    server = Stream(socket.create_connection(("127.0.0.1", self.server)))
                    server.socket.sendall(startup)
                    self.greeting = server.until(READY)
                    self.open.append(server)
            client.socket.sendall(self.greeting)
            while True:
                batch = client.until(*END_OF_BATCH)
                with self.lock:
                    server = self.open[next(self.next) % self.size]
                    server.socket.sendall(batch)
                    client.socket.sendall(server.until(READY))
        client.socket.close()
