"""Python's own exceptions and those of HTTP clients, raised by what raises them, and this package's."""

import asyncio
import concurrent.futures
import errno
import http.client
import json
import os
import smtplib
import socket
import ssl
import subprocess
import sys
import urllib.request
import xml.etree.ElementTree
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import aiohttp
import httpx
import pydantic
import pytest
import requests

from prefect_resilience import (
    AttemptTimeout,
    CircuitOpenError,
    ConfigurationError,
    FailureReason,
    ResilienceError,
    StoreUnavailable,
    classify,
)
from prefect_resilience import ErrorCategory as C
from tests.errors.by_name import caught


async def too_slow() -> None:
    await asyncio.wait_for(asyncio.sleep(5), 0.01)


async def cancelled() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(5)


async def half_read() -> None:
    reader = asyncio.StreamReader()
    reader.feed_eof()
    await reader.readexactly(5)


def broken_pipe() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        os.write(writing, b"x")
    finally:
        os.close(writing)


def reset() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        peer, _ = server.accept()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        peer.close()
        client.recv(1)


def slow_future() -> None:
    concurrent.futures.Future[int]().result(timeout=0)


def cancelled_future() -> None:
    future = concurrent.futures.Future[int]()
    future.cancel()
    future.result()


def run(*command: str, **options: object) -> Callable[[], object]:
    return lambda: subprocess.run(command, check=True, capture_output=True, **options)  # type: ignore[call-overload]


def python(code: str) -> Callable[[], object]:
    return run(sys.executable, "-S", "-c", code)


def raises(error: BaseException) -> Callable[[], object]:
    def call() -> None:
        raise error

    return call


class Person(pydantic.BaseModel):
    age: int


CASES: list[tuple[Callable[[], object], C, str]] = [
    (lambda: asyncio.run(too_slow()), C.TIMEOUT, "TIMEOUT"),
    (lambda: asyncio.run(cancelled()), C.CANCELLED, "CANCELLED"),
    (lambda: asyncio.run(half_read()), C.NETWORK, "NETWORK_ERROR"),
    (slow_future, C.TIMEOUT, "TIMEOUT"),
    (cancelled_future, C.CANCELLED, "CANCELLED"),
    (raises(TimeoutError()), C.TIMEOUT, "TIMEOUT"),
    (raises(KeyboardInterrupt()), C.CANCELLED, "CANCELLED"),
    (lambda: sys.exit(404), C.CANCELLED, "CANCELLED"),
    (broken_pipe, C.NETWORK, "NETWORK_ERROR"),
    (reset, C.NETWORK, "NETWORK_ERROR"),
    (raises(http.client.IncompleteRead(b"")), C.NETWORK, "NETWORK_ERROR"),
    (lambda: socket.getaddrinfo("nowhere.invalid", 80), C.NETWORK, "NETWORK_ERROR"),
    (raises(OSError(errno.EHOSTUNREACH, "no route")), C.NETWORK, "NETWORK_ERROR"),
    (raises(OSError(errno.ETIMEDOUT, "slow")), C.TIMEOUT, "TIMEOUT"),
    (raises(OSError(errno.ENOSPC, "full")), C.RESOURCE_EXHAUSTED, "ENOSPC"),
    (raises(OSError(errno.EBUSY, "busy")), C.UNAVAILABLE, "EBUSY"),
    (raises(OSError(errno.EIO, "disk")), C.INFRASTRUCTURE, "EIO"),
    (raises(OSError("nothing known")), C.UNEXPECTED, "OSError"),
    (lambda: Path("/nonexistent/file").read_text(), C.NOT_FOUND, "FileNotFoundError"),
    (raises(PermissionError(errno.EACCES, "no")), C.AUTH, "PermissionError"),
    (lambda: Path("/tmp").read_text(), C.INVALID, "IsADirectoryError"),
    (lambda: os.mkdir("/tmp"), C.CONFLICT, "FileExistsError"),
    (lambda: json.loads("{"), C.VALIDATION, "JSONDecodeError"),
    (lambda: Person(age="old"), C.INVALID, "ValidationError"),  # type: ignore[arg-type]
    (lambda: bytearray(1 << 62), C.RESOURCE_EXHAUSTED, "MemoryError"),
    (run("false"), C.TOOL_ERROR, "EXIT_1"),
    (python("import os; os._exit(7)"), C.TOOL_ERROR, "EXIT_7"),
    (python("import os; os.kill(os.getpid(), 9)"), C.AGENT_CRASH, "SIGKILL"),
    (raises(subprocess.CalledProcessError(-200, "x")), C.AGENT_CRASH, "SIGNAL_200"),
    (run("sleep", "5", timeout=0.01), C.TIMEOUT, "TIMEOUT"),
    (raises(BrokenProcessPool()), C.AGENT_CRASH, "BrokenProcessPool"),
    (lambda: {}["missing"], C.UNEXPECTED, "KeyError"),
    (lambda: 1 / 0, C.UNEXPECTED, "ZeroDivisionError"),
    (raises(AttemptTimeout(3)), C.TIMEOUT, "TIMEOUT"),
    (raises(ConfigurationError("x")), C.INVALID, "ConfigurationError"),
    (raises(StoreUnavailable("x")), C.INFRASTRUCTURE, "StoreUnavailable"),
    (raises(ResilienceError("x")), C.UNEXPECTED, "ResilienceError"),
]


@pytest.mark.parametrize(("call", "category", "code"), CASES, ids=lambda value: getattr(value, "value", None))
def test_what_python_raises(call, category, code) -> None:
    info = caught(call)
    assert (info.category, info.code) == (category, code)
    assert (info.kind, info.retryable, info.reason) == (category.kind, category.retryable, category.reason)


def test_xml_has_a_reason_of_its_own() -> None:
    info = caught(lambda: xml.etree.ElementTree.fromstring("<a>"))
    assert (info.category, info.reason) == (C.VALIDATION, FailureReason.XML_VALIDATION_FAILURE)


def test_an_smtp_answer_without_a_code() -> None:
    assert classify(smtplib.SMTPDataError.__new__(smtplib.SMTPDataError)).category is C.UNEXPECTED


def test_an_open_circuit_says_when_to_ask_again() -> None:
    info = classify(CircuitOpenError("llm:x", 12.5, "503"))
    assert (info.category, info.retryable, info.retry_after) == (C.CIRCUIT_OPEN, False, 12.5)
    assert info.details["circuit"] == "llm:x"
    assert classify(CircuitOpenError("x")).retry_after is None
    assert classify(CircuitOpenError("x", -1)).retry_after == 0.0


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
