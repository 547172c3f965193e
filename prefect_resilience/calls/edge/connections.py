"""Requests that are abandoned while they wait for a connection: they are not sent later, and their places in
the pool are freed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

from prefect_resilience.calls.edge.bodies import library_of
from prefect_resilience.errors.exceptions import NotSent


def stoppable(request: Any, is_over: Callable[[], bool]) -> Any:
    """The request, for an attempt in a thread: if the attempt is over before there is a connection, the
    request is not sent, because another attempt may have been made."""
    around = request.extensions.get("trace")

    def trace(name: str, info: dict[str, Any]) -> None:
        if name.endswith(".send_request_headers.started") and is_over():
            raise NotSent("the attempt had ended before its request was sent")
        if around is not None:
            around(name, info)

    return library_of(request).Request(
        request.method,
        request.url,
        headers=request.headers,
        stream=request.stream,
        extensions={**request.extensions, "trace": trace},
    )


# Places in the connection pools of httpcore.
#
# httpcore 1.0 shields what must not be cancelled with anyio, and `asyncio` cancels it all the same. A request
# that is cancelled while it is given a connection, makes it, or closes its answer may leave the connection in
# the pool as one in use: it takes a place for ever.


def is_place_lost(error: BaseException) -> bool:
    """Whether this end of a request may have left such a connection."""
    return not isinstance(error, Exception) or type(error).__name__ == "PoolTimeout"


def free_places(transport: Any, ended: Any) -> None:
    """Take such connections, and the request that has ended, out of the transport's pool. Their places are
    given to requests that wait."""
    pool: Any = getattr(transport, "_pool", None)
    if hasattr(pool, "_assign_requests_to_connections"):
        for connection in _take_leftovers(pool, ended):
            connection.close()


async def afree_places(transport: Any, ended: Any) -> None:
    """As `free_places`, for an async transport."""
    pool: Any = getattr(transport, "_pool", None)
    if hasattr(pool, "_assign_requests_to_connections"):
        left_over = _take_leftovers(pool, ended)
        if left_over:
            await asyncio.shield(asyncio.create_task(_close_all(left_over)))


async def _close_all(connections: list[Any]) -> None:
    for connection in connections:
        with suppress(Exception):  # it is out of the pool, and its socket is closed first
            await connection.aclose()


def _take_leftovers(pool: Any, ended: Any) -> list[Any]:
    """The connections to close: those in use of which no request makes use."""
    with pool._optional_thread_lock:
        for request in [*pool._requests]:
            if request.request.extensions is ended.extensions:
                pool._requests.remove(request)
        wanted = {id(request.connection) for request in pool._requests}
        left_over = [
            connection
            for connection in pool._connections
            if id(connection) not in wanted and not connection.is_idle() and not connection.is_closed()
        ]
        for connection in left_over:
            pool._connections.remove(connection)
        return [*left_over, *pool._assign_requests_to_connections()]


class AsyncPooledStream:
    """The body of an answer whose connection goes back to the pool also when its end is cancelled."""

    def __init__(self, response: Any, transport: Any) -> None:
        self._stream: Any = response.stream
        self._request: Any = response.request
        self._transport = transport
        self._interrupted = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._stream:
                yield chunk
        except asyncio.CancelledError:  # it may have interrupted the end of the stream
            self._interrupted = True
            raise

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        except BaseException:
            self._interrupted = True
            raise
        finally:
            if self._interrupted:
                await afree_places(self._transport, self._request)
