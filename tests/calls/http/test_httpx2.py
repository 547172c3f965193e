"""Clients of httpx2, on which newer SDKs are built: the same transports serve them.

`test_sdks.py` has their retries and streams; here are the bodies, the witness, and two libraries at once.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator
from typing import Any

import httpx
import httpx2
import pytest

from prefect_resilience import Effect, InDoubt, batch, resilient
from prefect_resilience.http import AsyncResilientTransport, ResilientTransport
from tests.calls.http.server import Act
from tests.calls.http.webs import AT_ONCE, Web

OURS: Any = {"retry": AT_ONCE, "circuit": None}


class NewWeb(Web):
    """A client of httpx2 with a resilient transport."""

    def __init__(self, isasync: bool, runner: asyncio.Runner, **of_transport: Any) -> None:
        self.isasync = isasync
        self._runner = runner
        kind: Any = AsyncResilientTransport if isasync else ResilientTransport
        self.transport = kind(**{**OURS, **of_transport})
        self.client = (httpx2.AsyncClient if isasync else httpx2.Client)(transport=self.transport)


@pytest.fixture
def web(way) -> Iterator[NewWeb]:
    with asyncio.Runner() as runner:
        made = NewWeb(way == "async", runner)
        yield made
        made.close()


def test_answers_are_those_of_the_clients_library(web, server) -> None:
    server.says(503, 503, 200)
    assert isinstance(web.get(server.url), httpx2.Response)
    server.says(Act(503, chunks=(b"so", b"rry")))
    last = web.get(server.url)
    assert (last.status_code, last.content) == (503, b"sorry")
    with pytest.raises(httpx2.HTTPStatusError):
        last.raise_for_status()
    assert web.calm()


def test_errors_are_those_of_the_clients_library(web, server) -> None:
    server.says(Act(cut="before"))
    with pytest.raises(httpx2.HTTPError):
        web.get(server.url)
    assert len(server.seen) == 3
    assert web.calm()


def test_a_body_is_sent_again_whole(web, server) -> None:
    server.says(503, Act(cut="before"), 200)
    files = {"file": ("a.txt", io.BytesIO(b"x" * 50_000), "text/plain")}
    assert web.ask("PUT", server.url, files=files).status_code == 200
    first, *others = [one.body for one in server.seen]
    assert others == [first] * 2


def test_what_left_is_seen(server) -> None:
    with httpx2.Client(transport=ResilientTransport(**OURS)) as client:

        @resilient(effect=Effect(key="order:{number}"), retry=AT_ONCE)
        def order(number: int) -> int:
            return client.post(server.url, json={"number": number}).raise_for_status().status_code

        with batch("orders-by-httpx2"):
            server.says(429, 200)
            assert order(1) == 200
            assert {one.headers["idempotency-key"] for one in server.seen} == {"order:1"}
            server.says(Act(cut="after"), 200)
            with pytest.raises((InDoubt, httpx2.HTTPError)):
                order(2)
            assert server.executed == 1


def test_one_transport_does_not_mix_two_libraries(server) -> None:
    """The inner transport is that of the first client; a client of the other library needs one of its own."""
    for library in (httpx, httpx2):
        ours = ResilientTransport(**OURS)
        with library.Client(transport=ours) as client:
            server.says(503, 200)
            assert isinstance(client.get(server.url), library.Response)
            assert isinstance(ours._inner, library.HTTPTransport)
    ResilientTransport(**OURS).close()  # of a client that made no request
