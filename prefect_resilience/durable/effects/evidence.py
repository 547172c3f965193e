"""Whether an error proves that a call took no effect.

An exception alone proves nothing, since the function may have made several requests. It is proof if the
function was never entered, if it raised `NotSent`, if a witness saw all requests and nothing else can have
left, if a tool asked its agent's framework for something and nothing can have left, or if the author promised
one request (`one_request=True`) and the error does not contradict that.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

from prefect_resilience.durable.effects.policy import Effect
from prefect_resilience.durable.effects.witness import Witness, is_refusal, names
from prefect_resilience.errors.classify.classify import classify
from prefect_resilience.errors.classify.http import status_of
from prefect_resilience.errors.classify.shapes import as_status, class_names, read
from prefect_resilience.errors.exceptions import NotRecorded, NotSent
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.errors.taxonomy import ErrorCategory as C
from prefect_resilience.errors.taxonomy import ErrorInfo

# No connection was made, or the receiver refused the request.
_NOT_DONE = names(
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

# The request was sent, and its outcome is unknown.
_UNKNOWN = names(
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

# By these a tool asks its agent's framework for another call, or for a person.
_REQUESTS = names(
    "pydantic_ai.ModelRetry pydantic_ai.CallDeferred pydantic_ai.ApprovalRequired langgraph.GraphBubbleUp"
)
_GRPC = frozenset({"grpc.RpcError", "grpclib.GRPCError"})
_GRPC_REFUSALS = names(
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
    """Whether the call certainly took no effect. `info` is the classified error.

    `entered`: whether the function was called at all. `witness`: None if there was none.
    """
    if not entered or says_not_sent(error):
        return True
    if info is None:  # cancelled or interrupted
        return False
    if witness is not None and is_request(error):
        return not witness.saw_something()
    if witness is not None and witness.requests:
        alone = witness.shows_nothing_taken() or (effect.one_request and not witness.others)
        return alone and witness.all_rejected() and not _other_traffic(error)
    return effect.one_request and speaks_for_itself(error, info)


def is_request(error: BaseException) -> bool:
    """Whether a tool asks the framework of its agent for something; this is not a failure."""
    return not _REQUESTS.isdisjoint(class_names(error))


def never_left(error: BaseException) -> bool:
    """Whether the error of a single request proves that nothing of it was sent."""
    links = _closure(error, everything=False)
    spoken_for = _spoken_for(links)
    names = {_first_named(link) for link in links if id(link) not in spoken_for} - {None}
    return bool(names) and names <= _NOT_DONE


def says_not_sent(error: BaseException) -> bool:
    """Whether the function raised `NotSent` itself. One from an effect inside it does not count."""
    members = _members(error)
    if members:
        return all(says_not_sent(member) for member in members)
    return isinstance(error, NotSent) and not isinstance(error, NotRecorded)


def speaks_for_itself(error: BaseException, info: ErrorInfo) -> bool:
    """Whether the error of a single request proves that it took no effect: it never arrived, or was rejected.

    False if there are signs of more than one request, such as a redirect, or of an interrupted call. In a
    group, each member must prove it.
    """
    if any(_leaves_open(link) for link in _closure(error, everything=True)):
        return False
    members = _members(error)
    if members:
        return all(says_not_sent(member) or speaks_for_itself(member, classify(member)) for member in members)
    if info.category is C.RATE_LIMIT and _is_answer(error):
        return True
    if any(_refuses(link) for link in _closure(error, everything=False)):
        return True
    status = as_status(info.details.get("status"))
    return (status is not None and is_refusal(status)) or _grpc_refusal(error, info)


def _is_answer(error: BaseException) -> bool:
    """Whether the error is not this package's: a guard inside the function may reject after a request."""
    return not any(name.startswith("prefect_resilience.") for name in class_names(error))


def _other_traffic(error: BaseException) -> bool:
    """Whether the error comes from a request that the witness did not see."""
    links = _closure(error, everything=True)
    spoken_for = _spoken_for(links)
    names = (_first_named(link) for link in links if id(link) not in spoken_for)
    return any(name in _UNKNOWN and not name.startswith(_WITNESSED) for name in names if name is not None)


def _spoken_for(links: Collection[BaseException]) -> set[int]:
    """The `id` of each cause of an error of httpx or httpcore. Such an error says which part of the request
    failed: a connection that was reset during the TLS handshake is a ConnectError."""
    causes: set[int] = set()
    for link in links:
        named = _first_named(link)
        if named is not None and named.startswith(_WITNESSED):
            causes |= {id(cause) for cause in _closure(link, everything=False) if cause is not link}
    return causes


def _leaves_open(link: BaseException) -> bool:
    named = _first_named(link)
    if named is not None and named in _UNKNOWN:
        return True
    if _was_redirected(link):
        return True
    status = status_of(link)
    return named is None and status is not None and not is_refusal(status) and status >= 300


def _was_redirected(link: BaseException) -> bool:
    """Whether the error belongs to a redirected request: its response has a history, or its request is a
    GET without a body, since a redirect turns a POST into a GET."""
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
    """The first of an exception's classes that is in the tables above."""
    return next((name for name in class_names(link) if name in _NOT_DONE or name in _UNKNOWN), None)


def _grpc_refusal(error: BaseException, info: ErrorInfo) -> bool:
    return info.code in _GRPC_REFUSALS and not _GRPC.isdisjoint(class_names(error))


def _closure(error: BaseException, *, everything: bool) -> Collection[BaseException]:
    """The exception, its causes and the exceptions in its arguments. With `everything`, also the exceptions
    that were being handled when it was raised, and the members of a group."""
    links: dict[int, BaseException] = {}
    waiting: list[object] = [error]
    while waiting and len(links) < _MOST_LINKS:
        link = waiting.pop(0)
        if not isinstance(link, BaseException) or id(link) in links:
            continue
        links[id(link)] = link
        # urllib3 and urllib keep the cause as `reason`, requests keeps urllib3's error in its arguments
        waiting += [link.__cause__, read(link, "reason"), *link.args]
        if everything:
            waiting += [link.__context__, *_members(link)]
    return links.values()


def _members(error: BaseException) -> tuple[BaseException, ...]:
    members = read(error, "exceptions")
    if not isinstance(members, tuple):
        return ()
    return tuple(member for member in cast("tuple[Any, ...]", members) if isinstance(member, BaseException))


def hint_of(error: BaseException, info: ErrorInfo | None, effect: Effect, witness: Witness) -> str | None:
    """A hint how such an error could be proof next time; None if it could not be."""
    if info is None or not speaks_for_itself(error, info):
        return None
    if beside := [*witness.others, *witness.beside()]:
        promise = "" if effect.one_request else "write Effect(one_request=True), or "
        return redact(
            f"the HTTP client's hook did not see all traffic ({beside[0]}): if the function sends "
            f"nothing else, {promise}raise NotSent where that is certain"
        )
    if witness.requests or effect.one_request:
        return None
    return (
        "if the function makes only one request, this error can prove that it took no effect: make it with "
        "httpx.Client(event_hooks={'request': [send_idempotency_key]}), or write Effect(one_request=True)"
    )
