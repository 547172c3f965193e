"""A receiver of HTTP requests, on bare sockets: each of its faults is one on the wire."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence

from tests.durable.effects.ways.door import AtTheDoor
from tests.durable.effects.ways.receiver import answer_to
from tests.durable.effects.ways.steps import Answer, Cut, Hold, Step

MESSAGE = "Message"
"""The header that names a message: redirects and retries of a client carry it along."""


class HttpReceiver(AtTheDoor):
    """A POST is a message; a GET takes nothing, but follows the script too."""

    def __init__(self) -> None:
        super().__init__()
        self.url = f"http://127.0.0.1:{self.port}"

    def _serve(self, connection: socket.socket) -> None:
        step = self.next_step()
        if step == Cut("accept"):
            return
        request = connection.makefile("rb")
        method = request.readline().split(b" ")[0]
        headers: dict[str, str] = {}
        while line := request.readline().strip():
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        if not method or step == Cut("headers"):
            return
        request.read(int(headers.get("content-length", 0)))
        message = headers.get(MESSAGE.lower(), "")
        answer = self._answer_of(step, message if method == b"POST" else "")
        if answer is not None:
            connection.sendall(_on_the_wire(answer, message))

    def _answer_of(self, step: Step, message: str) -> Answer | None:
        if isinstance(step, Hold):
            self.hold(message, step)
            return step.then
        takes = step.takes if isinstance(step, Answer) else True
        if message and takes:
            self.take(message)
        return step if isinstance(step, Answer) else None


def _on_the_wire(answer: Answer, message: str) -> bytes:
    body = json.dumps({"id": answer_to(message), "error": {"message": f"status {answer.status}"}}).encode()
    lines: Sequence[str] = [
        f"HTTP/1.1 {answer.status} Said",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *(f"{name}: {value}" for name, value in answer.headers),
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
