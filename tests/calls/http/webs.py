"""One scenario for both clients: `Web` is a sync or an async client, and each of its steps a plain call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import httpx
import pytest
import requests

from prefect_resilience.guards.retries.backoff import Backoff
from prefect_resilience.guards.retries.policy import Retry
from prefect_resilience.http import AsyncResilientTransport, ResilientAdapter, ResilientTransport
from tests.calls.http.server import Act

AT_ONCE = Retry(attempts=3, backoff=Backoff.none())
PATIENCE = 5.0

WAYS = ["sync", "async", "requests"]
each_client = pytest.mark.parametrize("way", WAYS)
"""With a requests session, too."""


def each_fault(*more: Act) -> Any:
    faults = [Act(503), Act(cut="after"), Act(cut="before"), Act(cut="headers"), *more]
    # a requests session takes an answer that was cut within its headers for a whole one
    cases = [(way, fault) for way in WAYS for fault in faults if way != "requests" or fault.cut != "headers"]
    return pytest.mark.parametrize(("way", "fault"), cases)


class Web:
    """A client with a resilient transport. `of_transport` and `of_client` are their options."""

    error: type[Exception] = httpx.HTTPError

    def __init__(
        self, isasync: bool, runner: asyncio.Runner, of_client: dict[str, Any], **of_transport: Any
    ) -> None:
        self.isasync = isasync
        self._runner = runner
        options = {"retry": AT_ONCE, "circuit": None, **of_transport}
        made: dict[str, Any] = {"timeout": 5.0, **of_client}
        self.transport: Any
        self.client: Any
        if isasync:
            self.transport = AsyncResilientTransport(**options)
            self.client = httpx.AsyncClient(transport=self.transport, **made)
        else:
            self.transport = ResilientTransport(**options)
            self.client = httpx.Client(transport=self.transport, **made)

    def wait(self, made: Any) -> Any:
        """The result, awaited if this is the async client."""
        if not self.isasync:
            return made

        async def awaited() -> Any:
            return await made

        return self._runner.run(awaited())

    def run(self, steps: Awaitable[Any]) -> Any:
        async def awaited() -> Any:
            return await steps

        return self._runner.run(awaited())

    def ask(self, method: str, url: str, **options: Any) -> httpx.Response:
        return self.wait(self.client.request(method, url, **options))

    def get(self, url: str, **options: Any) -> httpx.Response:
        return self.ask("GET", url, **options)

    def post(self, url: str, **options: Any) -> httpx.Response:
        return self.ask("POST", url, **options)

    def open(self, method: str, url: str, **options: Any) -> httpx.Response:
        """Send, and return with the headers; the body is read later."""
        request = self.client.build_request(method, url, **options)
        return self.wait(self.client.send(request, stream=True))

    def read(self, response: httpx.Response) -> bytes:
        return self.wait(response.aread() if self.isasync else response.read())

    def chunks(self, response: httpx.Response, into: list[bytes]) -> None:
        """Read raw chunk after raw chunk."""

        async def read() -> None:
            async for chunk in response.aiter_raw():
                into.append(chunk)

        if self.isasync:
            self.run(read())
        else:
            for chunk in response.iter_raw():
                into.append(chunk)  # one by one: what came before an error is kept

    def shut(self, response: httpx.Response) -> None:
        self.wait(response.aclose() if self.isasync else response.close())

    def close(self) -> None:
        self.wait(self.client.aclose() if self.isasync else self.client.close())

    def pieces(self, of: Iterable[bytes]) -> Any:
        """A body that can be iterated only once, as this client takes it."""
        if not self.isasync:
            return (piece for piece in of)

        async def made() -> Any:
            for piece in of:
                yield piece

        return made()

    def calm(self) -> bool:
        """Whether the pool comes to rest: each connection is idle or closed, and no request is queued."""
        pool = self.transport._inner._pool
        return until(lambda: not pool._requests and all(map(_rests, pool.connections)))


class RequestsWeb:
    """As much of a `Web` as a requests session can do."""

    error = requests.RequestException
    isasync = False

    def __init__(self, **of_adapter: Any) -> None:
        self.client = requests.Session()
        self.client.mount("http://", ResilientAdapter(**{"retry": AT_ONCE, "circuit": None, **of_adapter}))

    def ask(self, method: str, url: str, *, content: Any = None, **options: Any) -> requests.Response:
        return self.client.request(method, url, **({} if content is None else {"data": content}), **options)

    def get(self, url: str, **options: Any) -> requests.Response:
        return self.ask("GET", url, **options)

    def post(self, url: str, **options: Any) -> requests.Response:
        return self.ask("POST", url, **options)

    def open(self, method: str, url: str, **options: Any) -> requests.Response:
        return self.ask(method, url, stream=True, **options)

    def read(self, response: requests.Response) -> bytes:
        return response.content

    def pieces(self, of: Iterable[bytes]) -> Any:
        return (piece for piece in of)

    def calm(self) -> bool:
        return True

    def close(self) -> None:
        self.client.close()


def _rests(connection: Any) -> bool:
    return connection.is_idle() or connection.is_closed()


def until(condition: Callable[[], bool]) -> bool:
    """Wait until the condition holds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True
