"""Ports for servers that start later."""

import secrets
import socket
from contextlib import suppress


def free_port() -> int:
    """A free port of the loopback.

    It is below those that systems give to connections, which could have it before the server starts.
    """
    while True:
        port = 10_000 + secrets.randbelow(22_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
