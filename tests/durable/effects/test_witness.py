"""What a witness sees of real requests of real clients to real servers, and what it makes of it."""

from __future__ import annotations

import asyncio
import contextvars
import os
import smtplib
import socket
import ssl
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import aiohttp
import httpx
import pytest
import requests

from prefect_resilience.durable.effects.current import EffectInProgress, in_progress
from prefect_resilience.durable.effects.witness import SeenRequest, Witness, is_refusal, watch_other_traffic
from prefect_resilience.effects import send_idempotency_key

HOOKS: dict[str, Any] = {"event_hooks": {"request": [send_idempotency_key]}, "trust_env": False}


class Service:
    """Answers by the path: "/429" with 429, "/303" with a redirect to "/200", "/cut" not at all."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                service.seen.append(f"{self.command} {self.path}")
                if self.path == "/cut":
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                status, _, more = self.path.strip("/").rpartition("/")[2].partition("-")
                self.send_response(int(status))
                if more:
                    self.send_header("Location", f"/{more}")
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_POST = answer

            def do_CONNECT(self) -> None:
                service.seen.append(f"CONNECT {self.path}")
                self.send_response(403)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    yield made
    made.close()


@pytest.fixture
def witness() -> Iterator[Witness]:
    """That of the effect which is going on in this test."""
    watch_other_traffic(in_progress)
    now = EffectInProgress("k", "b")
    reset = in_progress.set(now)
    yield now.witness
    in_progress.reset(reset)


def post_sync(url: str, **options: Any) -> None:
    transport = options.pop("transport", None)
    with httpx.Client(**HOOKS, transport=transport, follow_redirects=True) as client:
        client.post(url, **options)


def post_async(url: str, **options: Any) -> None:
    async def post() -> None:
        transport = options.pop("transport", None)
        async with httpx.AsyncClient(**HOOKS, transport=transport, follow_redirects=True) as client:
            await client.post(url, **options)

    asyncio.run(post())


WAYS = pytest.mark.parametrize("post", [post_sync, post_async])


@WAYS
@pytest.mark.parametrize(
    ("status", "nothing"), [(429, True), (404, True), (409, False), (200, False), (503, False)]
)
def test_one_answer(post, witness, service, status, nothing):
    post(f"{service.url}/{status}")
    assert [one.statuses for one in witness.requests] == [[status]]
    assert witness.shows_nothing_taken() is nothing


@WAYS
@pytest.mark.parametrize("status", [303, 307])
def test_a_redirect_is_two_requests(post, witness, service, status):
    post(f"{service.url}/{status}-429")
    assert [one.statuses for one in witness.requests] == [[status], [429]]
    assert len(service.seen) == 2
    assert not witness.shows_nothing_taken(), "the first one may have been taken"


@WAYS
def test_a_client_without_a_network_proves_nothing(post, witness):
    post("http://nowhere/", transport=httpx.MockTransport(lambda request: httpx.Response(429)))
    assert [(one.tried, one.statuses) for one in witness.requests] == [(False, [])]
    assert not witness.shows_nothing_taken()


def test_a_proxy_that_refuses_the_way(witness, service):
    context = ssl.create_default_context()
    with httpx.Client(**HOOKS, proxy=service.url, verify=context) as client, pytest.raises(httpx.ProxyError):
        client.post("https://bank.invalid/pay")
    assert service.seen == ["CONNECT bank.invalid:443"]
    assert witness.shows_nothing_taken()


async def test_the_user_s_own_async_trace_goes_on_being_called(service):
    heard: list[str] = []

    async def trace(name: str, info: dict[str, Any]) -> None:
        heard.append(name)

    now = EffectInProgress("k", "b")
    reset = in_progress.set(now)
    async with httpx.AsyncClient(**HOOKS, follow_redirects=True) as client:
        await client.post(f"{service.url}/307-429", extensions={"trace": trace})
    in_progress.reset(reset)
    assert heard.count("http11.send_request_headers.started") == 2
    assert [one.statuses for one in now.witness.requests] == [[307], [429]]


def test_outside_of_an_effect_nothing_is_watched(service):
    with httpx.Client(**HOOKS) as client:
        response = client.post(f"{service.url}/429")
        assert "trace" not in response.request.extensions
    watch_other_traffic(in_progress)
    requests.post(f"{service.url}/200")


# -- what leaves by other ways


def urllib_(service: Service) -> None:
    urllib.request.urlopen(f"{service.url}/200", data=b"{}").close()


def requests_(service: Service) -> None:
    requests.post(f"{service.url}/200")


def aiohttp_(service: Service) -> None:
    async def post() -> None:
        async with aiohttp.ClientSession() as session:
            await session.post(f"{service.url}/200")

    asyncio.run(post())


def smtplib_(service: Service) -> None:
    with pytest.raises((smtplib.SMTPException, OSError)):
        smtplib.SMTP("127.0.0.1", service.port, timeout=0.2).sendmail("a@b", ["c@d"], "hello")


def process(service: Service) -> None:
    subprocess.run([sys.executable, "-c", ""], check=True)


def shell(service: Service) -> None:
    os.system("true")


def datagram(service: Service) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.sendto(b"x", ("127.0.0.1", 9))


def thread(service: Service) -> None:
    running = threading.Thread(target=contextvars.copy_context().run, args=(requests_, service))
    running.start()
    running.join()


@pytest.mark.parametrize(
    "other",
    [urllib_, requests_, aiohttp_, smtplib_, process, shell, datagram, thread],
    ids=lambda fn: fn.__name__,
)
def test_what_leaves_beside_it_is_no_proof(other, witness, service):
    post_sync(f"{service.url}/429")
    assert witness.shows_nothing_taken()
    other(service)
    assert witness.others
    assert not witness.shows_nothing_taken()


def test_what_another_client_sends_while_this_one_connects(witness):
    """A connection that is slow to come about does not hide what goes on beside it."""
    seen = SeenRequest("POST", "http://slow")
    witness.requests.append(seen)
    witness.told(seen, "connection.connect_tcp.started", {})
    witness.saw_other("socket.connect")
    assert witness.others == [], "its own, as far as can be told"
    witness.saw_other("http.client.send")
    witness.told(seen, "connection.connect_tcp.failed", {})
    assert witness.others == ["http.client.send"]
    for _ in range(10):
        witness.saw_other("socket.connect")
    assert len(witness.others) == 5


def test_what_an_answer_without_a_status_says(witness):
    seen = SeenRequest("POST", "http://x")
    witness.requests.append(seen)
    witness.told(seen, "http11.receive_response_headers.complete", {"return_value": (b"HTTP/1.1", 429)})
    assert seen.statuses == [], "an answer to nothing that left"
    for answer in (None, (b"HTTP/1.1", True), ()):
        witness.told(seen, "http11.send_request_headers.started", {})
        witness.told(seen, "http11.receive_response_headers.complete", {"return_value": answer})
    assert seen.statuses == [None, None, None]
    assert not witness.shows_nothing_taken()


def test_which_answers_refuse():
    assert all(map(is_refusal, (400, 401, 403, 404, 410, 413, 422, 425, 429)))
    assert not any(map(is_refusal, (100, 200, 303, 408, 409, 499, 500, 503)))


def test_a_look_at_the_platform_is_no_traffic(service):
    """`platform.processor()` runs a program once in a process, as the SDKs of LLM providers do."""
    now = EffectInProgress("k", "b")
    watch_other_traffic(in_progress)
    reset = in_progress.set(now)
    try:
        subprocess.run(["uname", "-p"], check=True, capture_output=True)
        assert now.witness.others == []
        subprocess.run(["uname", "-a"], check=True, capture_output=True)
        assert now.witness.others == ["subprocess.Popen"]
    finally:
        in_progress.reset(reset)
