"""The spans of HTTP requests follow OpenTelemetry's conventions for HTTP clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import requests
from opentelemetry.trace import SpanKind, StatusCode

from prefect_resilience import Retry
from prefect_resilience.http import AsyncResilientTransport, ResilientAdapter, ResilientTransport
from prefect_resilience.testing import ScriptedService

TWICE = Retry(attempts=2, backoff="none")


@pytest.fixture(params=["httpx", "httpx async", "requests"])
def get(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """GET with a guarded client, which has these options."""

    def by_httpx(url: str, **options: Any) -> Any:
        with httpx.Client(transport=ResilientTransport(**options)) as client:
            return client.get(url)

    async def by_httpx_async(url: str, **options: Any) -> Any:
        async with httpx.AsyncClient(transport=AsyncResilientTransport(**options)) as client:
            return await client.get(url)

    def by_requests(url: str, **options: Any) -> Any:
        with requests.Session() as session:
            session.mount("http://", ResilientAdapter(**options))
            return session.get(url)

    ways: dict[str, Callable[..., Any]] = {
        "httpx": by_httpx,
        "httpx async": lambda url, **options: asyncio.run(by_httpx_async(url, **options)),
        "requests": by_requests,
    }
    return ways[request.param]


def test_each_request_that_is_sent_is_a_span_below_that_of_the_call(get, spans) -> None:
    with ScriptedService(503, 200) as service:
        assert get(service.url, retry=TWICE).status_code == 200
    call, first, second = spans.take()
    host, port = "127.0.0.1", int(service.url.rpartition(":")[2])
    assert call.name == f"GET {host}:{port}"
    assert {first.parent.span_id, second.parent.span_id} == {call.context.span_id}
    about = {
        "prefect_resilience.function": call.name,
        "prefect_resilience.circuit": f"http:{host}:{port}",
        "http.request.method": "GET",
        "server.address": host,
        "server.port": port,
    }
    assert dict(first.attributes) == {
        **about,
        "prefect_resilience.attempt": 1,
        "prefect_resilience.category": "unavailable",
        "prefect_resilience.code": "503",
        "http.response.status_code": 503,
        "error.type": "503",
    }
    assert dict(second.attributes) == {
        **about,
        "prefect_resilience.attempt": 2,
        "prefect_resilience.delay": 0.0,
        "http.request.resend_count": 1,
        "http.response.status_code": 200,
    }
    assert [span.name for span in (first, second)] == ["GET", "GET"]
    assert {span.kind for span in (first, second)} == {SpanKind.CLIENT}


def test_a_response_that_is_returned_as_it_is_has_its_status(get, spans) -> None:
    with ScriptedService(404) as service:
        assert get(service.url, retry=TWICE).status_code == 404
    call, sent = spans.take()
    assert (sent.attributes["http.response.status_code"], sent.attributes["error.type"]) == (404, "404")
    assert sent.status.status_code is StatusCode.ERROR
    assert call.status.status_code is StatusCode.UNSET


def test_a_url_without_a_port_has_that_of_its_scheme(spans) -> None:
    transport = ResilientTransport(transport=httpx.MockTransport(lambda _: httpx.Response(200)))
    with httpx.Client(transport=transport) as client:
        client.get("https://user:secret@a.example/v1?token=secret")
        client.get("http://a.example/")
    sent = [span for span in spans.take() if span.name == "GET"]
    assert [span.attributes["server.port"] for span in sent] == [443, 80]
    assert {span.attributes["server.address"] for span in sent} == {"a.example"}
    assert "secret" not in "".join(span.to_json() for span in sent)
