"""What a witness sees of real requests of real clients to real servers, and what it makes of it."""

import asyncio
import ssl
import subprocess
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import requests

from prefect_resilience.durable.effects.current import EffectInProgress, in_progress
from prefect_resilience.durable.effects.witness import SeenRequest, Witness, is_refusal, watch_other_traffic
from prefect_resilience.effects import send_idempotency_key
from prefect_resilience.testing import Reply, ScriptedService

HOOKS: dict[str, Any] = {"event_hooks": {"request": [send_idempotency_key]}, "trust_env": False}


@pytest.fixture
def service() -> Iterator[ScriptedService]:
    """Answers by the path: "/429" with 429, "/303" with a redirect to it."""
    with ScriptedService(200) as made:
        made.on("/429", 429)
        for status in (303, 307):
            made.on(f"/{status}", Reply(status, {"Location": "/429"}))
        yield made


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
@pytest.mark.parametrize("status", [303, 307])
def test_a_redirect_is_two_requests(post, witness, service, status):
    post(f"{service.url}/{status}")
    assert [one.statuses for one in witness.requests] == [[status], [429]]
    assert len(service.requests) == 2
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
    assert witness.shows_nothing_taken()


async def test_the_user_s_own_async_trace_goes_on_being_called(service):
    heard: list[str] = []

    async def trace(name: str, info: dict[str, Any]) -> None:
        heard.append(name)

    now = EffectInProgress("k", "b")
    reset = in_progress.set(now)
    async with httpx.AsyncClient(**HOOKS, follow_redirects=True) as client:
        await client.post(f"{service.url}/307", extensions={"trace": trace})
    in_progress.reset(reset)
    assert heard.count("http11.send_request_headers.started") == 2
    assert [one.statuses for one in now.witness.requests] == [[307], [429]]


def test_outside_of_an_effect_nothing_is_watched(service):
    with httpx.Client(**HOOKS) as client:
        response = client.post(f"{service.url}/429")
        assert "trace" not in response.request.extensions
    watch_other_traffic(in_progress)
    requests.post(f"{service.url}/200")


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
