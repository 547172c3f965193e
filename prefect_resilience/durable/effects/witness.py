"""A witness of one call: which requests left, and what each was answered.

`send_idempotency_key`, an httpx event hook, hands every request to it, and httpcore's `trace` extension
tells it what happens to each on the wire: retries of the transport and redirects are requests of their own.
Python's audit events tell it of what leaves by other clients, whose requests it cannot see.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, cast

OPEN_STATUSES = frozenset({408, 409, 499})
"""Of the 4xx: cut off half-way, or "I have it already", or the client itself went away."""

_CONNECTS = ("connect_tcp", "connect_unix_socket")
_SENDS = frozenset(
    [
        "http.client.send",
        "smtplib.send",
        "ftplib.sendcmd",
        "imaplib.send",
        "poplib.putline",
        "socket.connect",
        "socket.sendto",
        "socket.sendmsg",
        "subprocess.Popen",
        "os.system",
        "os.posix_spawn",
        "sqlite3.connect",
    ]
)
MOST_OTHERS = 5


def is_refusal(status: int) -> bool:
    """Whether an answer of that status says that the request was not taken."""
    return 400 <= status < 500 and status not in OPEN_STATUSES


@dataclass(slots=True)
class SeenRequest:
    """One request of a client that the witness was told of. `statuses`: of each time that it left, what it
    was answered; None: nothing so far."""

    method: str
    url: str
    tried: bool = False
    """Whether a connection for it was asked for; not so where the client has a transport of its own."""
    statuses: list[int | None] = field(default_factory=list[int | None])

    @property
    def not_taken(self) -> bool:
        """Whether it never left, or was refused each time."""
        return self.tried and all(status is not None and is_refusal(status) for status in self.statuses)


class Witness:
    """What left during one call. Safe between threads and tasks: each appends."""

    def __init__(self) -> None:
        self.requests: list[SeenRequest] = []
        self.others: list[str] = []
        self._connecting = 0
        self._lock = threading.Lock()

    def shows_nothing_taken(self) -> bool:
        """Whether all that left was refused, and nothing left that nobody saw."""
        return bool(self.requests) and not self.others and all(one.not_taken for one in self.requests)

    def seen(self) -> tuple[list[SeenRequest], list[str]]:
        """What it saw, for the witness of another process."""
        return self.requests, self.others

    def add(self, requests: list[SeenRequest], others: list[str]) -> None:
        """Take over what the witness of the same call in another process saw."""
        self.requests += requests
        self.others += others

    def saw_other(self, what: str) -> None:
        """Something left by a way that tells no more about it."""
        own = what == "socket.connect" and self._connecting > 0
        if not own and len(self.others) < MOST_OTHERS:
            self.others.append(what)

    def told(self, seen: SeenRequest, name: str, info: dict[str, Any]) -> None:
        """One event of httpcore's trace."""
        step, _, stage = name.rpartition(".")
        step = step.rpartition(".")[2]
        if step in _CONNECTS:
            seen.tried = True
            with self._lock:
                self._connecting += 1 if stage == "started" else -1
        elif step == "send_request_headers" and stage == "started" and not _is_tunnel(info):
            seen.tried = True
            seen.statuses.append(None)
        elif step == "receive_response_headers" and stage == "complete" and seen.statuses:
            seen.statuses[-1] = _status_in(info.get("return_value"))


def _is_tunnel(info: dict[str, Any]) -> bool:
    """Whether the request is the client's own to a proxy, which opens a way and carries nothing."""
    return getattr(info.get("request"), "method", None) == b"CONNECT"


def _status_in(answer: object) -> int | None:
    """The status of `(version, status, ...)`, as HTTP/1.1 has it, or of `(status, headers)`, as HTTP/2."""
    if not isinstance(answer, tuple):
        return None
    parts = cast("tuple[Any, ...]", answer)
    return next((part for part in parts[:2] if isinstance(part, int) and not isinstance(part, bool)), None)


class _Trace:
    """What httpcore calls with every step of a request; a callback of the user's own goes on being called."""

    def __init__(self, witness: Witness, seen: SeenRequest, wrapped: Callable[..., Any] | None) -> None:
        self.witness = witness
        self.seen = seen
        self.wrapped = wrapped

    def __call__(self, name: str, info: dict[str, Any]) -> Any:
        self.witness.told(self.seen, name, info)
        return None if self.wrapped is None else self.wrapped(name, info)


class _AsyncTrace(_Trace):
    async def __call__(self, name: str, info: dict[str, Any]) -> None:
        self.witness.told(self.seen, name, info)
        if self.wrapped is not None:
            await self.wrapped(name, info)


def attend(witness: Witness, request: Any) -> Callable[[], None]:
    """Let the witness see an httpx request, of a `Client`; what is returned makes it one of an
    `AsyncClient`."""
    seen = SeenRequest(str(request.method), str(request.url))
    witness.requests.append(seen)
    before = request.extensions.get("trace")
    while isinstance(before, _Trace):  # a redirect takes the extensions of its request along
        before = before.wrapped
    request.extensions["trace"] = _Trace(witness, seen, before)

    def become_async() -> None:
        request.extensions["trace"] = _AsyncTrace(witness, seen, before)

    return become_async


def _is_local(event: str, args: tuple[Any, ...]) -> bool:
    """Whether it is Python's `platform` asking for the processor, as SDKs do for their first request."""
    return event == "subprocess.Popen" and list(args[1]) == ["uname", "-p"]


_installed = False


def watch_other_traffic(current: ContextVar[Any]) -> None:
    """Tell the witness of the call that is going on, `current.get().witness`, of what leaves by other
    clients.

    Python's audit hooks stay for the life of a process, so this is done once, when the first call is
    witnessed.
    """
    global _installed
    if _installed:
        return
    _installed = True

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event in _SENDS and (now := current.get(None)) is not None and not _is_local(event, args):
            now.witness.saw_other(event)

    sys.addaudithook(hook)
