"""The receivers of a rehearsal of the digest: a mail server and a board that count what they take.

    prefect-resilience rehearse flows/send_digest.py:send_digest --receiver flows/digest_rehearsal.py

Each post is made once. A mail whose outcome is unknown stops the digest for a person: mail has no `verify`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from flows.digest_receivers import Board, Mailbox, mail_server
from flows.serving import running


def receiver(took: Callable[[str, str], None]) -> Iterator[dict[str, Any]]:
    class CountingMailbox(Mailbox):
        async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
            for recipient in envelope.rcpt_tos:
                took(f"mail to {recipient}", "")
            return await super().handle_DATA(server, session, envelope)

    class CountingBoard(Board):
        async def post(self, request: Request) -> Response:
            took(f"post about {(await request.json())['topic']}", request.headers.get("Idempotency-Key", ""))
            return await super().post(request)

    with mail_server(CountingMailbox()) as port, running(CountingBoard({})) as address:
        yield {"week": "2026-47", "port": port, "board": address}
