"""Options of transports: circuits, limits, deadlines and metered bodies; mistakes are found at once."""

import asyncio
import re
import threading
import time
from contextlib import suppress

import httpx
import pytest
from anyio import move_on_after

from prefect_resilience import Bulkhead, CircuitBreaker, Fallback, Timeout, TokenLimit
from prefect_resilience.base import deadlines
from prefect_resilience.errors.exceptions import AttemptTimeout, CircuitOpenError, ConfigurationError
from prefect_resilience.guards.circuits.registry import read_documents
from prefect_resilience.guards.limits import tokens
from prefect_resilience.guards.limits.usage import shares
from prefect_resilience.guards.retries.backoff import Backoff
from prefect_resilience.guards.retries.policy import Retry
from prefect_resilience.guards.timeouts.threads import overdue_calls
from prefect_resilience.http import AsyncResilientTransport, BaseURL, ResilientAdapter, ResilientTransport
from tests.calls.http.server import Act
from tests.calls.http.webs import each_client, until
from tests.guards.limits.hanging import end_threads

BAD = {
    "retry='often'": {"retry": "often"},
    "retry=True": {"retry": True},
    "circuit": {"circuit": 3},
    "{nosuch}": {"circuit": "http:{nosuch}"},
    "is not a limit": {"limits": 5},
    "child process": {"timeout": Timeout(3, mode="process")},
    "above 0": {"deadline": 0},
    "deadline=True": {"deadline": True},
    "deadline='soon'": {"deadline": "soon"},
    "not a base URL": {"fallback": "b.example/v1"},
    "must be a function": {"fallback": 3},
    "a transport passes only request and error": {"fallback": lambda url: None},
    "stores no responses": {"fallback": Fallback.last_known_good()},
    "allowed_methods='POST'": {"allowed_methods": "POST"},
    "allowed_methods=None": {"allowed_methods": None},
    "allowed_methods=3": {"allowed_methods": 3},
}


@pytest.mark.parametrize("kind", [ResilientTransport, AsyncResilientTransport, ResilientAdapter])
@pytest.mark.parametrize("said", BAD)
def test_a_mistake_is_told_in_one_sentence(kind, said):
    with pytest.raises(ConfigurationError, match=re.escape(said)) as caught:
        kind(**BAD[said])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", [ResilientTransport, AsyncResilientTransport, ResilientAdapter])
@pytest.mark.parametrize("idle", [Timeout(idle=3), Timeout(3, idle=1)])
def test_the_wait_for_a_chunk_is_the_clients(kind, idle):
    with pytest.raises(ConfigurationError, match=re.escape("httpx.Timeout(30, read=10)")):
        kind(timeout=idle)


def test_the_adapter_has_one_option_for_retries():
    with pytest.raises(ConfigurationError, match="use retry="):
        ResilientAdapter(max_retries=3)


def test_a_password_in_a_url_is_not_shown():
    with pytest.raises(ConfigurationError) as caught:
        BaseURL("ftp://ann:hunter2@b.example")
    assert "hunter2" not in str(caught.value)


@each_client
def test_it_can_be_turned_off(make_web, server, other, way, monkeypatch):
    monkeypatch.setenv("PREFECT_RESILIENCE_ENABLED", "false")
    web = make_web(fallback=other.url, timeout=5)
    server.says(503, Act(chunks=(b"one", b"two"), gap=0.2))
    assert web.get(server.url).status_code == 503
    assert web.get(server.url).content == b"onetwo"
    assert (len(server.seen), len(other.seen)) == (2, 0)


def breaker(name: str, **options: float) -> CircuitBreaker:
    return CircuitBreaker(name, failure_threshold=2, **{"open_for": 60, **options})


# -- circuits


def test_each_host_has_its_circuit(make_web, server, other):
    web = make_web(circuit=breaker("http:{host}"), retry=None)
    server.says(503)
    for _ in range(2):
        assert web.get(server.url).status_code == 503
    with pytest.raises(CircuitOpenError) as caught:
        web.get(server.url)
    assert caught.value.name == f"http:{server.host}"
    assert len(server.seen) == 2
    assert web.get(other.url).status_code == 200


# -- limits


# -- deadlines


@each_client
def test_a_deadline_is_for_all_attempts(make_web, server, monkeypatch):
    """By a clock that moves on by 16 seconds with each request."""
    monkeypatch.setattr(deadlines, "monotonic", lambda: time.monotonic() + 16 * len(server.seen))
    web = make_web(deadline=60, retry=Retry(attempts=50, backoff=Backoff.constant(0.01)))
    server.says(503)
    assert web.get(server.url).status_code == 503
    assert len(server.seen) == 4


def test_a_deadline_ends_an_attempt_that_hangs(make_web, server):
    held = threading.Event()
    web = make_web(deadline=0.3, client={"timeout": None})
    server.says(503, Act(hold=held))
    with pytest.raises(AttemptTimeout):
        web.get(server.url)
    held.set()
    assert web.calm()


# -- what is left behind


@each_client
def test_an_answer_that_comes_too_late_is_closed(make_web, server, way):
    """A sync attempt is abandoned in its thread; its answer comes too late."""
    held = threading.Event()
    web = make_web(timeout=1, retry=None)
    server.says(Act(hold=held, body=b"x" * 10_000))
    errors: list[BaseException] = []
    of_others = overdue_calls()

    def ask() -> None:
        try:
            web.get(server.url)
        except AttemptTimeout as error:
            errors.append(error)

    if way != "async":  # beside the main thread, where an alarm would interrupt it
        asking = threading.Thread(target=ask)
        asking.start()
        asking.join()
    else:
        ask()
    assert len(errors) == 1
    held.set()
    assert until(lambda: overdue_calls() <= of_others)
    assert web.calm()
    server.says(200)
    assert web.get(server.url).status_code == 200


@pytest.mark.parametrize("way", ["async"])  # a thread cannot be cancelled
def test_a_cancelled_request_is_gone_at_once(make_web, server):
    held = threading.Event()
    web = make_web(
        limits=Bulkhead(1, max_wait=0, name="one"), circuit=breaker("http:{host}"), client={"timeout": None}
    )
    server.says(Act(hold=held))

    async def cancelled() -> None:
        asking = asyncio.create_task(web.client.get(server.url))
        await asyncio.to_thread(until, lambda: bool(server.seen))
        asking.cancel()
        await asyncio.wait({asking}, timeout=8)  # the answer is held for longer
        assert asking.cancelled()

    web.run(cancelled())
    assert web.calm()
    held.set()
    assert until(lambda: server.open_connections == 0)
    server.says(200)
    assert web.get(server.url).status_code == 200, "its place is free again"


@pytest.mark.parametrize("body", [b"{}", b"x" * 300_000], ids=["small", "large"])
@pytest.mark.parametrize("way", ["async"])  # a thread cannot be cancelled
def test_a_request_that_is_cancelled_while_it_waits_leaves_no_answer_open(make_web, server, body):
    web = make_web(retry=Retry(attempts=3, backoff=Backoff.constant(30)))
    server.says(Act(503, body=body))

    async def cancelled(by_scope: bool) -> None:
        if by_scope:
            with move_on_after(0.2) as scope:
                await web.client.get(server.url)
            assert scope.cancelled_caught
        else:
            asking = asyncio.create_task(web.client.get(server.url))
            await asyncio.sleep(0.2)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking

    for by_scope in (False, True):
        web.run(cancelled(by_scope))
        assert web.calm()


JSON = {"Content-Type": "application/json"}
EVENTS = {"Content-Type": "text/event-stream"}
WHOLE = b'{"usage": {"prompt_tokens": 10, "completion_tokens": 32}}'
FIRST = b'data: {"message": {"usage": {"input_tokens": 10, "output_tokens": 1}}}\n\n'
LAST = b'data: {"type": "message_delta", "usage": {"output_tokens": 32}}\n\n'


@pytest.fixture
def limit(monkeypatch):
    monkeypatch.setattr(tokens.Account, "pause", 0.0)
    shares.clear()
    return TokenLimit("ask", per_minute=600_000, estimate=lambda body: body["max_tokens"])


def used() -> int:
    end_threads()
    return next(iter(read_documents(tokens.PREFIX, None)[0].values()))["used"]


ANSWERS = {
    "json": (Act(headers=JSON, body=WHOLE), 42),
    "packed json": (Act(headers=JSON, body=WHOLE, packed=True), 42),
    "json in pieces": (Act(headers=JSON, chunks=(WHOLE[:20], WHOLE[20:])), 42),
    "events": (Act(headers=EVENTS, chunks=(FIRST, LAST)), 42),
    "events to their last": (Act(headers=EVENTS, chunks=(FIRST, LAST, b"data: [DONE]\n\n")), 42),
    "no usage": (Act(headers=JSON), 100),
    "a wrong request": (Act(400, headers=JSON, body=WHOLE), 0),
    "429": (Act(429), 0),
    "cut in its body": (Act(headers=JSON, body=WHOLE, cut="body"), 100),
}


@each_client
@pytest.mark.parametrize("form", ANSWERS)
def test_a_response_is_settled_at_the_end_of_its_body(make_web, server, limit, form):
    act, counted = ANSWERS[form]
    server.says(act)
    web = make_web(limits=limit, retry=None)
    with suppress(web.error):
        web.post(server.url, json={"max_tokens": 100})
    assert used() == counted


def test_a_stream_that_its_reader_closes_counts_as_what_it_reserved(make_web, server, limit, way):
    server.says(Act(headers=EVENTS, chunks=(FIRST, LAST), gap=0.2))
    web = make_web(limits=limit)
    answer = web.open("POST", server.url, json={"max_tokens": 100})
    web.wait(answer.aclose() if way == "async" else answer.close())
    assert used() == 100


def test_a_stream_that_is_closed_after_its_last_event_is_whole(server, limit):
    server.says(
        Act(headers=EVENTS, chunks=(FIRST, LAST, b'data: {"type": "message_stop"}\n\n', b"more"), gap=0.1)
    )
    client = httpx.Client(transport=ResilientTransport(limits=limit, allowed_methods=["POST"]))
    with client.stream("POST", server.url, json={"max_tokens": 100}) as answer:
        next(chunk for chunk in answer.iter_lines() if "message_stop" in chunk)
    assert used() == 42


def test_a_body_in_memory_and_one_of_another_kind(limit):
    def reply(request):
        kinds = (
            {"json": {"usage": {"prompt_tokens": 7}}} if request.url.path == "/ask" else {"content": WHOLE}
        )
        return httpx.Response(200, **kinds)

    client = httpx.Client(transport=ResilientTransport(limits=limit, transport=httpx.MockTransport(reply)))
    client.post("http://service.test/ask", json={"max_tokens": 100})
    assert used() == 7
    assert client.post("http://service.test/file", json={"max_tokens": 100}).content == WHOLE
    assert used() == 107


def test_a_body_that_is_no_json_has_no_arguments(limit):
    by_default = TokenLimit("ask", per_minute=600_000, estimate=lambda body: 5 if body is None else 6)
    reply = httpx.MockTransport(lambda request: httpx.Response(200))
    client = httpx.Client(transport=ResilientTransport(limits=by_default, transport=reply))
    client.post("http://service.test", content=b"not json")
    assert used() == 5
