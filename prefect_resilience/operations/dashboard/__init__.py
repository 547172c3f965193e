"""The dashboard as an ASGI application: the page, its data, and its buttons."""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import socket
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from prefect.settings import PREFECT_UI_URL
from pydantic import TypeAdapter, ValidationError
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from prefect_resilience.base.text import sentence_of
from prefect_resilience.errors.exceptions import ConfigurationError, ResilienceError, StoreUnavailable
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.operations.dashboard.desk import Desk, Hub, PageAnswer

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
TOKEN_HEADER = "x-resilience-token"
LARGEST_BODY = 65_536


@dataclass(frozen=True, slots=True)
class Gate:
    """Decides which requests are served.

    `hosts`: allowed names in a Host header. `read_only`: requests that change something are rejected.
    """

    token: str
    hosts: frozenset[str] = LOOPBACK
    read_only: bool = False

    def refusal(self, method: str, headers: Mapping[str, str]) -> str | None:
        """Why a request is rejected, in a sentence; None if it is allowed. Header names are in lower case."""
        host = headers.get("host", "")
        if _name_of(host) not in self.hosts:
            return f"This dashboard is not served as {host[:100]!r}: start it with --allow-host to allow it"
        if method in ("GET", "HEAD"):
            return None
        if self.read_only:
            return "This dashboard is read-only"
        if headers.get("origin", "").lower() not in (f"http://{host}".lower(), f"https://{host}".lower()):
            return "Only the page of this dashboard may make changes"
        if not hmac.compare_digest(headers.get(TOKEN_HEADER, "").encode(), self.token.encode()):
            return "The page is from an earlier start of this dashboard: reload it"
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return "A request must be JSON (Content-Type: application/json)"
        length = headers.get("content-length", "")
        if not length.isdecimal() or int(length) > LARGEST_BODY:
            return f"A request needs a Content-Length of at most {LARGEST_BODY} bytes"
        return None


def _name_of(host: str) -> str | None:
    """The name in a Host header without its port; None for an invalid header."""
    try:
        # A Host header has neither a path nor a user.
        return None if set(host) & set("/@?#\\ ") else urlsplit(f"//{host}").hostname
    except ValueError:
        return None


log: logging.Logger = logging.getLogger("prefect_resilience.dashboard")

_STATIC = Path(__file__).with_name("static")
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

ORDER = TypeAdapter(dict[str, Any])


def make_app(
    gate: Gate, circuits: str | None = None, store: str | None = None, places: str = ""
) -> Starlette:
    """The application.

    `circuits`, `store`: URLs of the fleet's stores, None for the configured ones. `places`: their description
    on the page.
    """
    desk = Desk(circuits, store)
    hub = Hub(desk)

    async def page(_: Request) -> Response:
        ui = PREFECT_UI_URL.value() or ""
        ui = ui.rstrip("/") if ui.startswith(("http://", "https://")) else ""
        read_only = "yes" if gate.read_only else ""
        text = (_STATIC / "dashboard.html").read_text(encoding="utf-8")
        for name, value in {"token": gate.token, "ui": ui, "read_only": read_only, "places": places}.items():
            text = text.replace("{{" + name + "}}", escape(value))
        return Response(text, media_type="text/html")

    async def state(request: Request) -> Response:
        since = request.query_params.get("since", "")
        changes = await hub.changes(int(since) if since.isdecimal() else 0)
        return JSONResponse({"now": time.time(), **changes})

    def button(path: str, work: Callable[..., PageAnswer]) -> Route:
        async def endpoint(request: Request) -> Response:
            answer = await _answer(request, work)
            hub.refresh()
            return answer

        return Route(path, endpoint, methods=["POST"])

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None, None]:
        yield
        desk.closing.set()

    return Starlette(
        routes=[
            Route("/", page),
            Route("/state", state),
            button("/circuits", desk.set_circuit),
            button("/batches/doubts", desk.doubts),
            button("/batches/settle", desk.settle),
            button("/batches/recover", desk.recover),
            button("/letters/replay", desk.replay),
            Mount("/", StaticFiles(directory=_STATIC)),
        ],
        middleware=[Middleware(_guard, gate=gate)],
        lifespan=lifespan,
    )


def _guard(app: ASGIApp, gate: Gate) -> ASGIApp:
    """Apply the gate to every request, and add security headers to every answer."""

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        refusal = gate.refusal(scope["method"], Headers(scope=scope)) if scope["type"] == "http" else None
        answer = app if refusal is None else JSONResponse({"error": refusal}, 403)
        await answer(scope, receive, with_headers)

    return guard


async def _answer(request: Request, work: Callable[..., PageAnswer]) -> Response:
    """Carry out the order in a request. An error is a sentence for the person at the page."""
    try:
        order = ORDER.validate_json(await request.body())
        return JSONResponse(await asyncio.to_thread(work, **order))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        status, says = 422, ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))
    except StoreUnavailable as error:
        status, says = 503, f"The store is unavailable: {error}"
    except ResilienceError as error:
        status, says = 409, str(error)
    except Exception as error:
        log.warning("An action of the dashboard failed", exc_info=True)
        status, says = 500, f"{type(error).__name__}: {error}"
    says = redact(says)[:1_000]
    return JSONResponse({"error": says if status == 422 else sentence_of(says)}, status)


EVERYWHERE = frozenset({"0.0.0.0", "::", ""})


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens at a host and port (0: a free one). Raises ConfigurationError if it cannot."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family)
    except (OSError, OverflowError) as error:
        raise ConfigurationError(
            f"the dashboard cannot listen on {host}:{port} ({error}): choose another --host or --port"
        ) from None


def address_of(host: str, listening: socket.socket) -> str:
    shown = "127.0.0.1" if host in EVERYWHERE else f"[{host}]" if ":" in host else host
    return f"http://{shown}:{listening.getsockname()[1]}"


def gate_for(host: str, hosts: Iterable[str], *, read_only: bool) -> Gate:
    """A gate with a new token. `hosts`: names of the page besides `host` and loopback names."""
    names = LOOPBACK | ({host} - EVERYWHERE) | set(hosts)
    return Gate(secrets.token_urlsafe(32), frozenset(name.lower() for name in names), read_only)


def serve(app: Starlette, listening: socket.socket) -> None:
    """Serve the application until Ctrl-C or SIGTERM."""
    config = uvicorn.Config(app, log_level="critical", access_log=False, timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listening])
