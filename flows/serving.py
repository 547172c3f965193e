"""A service on loopback for as long as an example runs (starlette and uvicorn come with Prefect)."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import uvicorn
from starlette.applications import Starlette


class Service(Protocol):
    def app(self) -> Starlette: ...


@contextmanager
def running(service: Service, port: int = 0) -> Iterator[str]:
    """Serve in a thread, by default on a free port of the loopback; gives the service's address."""
    listener = socket.create_server(("127.0.0.1", port))
    # An access log, or the log of a connection that was cut on purpose, would only disturb the reader
    config = uvicorn.Config(service.app(), log_config=None, log_level="critical", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), name="service", daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=5)
        listener.close()


@contextmanager
def at(address: str, service: Service) -> Iterator[str]:
    """The service at that address; without one, the service itself, served in this process meanwhile."""
    if address:
        yield address
        return
    with running(service) as started:
        yield started
