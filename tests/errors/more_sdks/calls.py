"""Remote procedure calls and sockets."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable

from tests.errors.more_sdks import clients
from tests.errors.more_sdks.acts import Situations, answers, of, refused
from tests.errors.sdks.model import Act, constructed
from tests.errors.sdks.service import Service


def grpc(name: str, text: str = "no") -> Act:
    return lambda _: of("grpclib.exceptions.GRPCError")(getattr(of("grpclib.const.Status"), name), text)


def grpclib_refused(service: Service) -> object:
    async def call() -> None:
        host, _, port = service.refused.removeprefix("http://").partition(":")
        async with of("grpclib.client.Channel")(host, int(port)) as channel:
            await channel.__connect__()

    return asyncio.run(call())


GRPCLIB: Situations = {
    **{
        name: grpc(name)
        for name in (
            *("UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "UNAUTHENTICATED"),
            *("NOT_FOUND", "ABORTED", "UNIMPLEMENTED", "INTERNAL"),
        )
    },
    "RESOURCE_EXHAUSTED, the message is larger than max": grpc(
        "RESOURCE_EXHAUSTED", "Received message larger than max (5 vs. 4)"
    ),
    "connection refused": grpclib_refused,
    "the stream was terminated": constructed(
        "grpclib.exceptions.StreamTerminatedError", "Stream reset by remote party, error_code: 2"
    ),
}


def rpc(name: str) -> Act:
    return lambda _: of("temporalio.service.RPCError")(
        "no", getattr(of("temporalio.service.RPCStatusCode"), name), b""
    )


def workflow_failed(cause: Callable[[], object]) -> Act:
    return lambda _: of("temporalio.client.WorkflowFailureError")(cause=cause())


TEMPORAL: Situations = {
    **{
        name: rpc(name)
        for name in (
            *("UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "PERMISSION_DENIED"),
            *("NOT_FOUND", "INVALID_ARGUMENT", "INTERNAL"),
        )
    },
    "the workflow has already started": constructed(
        "temporalio.exceptions.WorkflowAlreadyStartedError", "id", "type"
    ),
    "an activity's timeout": lambda _: of("temporalio.exceptions.TimeoutError")(
        "activity StartToClose timeout",
        type=of("temporalio.exceptions.TimeoutType").START_TO_CLOSE,
        last_heartbeat_details=[],
    ),
    "a workflow failed: an error that says not to retry": workflow_failed(
        lambda: of("temporalio.exceptions.ApplicationError")("no", type="Bad", non_retryable=True)
    ),
    "a workflow was cancelled": workflow_failed(
        lambda: of("temporalio.exceptions.CancelledError")("cancelled")
    ),
    "an update's call timed out": constructed("temporalio.client.WorkflowUpdateRPCTimeoutOrCancelledError"),
    "connection refused": refused(clients.temporal),
}


def thrift_at(url: Callable[[Service], str], then: str = "open") -> Act:
    def act(service: Service) -> object:
        host, _, port = url(service).removeprefix("http://").partition(":")
        made = of("thrift.transport.TSocket.TSocket")(host, int(port))
        made.setTimeout(300)
        made.open()
        if then == "read":
            made.read(1)
        return made

    return act


def thrift_closed(_: Service) -> object:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            server.accept()[0].close()

        threading.Thread(target=accept, daemon=True).start()
        made = of("thrift.transport.TSocket.TSocket")("127.0.0.1", server.getsockname()[1])
        made.open()
        return made.read(1)


def application(name: str) -> Act:
    return lambda _: of("thrift.Thrift.TApplicationException")(
        getattr(of("thrift.Thrift.TApplicationException"), name)
    )


THRIFT: Situations = {
    "connection refused": thrift_at(lambda service: service.refused),
    "no answer in time": thrift_at(lambda service: service.silent, "read"),
    "the server closed the connection": thrift_closed,
    "UNKNOWN_METHOD": application("UNKNOWN_METHOD"),
    "INVALID_PROTOCOL": application("INVALID_PROTOCOL"),
    "INTERNAL_ERROR": application("INTERNAL_ERROR"),
    "the frame is larger than the maximum": lambda _: of("thrift.transport.TTransport.TTransportException")(
        of("thrift.transport.TTransport.TTransportException").SIZE_LIMIT, "Frame is too large"
    ),
    "BAD_VERSION": lambda _: of("thrift.protocol.TProtocol.TProtocolException")(
        of("thrift.protocol.TProtocol.TProtocolException").BAD_VERSION, "Missing version in readMessageBegin"
    ),
}


def closed(code: int, reason: str) -> Act:
    def act(_: Service) -> object:
        frame = of("websockets.frames.Close")(code, reason)
        return of("websockets.exceptions.ConnectionClosedError")(frame, frame, True)

    return act


socket_answer = answers(clients.websocket)
WEBSOCKETS: Situations = {
    "connection refused": refused(clients.websocket),
    "429 in the handshake, Retry-After: 3": socket_answer(429, {}, 3),
    "401 in the handshake": socket_answer(401),
    "503 in the handshake": socket_answer(503),
    "closed without a close frame": constructed("websockets.exceptions.ConnectionClosedError", None, None),
    **{
        f"{code}, {reason}": closed(code, reason)
        for code, reason in {
            **{1001: "going away", 1007: "invalid payload", 1008: "policy violation"},
            **{1009: "message too big", 1011: "internal error", 1012: "service restart"},
            1013: "try again later",
        }.items()
    },
}
