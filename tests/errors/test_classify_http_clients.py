"""HTTP clients, each provoked for real against a service on loopback."""

import asyncio
import socket
import ssl
import urllib.request
from collections.abc import Callable

import aiohttp
import httpx
import pytest
import requests

from prefect_resilience import ErrorCategory as C
from prefect_resilience import classify
from tests.errors.by_name import caught

TRUST = ssl.create_default_context()  # httpx would read all certificates anew for each call


def by_httpx(url: str, **options: object) -> Callable[[], object]:
    return lambda: httpx.get(url, verify=TRUST, **options).raise_for_status()  # type: ignore[arg-type]


def by_requests(url: str, **options: object) -> Callable[[], object]:
    return lambda: requests.get(url, **options).raise_for_status()  # type: ignore[arg-type]


def by_aiohttp(url: str, seconds: float = 5) -> Callable[[], object]:
    async def get() -> None:
        timeout = aiohttp.ClientTimeout(total=seconds)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as response:
            response.raise_for_status()
            await response.json()

    return lambda: asyncio.run(get())


def by_urllib(url: str) -> Callable[[], object]:
    return lambda: urllib.request.urlopen(url, timeout=5)


CLIENTS = [by_httpx, by_requests, by_aiohttp, by_urllib]


STATUSES = {
    400: (C.INVALID, False),
    401: (C.AUTH, False),
    402: (C.INVALID, False),
    403: (C.AUTH, False),
    404: (C.NOT_FOUND, False),
    408: (C.TIMEOUT, True),
    409: (C.CONFLICT, False),
    410: (C.NOT_FOUND, False),
    412: (C.CONFLICT, False),
    413: (C.OVERFLOW, False),
    418: (C.INVALID, False),
    422: (C.INVALID, False),
    425: (C.UNAVAILABLE, True),
    429: (C.RATE_LIMIT, True),
    500: (C.SERVER_ERROR, True),
    501: (C.SERVER_ERROR, False),
    502: (C.UNAVAILABLE, True),
    503: (C.UNAVAILABLE, True),
    504: (C.TIMEOUT, True),
    507: (C.RESOURCE_EXHAUSTED, False),
    529: (C.UNAVAILABLE, True),
}


@pytest.mark.requirement("002.03", "002.07", "002.08")
@pytest.mark.parametrize("client", CLIENTS)
def test_a_status_is_a_category(client, service) -> None:
    for status, expected in STATUSES.items():
        service.says(status)
        info = caught(client(service.url))
        assert (info.category, info.retryable) == expected
        assert info.code == str(status)
        assert info.details["status"] == status


def test_a_response_is_classified_without_an_exception(service) -> None:
    for status, expected in STATUSES.items():
        service.says(status)
        for response in (httpx.Response(status), requests.get(service.url, timeout=5)):
            info = classify(response)
            assert (info.category, info.retryable, info.code) == (*expected, str(status))
            assert info.exception_type is None


def test_what_is_no_json_failed_validation(service, reply) -> None:
    service.says(reply(body="<html>", headers={"Content-Type": "text/html"}))
    for call in (
        lambda: httpx.get(service.url).json(),
        lambda: requests.get(service.url, timeout=5).json(),
        by_aiohttp(service.url),
    ):
        assert caught(call).category is C.VALIDATION


@pytest.mark.parametrize(
    "call",
    [
        by_httpx("nonsense://x"),
        by_httpx("http://[::1"),
        by_requests("nonsense://x", timeout=1),
        by_requests("no-scheme", timeout=1),
        by_aiohttp("http:///nohost"),
    ],
)
def test_a_wrong_url_is_invalid(call) -> None:
    assert caught(call).category is C.INVALID


def test_a_peer_that_cannot_prove_itself_is_not_asked_again(tls_service) -> None:
    for client in CLIENTS:
        info = caught(client(tls_service))
        assert (info.category, info.retryable) == (C.AUTH, False)
    context = ssl.create_default_context()
    host, port = tls_service.removeprefix("https://").split(":")

    def handshake() -> None:
        with socket.create_connection((host, int(port))) as raw:
            context.wrap_socket(raw, server_hostname=host)

    assert caught(handshake).category is C.AUTH


def test_a_provider_s_words_in_the_body_are_read(service, reply) -> None:
    body = '{"error": {"code": "context_length_exceeded", "message": "too long"}}'
    service.says(reply(400, body=body))
    for client in (by_httpx, by_requests):
        info = caught(client(service.url))
        assert (info.category, info.code) == (C.OVERFLOW, "context_length_exceeded")
    service.says(reply(400, body='{"error": "prompt is too long: 9 > 8"}'))
    assert caught(by_httpx(service.url)).category is C.OVERFLOW
    service.says(reply(400, body='{"error": ' * 2000))
    assert caught(by_httpx(service.url)).category is C.INVALID
