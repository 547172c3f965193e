"""A mail server and a notice board on loopback, which keep every message that they take.

The mail server is real SMTP (aiosmtpd), the board real HTTP:

    POST   /posts               takes a post, under its `Idempotency-Key`; a second one is a second post
    GET    /posts?key=..        the posts under a key
    DELETE /posts/{id}          takes one back

The board may be told to have a bad moment: then it does not answer, and whoever sends is killed meanwhile.
`python -m flows.digest_receivers` serves both where the deployment of `send_digest` looks for them.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from email import message_from_bytes
from typing import Any

from aiosmtpd.controller import Controller
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from flows.serving import running

LONGEST_WAIT = 30.0
"""Seconds after which the board answers although no process was killed."""


class Mailbox:
    """What the mail server took: recipients, with the ids of their messages."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, str]] = []

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        message_id = message_from_bytes(envelope.content)["Message-ID"]
        self.taken += [(recipient, message_id) for recipient in envelope.rcpt_tos]
        return "250 taken"


class Board:
    """What the board took. `moments` says what happens to the n-th post that arrives, counted from 1:

    "taken" (it is on the board, and the sender gets no answer) or "lost" (it never gets there). Both are a
    `bad_moment`: no answer comes.
    """

    def __init__(self, moments: dict[int, str]) -> None:
        self.posts: list[dict[str, Any]] = []
        self.retracted: list[str] = []
        self.moments = moments
        self.bad_moment = threading.Event()
        self.arrived = 0

    async def post(self, request: Request) -> Response:
        content, key = await request.json(), request.headers["Idempotency-Key"]
        self.arrived += 1
        moment = self.moments.get(self.arrived)
        made = {**content, "id": f"post-{len(self.posts) + 1}", "key": key}
        if moment != "lost":
            self.posts.append(made)
        if moment is not None:
            self.bad_moment.set()
            await asyncio.sleep(LONGEST_WAIT)
            return JSONResponse({"error": "a bad moment"}, 504)
        return JSONResponse(made)

    async def search(self, request: Request) -> Response:
        return JSONResponse([post for post in self.posts if post["key"] == request.query_params["key"]])

    async def retract(self, request: Request) -> Response:
        self.retracted.append(request.path_params["id"])
        return JSONResponse({})

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/posts", self.post, methods=["POST"]),
                Route("/posts", self.search),
                Route("/posts/{id}", self.retract, methods=["DELETE"]),
            ]
        )


@contextmanager
def mail_server(mailbox: Mailbox, port: int = 0) -> Iterator[int]:
    """Serve in a thread, by default on a free port of the loopback; gives the port."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        port = listener.getsockname()[1]
    controller = Controller(mailbox, hostname="127.0.0.1", port=port)
    controller.start()
    try:
        yield port
    finally:
        controller.stop()


@contextmanager
def receivers(moments: dict[int, str]) -> Iterator[tuple[Mailbox, Board, list[str]]]:
    """Both of them, and their addresses: the mail server's port, the board's URL."""
    mailbox, board = Mailbox(), Board(moments)
    with mail_server(mailbox) as port, running(board) as address:
        yield mailbox, board, [str(port), address]


def main() -> None:
    mailbox, board = Mailbox(), Board({})
    with mail_server(mailbox, 8025) as port, running(board, 8091) as address, suppress(KeyboardInterrupt):
        print(f"Mail to 127.0.0.1:{port}, posts to {address}. Ctrl-C ends it.")
        threading.Event().wait()
    print(f"{len(mailbox.taken)} mails and {len(board.posts)} posts came.")


if __name__ == "__main__":
    main()
