"""A transport that guards each request of an httpx client: what is repeated and when, and what bodies do."""

import io
import os
import time

import httpx
import pytest

from prefect_resilience.calls.edge import exchange
from prefect_resilience.errors.exceptions import AttemptTimeout
from prefect_resilience.guards.retries.backoff import Backoff
from prefect_resilience.guards.retries.policy import Retry
from tests.calls.http.server import Act, as_json
from tests.calls.http.webs import each_client, each_fault

FAILURES = [408, 425, 429, 500, 502, 503, 504, 529]


@each_client
@pytest.mark.parametrize("status", FAILURES)
def test_a_failure_is_retried_before_anyone_raises(make_web, server, status):
    web = make_web()
    server.says(status, status, 200)
    answer = web.get(server.url)
    assert answer.status_code == 200
    assert len(server.seen) == 3
    assert web.calm()


@each_client
@pytest.mark.parametrize("status", [200, 204, 301, 304, 400, 401, 404, 409, 410, 422])
def test_any_other_answer_is_handed_on(make_web, server, status):
    web = make_web()
    server.says(Act(status, body=b""))
    assert web.get(server.url).status_code == status
    assert len(server.seen) == 1


@each_client
@pytest.mark.parametrize("status", FAILURES)
def test_after_the_last_attempt_the_answer_is_returned_as_it_came(make_web, server, status):
    web = make_web()
    said = as_json({"error": {"message": "on fire"}})
    server.says(Act(status, {"X-Trace": "abc"}, said))
    answer = web.get(server.url)
    assert (answer.status_code, answer.headers["X-Trace"], answer.content) == (status, "abc", said)
    assert len(server.seen) == 3
    with pytest.raises(web.error) as caught:
        answer.raise_for_status()
    assert caught.value.response is answer
    assert web.calm()


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"])
@each_fault()
def test_idempotent_methods_are_repeated(make_web, server, method, fault):
    web = make_web()
    server.says(fault, 200)
    assert web.ask(method, server.url).status_code == 200
    assert len(server.seen) == 2


@each_client
@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_others_are_repeated_with_a_key_only(make_web, server, method):
    web = make_web()
    server.says(503, 200)
    assert web.ask(method, server.url, json={}).status_code == 503
    assert len(server.seen) == 1
    server.says(503, 200)
    assert web.ask(method, server.url, json={}, headers={"Idempotency-Key": "k"}).status_code == 200
    assert [one.headers["idempotency-key"] for one in server.seen] == ["k", "k"]
    assert [one.body for one in server.seen] == [b"{}", b"{}"]


@each_client
@pytest.mark.parametrize("status", [425, 429])
def test_a_post_that_the_server_refused_is_sent_again(make_web, server, status):
    web = make_web()
    server.says(status, 200)
    assert web.post(server.url, json={}).status_code == 200
    assert server.executed == 1


@each_client
def test_methods_may_be_allowed(make_web, server):
    web = make_web(allowed_methods=["post"])
    server.says(503, 200)
    assert web.post(server.url, json={}).status_code == 200
    server.says(503, 200)
    assert web.get(server.url).status_code == 503, "they are named in place of the others"


@each_client
@pytest.mark.parametrize("method", ["GET", "POST", "PATCH"])
def test_a_connection_that_was_refused_left_nothing(make_web, server, method):
    errors: list[Exception] = []

    def opens(error: Exception) -> None:
        errors.append(error)
        if len(errors) == 3:
            server.open()

    server.shut()
    web = make_web(classify=opens, retry=Retry(attempts=10, backoff=Backoff.none()))
    assert web.ask(method, server.url).status_code == 200
    assert len(server.seen) == 1


@each_client
def test_retry_after_is_waited_for(make_web, server):
    web = make_web()
    server.says(Act(429, {"retry-after-ms": "200"}), 200)
    began = time.monotonic()
    assert web.get(server.url).status_code == 200
    assert 0.2 <= time.monotonic() - began < 60


@each_client
def test_a_wait_that_is_too_long_is_not_begun(make_web, server):
    web = make_web(retry=Retry(attempts=3, retry_after_cap=5))
    server.says(Act(429, {"Retry-After": "600"}))
    assert web.get(server.url).headers["Retry-After"] == "600"
    assert len(server.seen) == 1


@each_client
def test_the_error_body_is_classified(make_web, server):
    """An account without money answers 429, and another attempt is useless."""
    web = make_web()
    server.says(Act(429, body=as_json({"error": {"code": "insufficient_quota", "message": "no money"}})))
    assert web.get(server.url).json()["error"]["message"] == "no money"
    assert len(server.seen) == 1


@each_client
def test_an_error_body_that_cannot_be_unpacked_is_still_a_failure(make_web, server):
    web = make_web()
    server.says(Act(503, {"Content-Encoding": "gzip"}, b"no gzip"), 200)
    assert web.get(server.url).status_code == 200


def test_an_error_body_that_was_cut_is_still_what_the_status_says(make_web, server):
    web = make_web()
    server.says(Act(429, {"retry-after-ms": "150"}, b"x" * 100, cut="body"), 200)
    began = time.monotonic()
    assert web.get(server.url).status_code == 200
    assert time.monotonic() - began >= 0.15, "Retry-After was read"
    server.says(Act(503, body=b"x" * 100, cut="body"))
    answer = web.open("GET", server.url)
    assert answer.status_code == 503
    with pytest.raises(httpx.RemoteProtocolError):
        web.read(answer)
    assert web.calm()


def test_the_clients_own_timeouts_are_retried(make_web, server):
    web = make_web(client={"timeout": 0.5})
    server.says(Act(delay=60), 200)
    assert web.get(server.url).status_code == 200
    server.says(Act(delay=60), 200)
    with pytest.raises(httpx.ReadTimeout):
        web.post(server.url, json={})
    assert len(server.seen) == 1
    assert web.calm()


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_attempt_has_a_timeout(make_web, server, method):
    web = make_web(timeout=0.5)
    server.says(Act(delay=2), 200)
    if method == "POST":
        with pytest.raises(AttemptTimeout):
            web.post(server.url, json={})
        assert len(server.seen) == 1
    else:
        assert web.get(server.url).status_code == 200
    assert web.calm()


@each_client
def test_redirects_are_requests_of_their_own(make_web, server, other):
    web = make_web(client={"follow_redirects": True})
    server.says(503, Act(307, {"Location": f"{other.url}/there"}))
    other.says(503, 200)
    answer = web.get(f"{server.url}/here")
    assert answer.status_code == 200
    assert [one.status_code for one in answer.history] == [307]
    assert (server.paths, other.paths) == (["/here"] * 2, ["/there"] * 2)


KEY = {"Idempotency-Key": "k"}
LARGE = os.urandom(60_000).hex().encode()  # 120,000 bytes: more than what is read of an error


# -- of requests


@each_client
def test_bytes_are_sent_again(make_web, server):
    web = make_web()
    server.says(503, Act(cut="after"), 200)
    assert web.ask("PUT", server.url, content=LARGE).status_code == 200
    assert [one.body for one in server.seen] == [LARGE] * 3


@each_client
def test_multipart_is_sent_again_whole(make_web, server):
    web = make_web()
    server.says(503, 200)
    files = {"file": ("a.txt", io.BytesIO(LARGE), "text/plain")}
    assert web.ask("PUT", server.url, files=files, data={"a": "b"}).status_code == 200
    first, second = server.seen
    assert first.body == second.body
    assert LARGE in first.body
    assert first.headers["content-length"] == str(len(first.body))


def test_a_body_that_is_too_large_to_keep_is_sent_once(make_web, server, monkeypatch):
    monkeypatch.setattr("prefect_resilience.calls.edge.transports.MOST_REPLAYED", 1_000)
    web = make_web()
    server.says(503, 200)
    files = {"file": ("a.txt", io.BytesIO(LARGE), "text/plain")}
    assert web.ask("PUT", server.url, files=files).status_code == 503
    assert len(server.seen) == 1
    assert LARGE in server.seen[0].body


@each_client
@pytest.mark.parametrize("fault", [Act(503), Act(429), Act(cut="after"), Act(cut="request")])
def test_a_generator_is_never_sent_again(make_web, server, fault):
    web = make_web()
    server.says(fault, 200)
    try:
        answer = web.ask("PUT", server.url, content=web.pieces([b"a" * 1000, b"b" * 1000]), headers=KEY)
    except web.error:
        assert fault.cut is not None
    else:
        assert answer.status_code == fault.status
    assert len(server.seen) == 1


def test_a_generator_that_was_not_begun_is_sent(make_web, server):
    """The connection is refused before the body is read: nothing of it is lost."""
    server.shut()

    def opens(error: Exception) -> None:
        server.open()

    web = make_web(classify=opens)
    answer = web.post(server.url, content=web.pieces([b"one ", b"two"]))
    assert answer.status_code == 200
    assert [one.body for one in server.seen] == [b"one two"]


def test_without_retries_nothing_is_kept(make_web, server):
    web = make_web(retry=None)
    request = web.client.build_request("PUT", server.url, files={"file": io.BytesIO(b"x")})
    web.wait(web.client.send(request))
    assert not isinstance(request.stream, httpx.ByteStream)


# -- of answers


@each_client
@pytest.mark.parametrize("size", [0, 10, 99_999, 100_001, 400_000])
@pytest.mark.parametrize("packed", [False, True])
def test_an_error_body_of_any_size_is_whole(make_web, server, size, packed):
    web = make_web()
    body = (LARGE * (size // len(LARGE) + 1))[:size]
    server.says(Act(503, body=body, packed=packed))
    answer = web.get(server.url)
    assert answer.content == body
    assert len(server.seen) == 3
    streamed = web.open("GET", server.url)
    assert web.read(streamed) == body
    assert web.calm()


def test_the_size_that_is_read_is_bounded(make_web, server):
    """Of an endless error, the beginning is read, and the rest is the caller's."""
    web = make_web(retry=None)
    server.says(Act(503, chunks=(b"x" * 60_000,) * 600, gap=0.1))
    began = time.monotonic()
    streamed = web.open("GET", server.url)
    assert time.monotonic() - began < 30
    web.shut(streamed)
    assert web.calm()
    assert exchange.READ < 60_000 * 50


def test_a_stream_that_breaks_is_not_begun_again(make_web, server):
    web = make_web()
    server.says(Act(chunks=(b"one", b"two"), cut="body"), 200)
    streamed = web.open("GET", server.url)
    got: list[bytes] = []
    with pytest.raises(httpx.RemoteProtocolError):
        web.chunks(streamed, got)
    assert got == [b"one", b"two"]
    assert len(server.seen) == 1
    assert web.calm()


def test_a_stream_that_is_left_half_read_frees_its_connection(make_web, server, way):
    web = make_web()
    server.says(Act(chunks=(b"one", b"two", b"three"), gap=0.2))
    streamed = web.open("GET", server.url)

    async def first() -> bytes:
        async for chunk in streamed.aiter_raw():
            return chunk
        return b""

    got = web.run(first()) if way == "async" else next(streamed.iter_raw())
    assert got == b"one"
    web.shut(streamed)
    assert web.calm()
