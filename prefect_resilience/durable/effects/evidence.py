"""What is known of a call that ended in an error: that it took no effect, or nothing.

An exception proves nothing by itself, since the function may have made several requests. It is proof where
the function was never entered; where it raised `NotSent`; where a witness saw all that left (`witness.py`);
and where the author promised one request, and nothing in the error speaks against that.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from typing import Any, cast

from prefect_resilience.durable.effects.policy import Effect
from prefect_resilience.errors.classify.classify import classify
from prefect_resilience.errors.classify.http import status_of
from prefect_resilience.errors.classify.shapes import as_status, class_names, read
from prefect_resilience.errors.exceptions import NotRecorded, NotSent
from prefect_resilience.errors.taxonomy import ErrorCategory as C
from prefect_resilience.errors.taxonomy import ErrorInfo

# A witness of one call: which requests left, and what each was answered.
#
# `send_idempotency_key`, an httpx event hook, hands every request to it, and httpcore's `trace` extension
# tells it what happens to each on the wire: retries of the transport and redirects are requests of their
# own. Python's audit events tell it of what leaves by other clients, whose requests it cannot see.


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


OPEN_STATUSES = frozenset({408, 409, 499})
"""Of the 4xx: cut off half-way, or "I have it already", or the client itself went away."""

_CONNECTS = ("connect_tcp", "connect_unix_socket")
_SENDS = _names(
    """
    http.client.send smtplib.send ftplib.sendcmd imaplib.send poplib.putline sqlite3.connect
    socket.connect socket.sendto socket.sendmsg subprocess.Popen os.system os.posix_spawn
    """
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


@cache
def watch_other_traffic(current: ContextVar[Any]) -> None:
    """Tell the witness of the call that is going on, `current.get().witness`, of what leaves by other
    clients.

    Python's audit hooks stay for the life of a process, so this is done once, when the first call is
    witnessed.
    """

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event in _SENDS and (now := current.get(None)) is not None and not _is_local(event, args):
            now.witness.saw_other(event)

    sys.addaudithook(hook)


# No connection was made, or the receiver said no to what it got.
_NOT_DONE = _names(
    """
    builtins.ConnectionRefusedError socket.gaierror socket.herror ssl.SSLCertVerificationError
    httpx.ConnectError httpx.ConnectTimeout httpx.PoolTimeout httpx.UnsupportedProtocol httpx.InvalidURL
    httpx2.ConnectError httpx2.ConnectTimeout httpx2.PoolTimeout httpx2.UnsupportedProtocol
    httpcore.ConnectError httpcore.ConnectTimeout httpcore.PoolTimeout httpcore.UnsupportedProtocol
    requests.ConnectTimeout requests.InvalidURL requests.MissingSchema requests.InvalidSchema
    urllib3.NewConnectionError urllib3.ConnectTimeoutError urllib3.EmptyPoolError
    aiohttp.ClientConnectorError aiohttp.ConnectionTimeoutError aiohttp.InvalidURL
    botocore.ConnectTimeoutError botocore.EndpointConnectionError botocore.NoCredentialsError
    smtplib.SMTPConnectError smtplib.SMTPHeloError smtplib.SMTPAuthenticationError
    smtplib.SMTPSenderRefused smtplib.SMTPRecipientsRefused smtplib.SMTPDataError
    """
)

# The call was on its way, and what became of it was not heard.
_UNKNOWN = _names(
    """
    prefect_resilience.AttemptTimeout prefect_resilience.ProcessDied
    builtins.ConnectionResetError builtins.ConnectionAbortedError builtins.BrokenPipeError
    httpx.ReadTimeout httpx.WriteTimeout httpx.ReadError httpx.WriteError httpx.CloseError
    httpx.RemoteProtocolError
    httpx2.ReadTimeout httpx2.WriteTimeout httpx2.ReadError httpx2.WriteError httpx2.RemoteProtocolError
    httpcore.ReadTimeout httpcore.WriteTimeout httpcore.ReadError httpcore.WriteError
    httpcore.RemoteProtocolError
    requests.ReadTimeout requests.ChunkedEncodingError
    urllib3.ReadTimeoutError urllib3.ProtocolError
    aiohttp.ServerDisconnectedError aiohttp.ServerTimeoutError aiohttp.ClientPayloadError
    aiohttp.ClientOSError
    botocore.ReadTimeoutError botocore.ConnectionClosedError
    http.RemoteDisconnected http.IncompleteRead smtplib.SMTPServerDisconnected
    """
)

_GRPC = frozenset({"grpc.RpcError", "grpclib.GRPCError"})
_GRPC_REFUSALS = _names(
    """
    INVALID_ARGUMENT NOT_FOUND PERMISSION_DENIED UNAUTHENTICATED FAILED_PRECONDITION OUT_OF_RANGE
    UNIMPLEMENTED RESOURCE_EXHAUSTED
    """
)
_MOST_LINKS = 100
_WITNESSED = ("httpx", "httpcore")


def proves_not_done(
    error: BaseException, info: ErrorInfo | None, *, entered: bool, effect: Effect, witness: Witness | None
) -> bool:
    """Whether it is certain that the call took no effect. `info` is what `classify` says of the error.

    `entered`: whether the function was called at all. `witness` saw what left; None where none could.
    """
    if not entered or says_not_sent(error):
        return True
    if info is None:  # cancelled or interrupted
        return False
    if witness is not None and witness.requests:
        return witness.shows_nothing_taken() and not _other_traffic(error)
    return effect.one_request and speaks_for_itself(error, info)


def says_not_sent(error: BaseException) -> bool:
    """Whether the function's own word is that nothing was sent; an effect inside it speaks for itself
    alone."""
    members = _members(error)
    if members:
        return all(says_not_sent(member) for member in members)
    return isinstance(error, NotSent) and not isinstance(error, NotRecorded)


def speaks_for_itself(error: BaseException, info: ErrorInfo) -> bool:
    """Whether the error of one single request says that it took no effect: it never arrived, or was refused.

    Whatever shows that there was more than one request, a redirect or a call that was cut off half-way,
    outweighs it; of a group each member must prove it.
    """
    if any(_leaves_open(link) for link in _closure(error, everything=True)):
        return False
    members = _members(error)
    if members:
        # What is known of a group is what is known of one of its members.
        return all(says_not_sent(one) or speaks_for_itself(one, classify(one)) for one in members)
    if info.category is C.RATE_LIMIT and _is_answer(error):
        return True
    if any(_refuses(link) for link in _closure(error, everything=False)):
        return True
    status = as_status(info.details.get("status"))
    return (status is not None and is_refusal(status)) or _grpc_refusal(error, info)


def _is_answer(error: BaseException) -> bool:
    """Whether it is somebody else's error: what a guard of ours refuses inside the function proves
    nothing."""
    return not any(name.startswith("prefect_resilience.") for name in class_names(error))


def _other_traffic(error: BaseException) -> bool:
    """Whether the error comes of a request that no witness saw."""
    names = (_first_named(link) for link in _closure(error, everything=True))
    return any(name in _UNKNOWN and not name.startswith(_WITNESSED) for name in names if name is not None)


def _leaves_open(link: BaseException) -> bool:
    named = _first_named(link)
    if named is not None and named in _UNKNOWN:
        return True
    if _was_redirected(link):
        return True
    status = status_of(link)
    return named is None and status is not None and not is_refusal(status) and status >= 300


def _was_redirected(link: BaseException) -> bool:
    """Whether the error belongs to the last of several requests: its response has a history, or its request
    is what a redirect makes of a POST."""
    response, request = read(link, "response"), read(link, "request")
    if read(response, "history"):
        return True
    sent = read(response, "request") or request
    return str(read(sent, "method") or "").upper() == "GET" and not _has_body(sent)


def _has_body(request: object) -> bool:
    return bool(read(request, "body")) or bool(read(request, "content"))


def _refuses(link: BaseException) -> bool:
    if _first_named(link) in _NOT_DONE:
        return True
    status = status_of(link)
    return status is not None and is_refusal(status)


def _first_named(link: BaseException) -> str | None:
    """The nearest of an exception's classes that is known here."""
    return next((name for name in class_names(link) if name in _NOT_DONE or name in _UNKNOWN), None)


def _grpc_refusal(error: BaseException, info: ErrorInfo) -> bool:
    return info.code in _GRPC_REFUSALS and not _GRPC.isdisjoint(class_names(error))


def _closure(error: BaseException, *, everything: bool) -> Iterable[BaseException]:
    """The exception and those it carries or names as its cause; with `everything`, also what it was raised
    during and the members of a group."""
    found: dict[int, BaseException] = {}
    waiting: list[object] = [error]
    while waiting and len(found) < _MOST_LINKS:
        link = waiting.pop(0)
        if not isinstance(link, BaseException) or id(link) in found:
            continue
        found[id(link)] = link
        # urllib3 and urllib keep what went wrong as `reason`, requests keeps urllib3's error in its arguments
        waiting += [link.__cause__, read(link, "reason"), *link.args]
        if everything:
            waiting += [link.__context__, *_members(link)]
    return found.values()


def _members(error: BaseException) -> tuple[BaseException, ...]:
    members = read(error, "exceptions")
    if not isinstance(members, tuple):
        return ()
    return tuple(one for one in cast("tuple[Any, ...]", members) if isinstance(one, BaseException))


def spared_by(error: BaseException, info: ErrorInfo | None, effect: Effect, witness: Witness) -> str | None:
    """What would have turned this doubt into proof; None: nothing would."""
    if info is None or not speaks_for_itself(error, info):
        return None
    if witness.others:
        return (
            f"the witness of the HTTP client did not see all that left ({witness.others[0]}): if nothing "
            "else is sent, write Effect(one_request=True), or raise NotSent where it is certain"
        )
    if witness.requests or effect.one_request:
        return None
    return (
        "if the function makes one request, its error would prove that nothing was taken: make it with "
        "httpx.Client(event_hooks={'request': [send_idempotency_key]}), or write Effect(one_request=True)"
    )
