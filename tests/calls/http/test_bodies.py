"""Bodies: those of requests are sent again whole or not at all; those of answers reach the caller whole."""

import io
import os
import time

import httpx
import pytest

from prefect_resilience.calls.edge import exchange
from tests.calls.http.server import Act
from tests.calls.http.webs import each_client

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
    server.says(Act(503, chunks=(b"x" * 60_000,) * 50, gap=0.02))
    began = time.monotonic()
    streamed = web.open("GET", server.url)
    assert time.monotonic() - began < 0.8
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
