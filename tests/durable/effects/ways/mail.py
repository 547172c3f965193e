"""A mail server on loopback that says no, or hangs up, at any stage of the dialogue; and smtplib."""

from __future__ import annotations

import smtplib
import socket
from email.message import EmailMessage
from typing import BinaryIO

from tests.durable.effects.ways.clients import Client
from tests.durable.effects.ways.door import AtTheDoor
from tests.durable.effects.ways.http_receiver import MESSAGE
from tests.durable.effects.ways.receiver import answer_to
from tests.durable.effects.ways.steps import At, Hold, Step

OPENING, END, QUIT = "connect", "end", "QUIT"
_USUAL = {OPENING: 220, "DATA": 354, QUIT: 221}
CUT = 0


class MailServer(AtTheDoor):
    """Takes a mail when its end has come, unless the script says no to it there."""

    def __init__(self) -> None:
        super().__init__()
        self.url = f"smtp://127.0.0.1:{self.port}"

    def _serve(self, connection: socket.socket) -> None:
        step = self.next_step()
        lines = connection.makefile("rb")
        if not _said(connection, OPENING, step):
            return
        while line := lines.readline():
            stage = line.strip().decode().upper()[:4]
            if not _said(connection, stage, step) or stage == QUIT:
                return
            if stage == "DATA" and _code(stage, step) == 354:
                self._receive(_message_in(lines), step)
                if not _said(connection, END, step):
                    return

    def _receive(self, message: str, step: Step) -> None:
        if isinstance(step, Hold):
            self.hold(message, step)
        elif _code(END, step) in (250, CUT):
            self.take(message)


def _code(stage: str, step: Step) -> int:
    if isinstance(step, At) and step.stage == stage:
        return step.says
    return _USUAL.get(stage, 250)


def _said(connection: socket.socket, stage: str, step: Step) -> bool:
    """Whether the dialogue goes on after what is said at this stage."""
    code = _code(stage, step)
    if code != CUT:
        connection.sendall(f"{code} said\r\n".encode())
    return code != CUT


def _message_in(lines: BinaryIO) -> str:
    message = ""
    for line in lines:
        if line.strip() == b".":
            return message
        name, _, value = line.strip().decode().partition(": ")
        if name == MESSAGE:
            message = value
    raise ConnectionResetError("the client went away before the mail's end")


class Smtp(Client):
    """A mail of one recipient."""

    def post(self, message: str) -> str:
        mail = EmailMessage()
        mail["From"], mail["To"], mail[MESSAGE] = "a@example.org", "b@example.org", message
        mail.set_content("Hello.")
        port = self.world.receiver.port
        with smtplib.SMTP("127.0.0.1", port, "localhost", timeout=self.world.read_seconds) as server:
            server.send_message(mail)
        return answer_to(message)
