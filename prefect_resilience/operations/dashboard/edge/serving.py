"""Serving the dashboard until Ctrl-C."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Iterable

import uvicorn
from starlette.applications import Starlette

from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.operations.dashboard.edge.app import make_app
from prefect_resilience.operations.dashboard.gate import LOOPBACK, Gate

EVERYWHERE = frozenset({"0.0.0.0", "::", ""})


def serve(
    host: str,
    port: int,
    circuits: str,
    store: str,
    places: str,
    *,
    hosts: Iterable[str] = (),
    read_only: bool = False,
    begun: Callable[[str], None],
) -> None:
    """Serve the page at a host and port (0: one that is free); `begun` is told its address.

    hosts: names under which the page is served besides `host` and those of loopback. Returns after Ctrl-C or
    SIGTERM. Raises ConfigurationError for an address that cannot be had.
    """
    names = LOOPBACK | ({host} - EVERYWHERE) | set(hosts)
    gate = Gate(secrets.token_urlsafe(32), frozenset(name.lower() for name in names), read_only)
    app = make_app(gate, circuits, store, places)
    listening = _listening(host, port)
    shown = "127.0.0.1" if host in EVERYWHERE else f"[{host}]" if ":" in host else host
    begun(f"http://{shown}:{listening.getsockname()[1]}")
    config = uvicorn.Config(app, log_level="critical", access_log=False, timeout_graceful_shutdown=2)
    _Server(config, app).run(sockets=[listening])


class _Server(uvicorn.Server):
    """Ends the streams when it is told to end: they would go on for ever."""

    def __init__(self, config: uvicorn.Config, app: Starlette) -> None:
        super().__init__(config)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.state.hub.close()
        await super().shutdown(sockets)


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        # Whoever is told the address may connect at once.
        made.listen()
    except (OSError, OverflowError) as error:
        raise ConfigurationError(f"the dashboard cannot listen on {host}:{port} ({error})") from None
    return made
