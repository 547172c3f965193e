"""What an error proves about the call: real exceptions of real clients, and the classes they are made of."""

from __future__ import annotations

import smtplib
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import aiohttp
import botocore.exceptions
import grpc
import httpx
import pytest
import requests
from google.api_core import exceptions as google
from hypothesis import given
from hypothesis import strategies as st

from prefect_resilience import AttemptTimeout, BulkheadFullError, CircuitOpenError, RateLimitedError, classify
from prefect_resilience.effects import Effect, NotDone
from prefect_resilience.effects.evidence import proves_not_done, retry_refusal
from prefect_resilience.errors.exceptions import NotSent

try:
    ExceptionGroup  # noqa: B018
except NameError:
    from exceptiongroup import ExceptionGroup  # Python 3.10


def proven(error: BaseException) -> bool:
    return proves_not_done(error, classify(error))


def raised(call, *args, **kwargs) -> Exception:
    try:
        call(*args, **kwargs)
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


@pytest.fixture(scope="module")
def closed_port() -> Iterator[int]:
    """A port that is taken, so that nobody else gets it, and at which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


CLIENTS = {
    "httpx": lambda url, timeout=20: httpx.post(url, timeout=timeout).raise_for_status(),
    "requests": lambda url, timeout=20: requests.post(url, timeout=timeout).raise_for_status(),
    "urllib": lambda url, timeout=20: urllib.request.urlopen(url, data=b"{}", timeout=timeout).close(),
}


@pytest.mark.parametrize("client", CLIENTS)
def test_nobody_listens(client, closed_port):
    assert proven(raised(CLIENTS[client], f"http://127.0.0.1:{closed_port}/"))


async def test_nobody_listens_for_aiohttp(closed_port):
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientError) as caught:
            await session.post(f"http://127.0.0.1:{closed_port}/")
    assert proven(caught.value)


async def test_nobody_listens_for_async_httpx(closed_port):
    async with httpx.AsyncClient() as client:
        with pytest.raises(httpx.ConnectError) as caught:
            await client.post(f"http://127.0.0.1:{closed_port}/")
    assert proven(caught.value)


@pytest.mark.parametrize("client", CLIENTS)
def test_no_such_host(client):
    assert proven(raised(CLIENTS[client], "http://no-such-host.invalid/"))


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    ("status", "refused"),
    [
        *[(status, True) for status in (400, 401, 403, 404, 410, 413, 422, 425, 429)],
        *[(status, False) for status in (408, 409, 499, 500, 502, 503, 504, 529)],
    ],
)
def test_answers(receiver, client, status, refused):
    receiver.says(status)
    assert proven(raised(CLIENTS[client], receiver.url)) is refused


@pytest.mark.parametrize("client", CLIENTS)
def test_a_connection_that_was_cut(receiver, client):
    receiver.says("cut")
    assert not proven(raised(CLIENTS[client], receiver.url))


@pytest.mark.parametrize("client", CLIENTS)
def test_no_answer_in_time(receiver, client):
    receiver.says("silence")
    assert not proven(raised(CLIENTS[client], receiver.url, timeout=0.3))


class Refused(grpc.RpcError):
    def __init__(self, code):
        self._code = code

    def code(self):
        return self._code


@pytest.mark.parametrize(
    "error",
    [
        NotSent("the template is empty"),
        CircuitOpenError("mail", 3.0),
        BulkheadFullError("mail", 1, 1.0),
        RateLimitedError("mail", 1, 1.0, 1.0),
        httpx.PoolTimeout("no place"),
        botocore.exceptions.ConnectTimeoutError(endpoint_url="x"),
        botocore.exceptions.ClientError(
            {"Error": {"Code": "Throttling"}, "ResponseMetadata": {"HTTPStatusCode": 400}}, "Send"
        ),
        botocore.exceptions.ClientError(
            {"Error": {"Code": "NoSuchBucket"}, "ResponseMetadata": {"HTTPStatusCode": 404}}, "Put"
        ),
        Refused(grpc.StatusCode.INVALID_ARGUMENT),
        Refused(grpc.StatusCode.RESOURCE_EXHAUSTED),
        google.InvalidArgument("no"),
        smtplib.SMTPRecipientsRefused({"a@b": (550, b"no such user")}),
        smtplib.SMTPDataError(554, b"spam"),
        smtplib.SMTPAuthenticationError(535, b"no"),
        ExceptionGroup("both", [httpx.ConnectError("a"), NotSent("b")]),
    ],
    ids=repr,
)
def test_it_never_took_effect(error):
    assert proven(error)


@pytest.mark.parametrize(
    "error",
    [
        AttemptTimeout(3),
        TimeoutError("timed out"),
        ConnectionResetError(104, "reset"),
        KeyError("in the answer"),
        ValueError("in the answer"),
        PermissionError("a file"),
        httpx.ReadError(""),
        Refused(grpc.StatusCode.UNAVAILABLE),
        Refused(grpc.StatusCode.DEADLINE_EXCEEDED),
        smtplib.SMTPServerDisconnected("gone"),
        ExceptionGroup("one of them", [httpx.ConnectError("a"), httpx.ReadTimeout("b")]),
        ExceptionGroup("one of them", [httpx.ConnectError("a"), KeyError("b")]),
        aiohttp.ServerDisconnectedError(),
    ],
    ids=repr,
)
def test_it_proves_nothing(error):
    assert not proven(error)


def chained(error: Exception, cause: Exception | None = None, context: Exception | None = None) -> Exception:
    error.__cause__, error.__context__ = cause, context
    return error


def test_a_cause_that_was_named_proves_it():
    assert proven(chained(RuntimeError("mail"), cause=httpx.ConnectError("refused")))
    assert proven(chained(RuntimeError("mail"), cause=chained(OSError(), cause=ConnectionRefusedError())))


def test_what_it_was_raised_during_proves_nothing():
    assert not proven(chained(KeyError("in a second call"), context=httpx.ConnectError("refused")))


def test_a_call_before_that_was_cut_off_outweighs_the_proof():
    assert not proven(chained(httpx.ConnectError("the second time"), context=httpx.ReadTimeout("the first")))
    request = httpx.Request("POST", "http://x")
    failed = httpx.HTTPStatusError("500", request=request, response=httpx.Response(500, request=request))
    assert not proven(chained(httpx.ConnectError("then"), context=failed))
    assert not proven(chained(RateLimitedError("m", 1, 1, 1), context=httpx.ReadTimeout("before")))


def test_chains_that_bite_their_tail_and_long_ones():
    one, other = RuntimeError("a"), RuntimeError("b")
    one.__cause__, other.__cause__ = other, one
    assert not proven(one)
    last: Exception = httpx.ConnectError("far away")
    for _ in range(500):
        last = chained(RuntimeError(), cause=last)
    assert not proven(last)


@given(st.sampled_from(["idempotent", "conditional", "external"]), st.booleans(), st.booleans())
def test_only_an_external_effect_without_verify_is_not_tried_again_after_a_doubt(kind, doubt, asks):
    effect = Effect(kind=kind, verify=(lambda key: NotDone()) if asks else None)
    refused = retry_refusal(effect, doubt=doubt) is not None
    assert refused == (kind == "external" and doubt and not asks)


def test_odd_shapes():
    class Odd(Exception):
        exceptions = "not a tuple"
        reason = 3

    assert not proven(Odd())
    assert not proven(urllib.error.URLError("unknown url type"))
