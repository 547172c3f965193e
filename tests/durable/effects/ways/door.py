"""A port on loopback that can be shut and opened again; while it is shut, connections are refused."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from weakref import WeakSet

from tests.calls.http.server import bind
from tests.durable.effects.ways.receiver import Receiver


class Door:
    """Each connection is handed to `serve`, on a thread of its own."""

    def __init__(self, serve: Callable[[socket.socket], None]) -> None:
        self._serve = serve
        # Bound for as long as the door exists, so that nobody else gets the port.
        self._port_holder = bind(0)
        self.port: int = self._port_holder.getsockname()[1]
        self._listener: socket.socket | None = None
        # Weak: a function that is searched for open connections leads here, and these are not its own.
        self._open_ends: WeakSet[socket.socket] = WeakSet()
        self._lock = threading.Lock()

    @property
    def is_open(self) -> bool:
        return self._listener is not None

    def open(self) -> None:
        with self._lock:
            if self._listener is not None:
                return
            listener = self._listener = bind(self.port)
            listener.listen(50)
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def shut(self) -> None:
        """Take no further connection; those that were accepted go on."""
        with self._lock:
            listener, self._listener = self._listener, None
        if listener is not None:
            end(listener)

    def close(self) -> None:
        self.shut()
        for one in list(self._open_ends):
            end(one)
        self._port_holder.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self._open_ends.add(connection)
            threading.Thread(target=self._serve_one, args=(connection,), daemon=True).start()

    def _serve_one(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the clients of these tests go away in the middle
            self._serve(connection)
        end(connection)


class AtTheDoor(Receiver):
    """A receiver behind a port of its own; it serves each connection."""

    def __init__(self) -> None:
        super().__init__()
        self._door = Door(self._serve)
        self.port = self._door.port
        self._door.open()

    def _serve(self, connection: socket.socket) -> None:
        raise NotImplementedError

    def set_open(self, wanted: bool) -> None:
        if wanted:
            self._door.open()
        else:
            self._door.shut()

    def close(self) -> None:
        super().close()
        self._door.close()


def end(one: socket.socket) -> None:
    # Closing alone would not wake the thread that reads from it.
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
