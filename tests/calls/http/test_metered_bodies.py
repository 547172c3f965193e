"""`TokenLimit` on a transport: the body of each response is read as the client reads it."""

from __future__ import annotations

from contextlib import suppress

import httpx
import pytest

from prefect_resilience.guards.limits import tokens
from prefect_resilience.http import ResilientTransport
from tests.calls.http.server import Act
from tests.calls.http.webs import each_client
from tests.guards.limits.test_tokens import limit_of, used

JSON = {"Content-Type": "application/json"}
EVENTS = {"Content-Type": "text/event-stream"}
WHOLE = b'{"usage": {"prompt_tokens": 10, "completion_tokens": 32}}'
FIRST = b'data: {"message": {"usage": {"input_tokens": 10, "output_tokens": 1}}}\n\n'
LAST = b'data: {"type": "message_delta", "usage": {"output_tokens": 32}}\n\n'


@pytest.fixture
def limit(request):
    tokens._accounts.clear()
    return limit_of()


ANSWERS = {
    "json": (Act(headers=JSON, body=WHOLE), 42),
    "packed json": (Act(headers=JSON, body=WHOLE, packed=True), 42),
    "events": (Act(headers=EVENTS, chunks=(FIRST, LAST)), 42),
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
        web.post(server.url)
    assert used() == counted


def test_a_stream_that_its_reader_closes_counts_as_what_it_reserved(make_web, server, limit, way):
    server.says(Act(headers=EVENTS, chunks=(FIRST, LAST), gap=0.2))
    web = make_web(limits=limit)
    answer = web.open("POST", server.url)
    web.wait(answer.aclose() if way == "async" else answer.close())
    assert used() == 100


def test_a_stream_that_is_closed_after_its_last_event_is_whole(server, limit):
    server.says(
        Act(headers=EVENTS, chunks=(FIRST, LAST, b'data: {"type": "message_stop"}\n\n', b"more"), gap=0.1)
    )
    client = httpx.Client(transport=ResilientTransport(limits=limit, allowed_methods=["POST"]))
    with client.stream("POST", server.url) as answer:
        next(chunk for chunk in answer.iter_lines() if "message_stop" in chunk)
    assert used() == 42


def test_a_body_in_memory_and_one_that_has_no_usage(limit):
    bodies = [{"json": {"usage": {"prompt_tokens": 7}}}, {"content": WHOLE}]
    replies = httpx.MockTransport(lambda request: httpx.Response(200, **bodies.pop()))
    client = httpx.Client(transport=ResilientTransport(limits=limit, transport=replies))
    for counted in (100, 107):
        client.post("http://service.test", content=b"not json")
        assert used() == counted
