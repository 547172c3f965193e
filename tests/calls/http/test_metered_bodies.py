"""`TokenLimit` on a transport: the body of each response is read as the client reads it."""

from __future__ import annotations

import math
from contextlib import suppress

import httpx
import pytest

from prefect_resilience import TokenLimit
from prefect_resilience.guards.limits import tokens
from prefect_resilience.guards.limits.tokens import read_buckets
from prefect_resilience.guards.limits.usage import shares
from prefect_resilience.http import ResilientTransport
from tests.calls.http.server import Act
from tests.calls.http.webs import each_client

JSON = {"Content-Type": "application/json"}
EVENTS = {"Content-Type": "text/event-stream"}
WHOLE = b'{"usage": {"prompt_tokens": 10, "completion_tokens": 32}}'
FIRST = b'data: {"message": {"usage": {"input_tokens": 10, "output_tokens": 1}}}\n\n'
LAST = b'data: {"type": "message_delta", "usage": {"output_tokens": 32}}\n\n'


@pytest.fixture
def limit(request):
    shares.clear()
    return TokenLimit("ask", per_minute=600_000, estimate=lambda body: body["max_tokens"])


def used() -> int:
    tokens.account_of("ask", 600_000).exchange(0.0, math.inf)
    return read_buckets()[0][0]["used"]


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
