"""Clients of httpx2, on which newer SDKs are built: the same transports serve them.

`test_sdks.py` has their retries and streams; here are the bodies, the witness, and two libraries at once.
"""

from __future__ import annotations

from typing import Any

import httpx
import httpx2
import pytest

from prefect_resilience import Effect, InDoubt, batch, resilient
from prefect_resilience.http import ResilientTransport
from tests.calls.http.server import Act
from tests.calls.http.webs import AT_ONCE

OURS: Any = {"retry": AT_ONCE, "circuit": None}


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
