"""A real service on loopback that counts who calls it, and how many at once."""

import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Visit:
    """One call as the service saw it. `began` and `ended` are seconds since the epoch."""

    began: float
    ended: float


class Target(socketserver.ThreadingTCPServer):
    """Takes `delay` seconds for each call, and then hangs up."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, delay: float = 0.0) -> None:
        super().__init__(("127.0.0.1", 0), _Call)
        self.delay = delay
        self.visits: list[Visit] = []

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def after(self, moment: float) -> list[Visit]:
        """The calls that began after `moment`."""
        return [visit for visit in list(self.visits) if visit.began > moment]


class _Call(socketserver.BaseRequestHandler):
    server: Target

    def handle(self) -> None:
        began = time.time()
        time.sleep(self.server.delay)
        self.server.visits.append(Visit(began, time.time()))


@contextmanager
def target(delay: float = 0.0) -> Iterator[Target]:
    """A `Target` that serves until the block ends."""
    with Target(delay) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


def call_target(port: int) -> None:
    """One call. Raises ConnectionError: the service does not answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        if not connection.recv(32):
            raise ConnectionError("the service hung up")


def most_at_once(visits: list[Visit]) -> int:
    """How many of these calls were under way at the same time, at most."""
    # What ends at a moment makes room for what begins at it.
    moments = sorted([(v.began, 1) for v in visits] + [(v.ended, -1) for v in visits])
    most = now = 0
    for _, change in moments:
        now += change
        most = max(most, now)
    return most
