"""What an error proves about a call to the world outside: that it took no effect, or nothing.

Joined with the kind of the effect this is the rule of its retries: an external call is made again only
after an error that proves that the one before did nothing, or once the receiver has been asked. It holds for
functions that make one such call; one that makes several says `NotSent` itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from prefect_resilience.effects.policy import Effect
from prefect_resilience.errors.http import status_of
from prefect_resilience.errors.info import ErrorInfo
from prefect_resilience.errors.shapes import as_status, class_names, read
from prefect_resilience.errors.taxonomy import ErrorCategory as C


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# No connection was made, or the receiver said no to what it got.
_NOT_DONE = _names(
    """
    prefect_resilience.NotSent prefect_resilience.CircuitOpenError prefect_resilience.LimitRefused
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

_CATEGORIES = frozenset({C.RATE_LIMIT, C.CIRCUIT_OPEN})
_GRPC = frozenset({"grpc.RpcError", "grpclib.GRPCError"})
_GRPC_REFUSALS = _names(
    """
    INVALID_ARGUMENT NOT_FOUND PERMISSION_DENIED UNAUTHENTICATED FAILED_PRECONDITION OUT_OF_RANGE
    UNIMPLEMENTED RESOURCE_EXHAUSTED
    """
)
_OPEN_STATUSES = frozenset({408, 409, 499})
"""Of the 4xx: cut off half-way, or "I have it already", or the client itself went away."""

_MOST_LINKS = 100


def proves_not_done(error: BaseException, info: ErrorInfo) -> bool:
    """Whether the error proves that the call took no effect: it never arrived, or the receiver said no.

    `info` is what `classify` says of the error. Anything on the way that was cut off half-way outweighs
    every proof; of a group each member must prove it.
    """
    if any(_leaves_open(link) for link in _closure(error, everything=True)):
        return False
    if info.category in _CATEGORIES:
        return True
    members = _members(error)
    if members:
        return all(proves_not_done(member, info) for member in members)
    if any(_refuses(link) for link in _closure(error, everything=False)):
        return True
    status = as_status(info.details.get("status"))
    return (status is not None and _is_refusal(status)) or _grpc_refusal(error, info)


def _leaves_open(link: BaseException) -> bool:
    named = _first_named(link)
    if named is not None:
        return named in _UNKNOWN
    status = status_of(link)
    return status is not None and (status >= 500 or status in _OPEN_STATUSES)


def _refuses(link: BaseException) -> bool:
    if _first_named(link) in _NOT_DONE:
        return True
    status = status_of(link)
    return status is not None and _is_refusal(status)


def _first_named(link: BaseException) -> str | None:
    """The nearest of an exception's classes that is known here."""
    return next((name for name in class_names(link) if name in _NOT_DONE or name in _UNKNOWN), None)


def _is_refusal(status: int) -> bool:
    return 400 <= status < 500 and status not in _OPEN_STATUSES


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


def retry_refusal(effect: Effect, *, doubt: bool) -> str | None:
    """Why the call may not be made again although the retry policy would, or None when it may.

    `doubt`: what became of the last call is unknown.
    """
    if not doubt or not effect.external or effect.verify is not None:
        return None
    return "whether it took effect is unknown, and an external effect without verify is not sent again"
