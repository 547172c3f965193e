"""Requests that are given up while they wait for a connection: they send nothing later, and take no place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prefect_resilience.calls.edge.bodies import library_of
from prefect_resilience.errors.exceptions import NotSent


def stoppable(request: Any, is_over: Callable[[], bool]) -> Any:
    """The request, for an attempt in a thread: if the attempt is over before there is a connection, the
    request is not sent. Another attempt may have been made."""
    around = request.extensions.get("trace")

    def trace(name: str, info: dict[str, Any]) -> None:
        if name.endswith(".send_request_headers.started") and is_over():
            raise NotSent("the attempt was over before its request was sent")
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
# A request that waits for a place is given a new connection, and makes it when it goes on. If it is cancelled
# in between, httpcore 1.0 leaves the connection in the pool: nobody will make it, and it takes a place for
# ever.


def lost_place(error: BaseException) -> bool:
    """Whether this end of a request may have left such a connection."""
    return not isinstance(error, Exception) or type(error).__name__ == "PoolTimeout"


def free_places(transport: Any) -> None:
    """Remove such connections from the transport's pool, and give their places to requests that wait."""
    pool: Any = getattr(transport, "_pool", None)
    if _marked(pool):
        with pool._optional_thread_lock:
            closing = pool._assign_requests_to_connections()
        pool._close_connections(closing)


async def afree_places(transport: Any) -> None:
    """As `free_places`, for an async transport."""
    pool: Any = getattr(transport, "_pool", None)
    if _marked(pool):
        await pool._close_connections(pool._assign_requests_to_connections())


def _marked(pool: Any) -> bool:
    """Mark each of these connections as failed. Returns whether there is one."""
    if not hasattr(pool, "_assign_requests_to_connections"):
        return False
    with pool._optional_thread_lock:
        wanted = {id(request.connection) for request in pool._requests}
        unmade = [_unmade(one) for one in pool._connections if id(one) not in wanted]
        for connection in unmade:
            if connection is not None:
                connection._connect_failed = True
    return any(unmade)


def _unmade(connection: Any) -> Any:
    """The connection that was never made: this one, or the one within that of a proxy."""
    while (inner := getattr(connection, "_connection", connection)) is not connection:
        if inner is None:
            return connection
        connection = inner
    return None
