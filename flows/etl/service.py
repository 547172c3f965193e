"""An API of orders with failures, and a receiver of webhooks, on loopback.

    GET  /orders?day=..&page=..     a page of orders, after the failures in TROUBLE
    POST /webhook                   receives a webhook under its `Idempotency-Key`
    GET  /webhook?key=..            the webhook that was received under this key, or null

The connection of the first webhook is cut after it was received: the sender cannot know its outcome.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

PAGES, ORDERS_PER_PAGE = 8, 25
TROUBLE: dict[int, list[str]] = {
    2: ["429"],
    4: ["503", "503"],
    5: ["cut"],
    6: ["html"],
    8: ["slow"],
}
"""How the API answers the first requests for a page. After that it works."""


class Cut(Response):
    """A response that ends in the middle: the server closes the connection."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"1000"), (b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b'{"orders": [', "more_body": True})


class Shop:
    """The API and the receiver, and a record of all requests."""

    def __init__(self, trouble: dict[int, list[str]] | None = None) -> None:
        self.trouble = {
            page: list(words) for page, words in (TROUBLE if trouble is None else trouble).items()
        }
        self.responses: dict[int, list[str]] = defaultdict(list)
        self.webhooks: list[dict[str, Any]] = []

    async def orders(self, request: Request) -> Response:
        page = int(request.query_params["page"])
        words = self.trouble.get(page, [])
        word = words.pop(0) if words else "200"
        self.responses[page].append(word)
        match word:
            case "429":
                return JSONResponse({"error": "too many requests"}, 429, {"Retry-After": "1"})
            case "503":
                return JSONResponse({"error": "unavailable"}, 503)
            case "cut":
                return Cut()
            case "html":
                return HTMLResponse("<h1>Our API is being maintained</h1>")
            case "slow":
                await asyncio.sleep(4)
            case _:
                pass
        first = (page - 1) * ORDERS_PER_PAGE + 1
        orders = [
            {"id": number, "customer": f"customer {number % 7}", "cents": number * 10}
            for number in range(first, first + ORDERS_PER_PAGE)
        ]
        return JSONResponse({"pages": PAGES, "orders": orders})

    async def receive(self, request: Request) -> Response:
        received = {"id": f"hook-{len(self.webhooks) + 1}", "key": request.headers.get("Idempotency-Key", "")}
        self.webhooks.append({**received, "body": await request.json()})
        return Cut() if len(self.webhooks) == 1 else JSONResponse(received)

    async def find(self, request: Request) -> Response:
        found = [one for one in self.webhooks if one["key"] == request.query_params["key"]]
        return JSONResponse(found[0] if found else None)

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/orders", self.orders),
                Route("/webhook", self.receive, methods=["POST"]),
                Route("/webhook", self.find),
            ]
        )
