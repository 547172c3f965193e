"""The dashboard as an ASGI application: the page, its stream of changes, and its buttons."""

from __future__ import annotations

import asyncio
import hmac
import inspect
import json
import logging
import secrets
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import uvicorn
from prefect.settings import PREFECT_UI_URL
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from prefect_resilience.errors.exceptions import ConfigurationError, ResilienceError, StoreUnavailable
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.operations.dashboard import orders
from prefect_resilience.operations.dashboard.orders import Desk, PageAnswer, PageOrder, Replays
from prefect_resilience.operations.dashboard.reading import Fleet, Hub, changes
from prefect_resilience.operations.dashboard.rows import Parts

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

BEAT = 5.0
"""Seconds between two messages to a page if nothing changes."""

GATHER = 0.1
"""Seconds in which the changes of several readings are combined into one message."""

MOST_WATCHERS = 64
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

O = TypeVar("O", bound=PageOrder)  # noqa: E741


class GateMiddleware:
    """Applies the gate to every request, and adds security headers to every answer."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self.app = app
        self.gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        refusal = self.gate.refusal(scope["method"], Headers(scope=scope))
        app = self.app if refusal is None else JSONResponse({"error": refusal}, 403)
        await app(scope, receive, with_headers)


def make_app(
    gate: Gate, circuits: str | None = None, store: str | None = None, places: str = ""
) -> Starlette:
    """The application.

    `circuits`, `store`: URLs of the fleet's stores, None for the configured ones. `places`: their description
    on the page.
    """
    hub = Hub(Fleet(circuits, store))
    desk = Desk(circuits, store)
    replays = Replays(desk, hub)

    async def page(_: Request) -> Response:
        ui = PREFECT_UI_URL.value() or ""
        ui = ui.rstrip("/") if ui.startswith(("http://", "https://")) else ""
        read_only = "yes" if gate.read_only else ""
        text = (_STATIC / "dashboard.html").read_text(encoding="utf-8")
        for name, value in {"token": gate.token, "ui": ui, "read_only": read_only, "places": places}.items():
            text = text.replace("{{" + name + "}}", escape(value))
        return Response(text, media_type="text/html")

    async def stream(_: Request) -> Response:
        if hub.watchers >= MOST_WATCHERS:
            return JSONResponse({"error": f"{MOST_WATCHERS} pages are already open: close one of them"}, 503)
        return StreamingResponse(_messages(hub), media_type="text/event-stream")

    def button(path: str, kind: type[O], work: Callable[[O], PageAnswer | Awaitable[PageAnswer]]) -> Route:
        async def endpoint(request: Request) -> Response:
            answer = await _answer(request, kind, work)
            hub.refresh()
            return answer

        return Route(path, endpoint, methods=["GET" if kind is orders.DoubtsOrder else "POST"])

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None, None]:
        async with hub.reading():
            yield
        replays.end()

    app = Starlette(
        routes=[
            Route("/", page),
            Route("/stream", stream),
            button("/circuits", orders.CircuitOrder, desk.set_circuit),
            button("/batches/doubts", orders.DoubtsOrder, desk.doubts),
            button("/batches/settle", orders.SettleOrder, desk.settle),
            button("/batches/recover", orders.RecoverOrder, desk.recover),
            button("/letters/replay", orders.ReplayOrder, replays.start),
            button("/letters/stop", PageOrder, replays.stop),
            *(Route(f"/{file.name}", partial(_static, file)) for file in _STATIC.glob("*.[cj]s*")),
        ],
        middleware=[Middleware(GateMiddleware, gate=gate)],
        lifespan=lifespan,
    )
    app.state.hub = hub
    return app


async def _static(file: Path, _: Request) -> Response:
    return FileResponse(file)


async def _messages(hub: Hub) -> AsyncIterator[str]:
    """All rows, then the changes, as server-sent events."""
    known: Parts = {}
    async with hub.watching():
        while not hub.closing:
            message = {"now": hub.now(), **changes(known, hub.parts)}
            known = hub.parts
            yield f"data: {json.dumps(message, separators=(',', ':'))}\n\n"
            await hub.change(known, BEAT)
            await asyncio.sleep(GATHER)


async def _answer(
    request: Request, kind: type[O], work: Callable[[O], PageAnswer | Awaitable[PageAnswer]]
) -> Response:
    """Carry out the order in a request. An error is a sentence for the person at the page."""
    try:
        raw = json.dumps(dict(request.query_params)) if request.method == "GET" else await request.body()
        order = kind.model_validate_json(raw)
        is_async = inspect.iscoroutinefunction(work)
        return JSONResponse(await work(order) if is_async else await run_in_threadpool(work, order))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        status, said = 422, ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))
    except StoreUnavailable as error:
        status, said = 503, f"The store is unavailable: {error}"
    except ResilienceError as error:
        status, said = 409, str(error)
    except Exception as error:
        log.warning("An action of the dashboard failed", exc_info=True)
        status, said = 500, f"{type(error).__name__}: {error}"
    said = redact(said)[:1_000]
    return JSONResponse({"error": said if status == 422 else said[:1].upper() + said[1:]}, status)


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
    """Serve the page at a host and port (0: a free one) and call `begun` with its address.

    hosts: names under which the page is served, besides `host` and loopback names. Returns after Ctrl-C or
    SIGTERM. Raises ConfigurationError if it cannot listen on the address.
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
    """Ends the event streams at shutdown; they would never end by themselves."""

    def __init__(self, config: uvicorn.Config, app: Starlette) -> None:
        super().__init__(config)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.state.hub.close()
        await super().shutdown(sockets)


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM)[0]
        # Listen now: `begun` gets the address, and its caller may connect at once.
        return socket.create_server(address[:2], family=family)
    except (OSError, OverflowError) as error:
        raise ConfigurationError(
            f"the dashboard cannot listen on {host}:{port} ({error}): choose another --host or --port"
        ) from None
