"""What an error proves about the call: real exceptions of real clients, and the classes they are made of."""

import smtplib
import urllib.error
import urllib.request

import aiohttp
import botocore.exceptions
import grpc
import httpx
import pytest
import requests

from prefect_resilience import AttemptTimeout, BulkheadFullError, CircuitOpenError, RateLimitedError, classify
from prefect_resilience.durable.effects.evidence import (
    hint_of,
    proves_not_done,
    says_not_sent,
    speaks_for_itself,
)
from prefect_resilience.durable.effects.witness import SeenRequest, Witness
from prefect_resilience.effects import Effect
from prefect_resilience.errors.exceptions import NotRecorded, NotSent

EXTERNAL, ONE_REQUEST = Effect(), Effect(one_request=True)


def proven(error: BaseException) -> bool:
    """Whether it is proof where the author promised one request; nothing is, where nobody did."""
    info = classify(error)
    assert proves_not_done(error, info, entered=False, effect=EXTERNAL, witness=None)
    if not says_not_sent(error):
        assert not proves_not_done(error, info, entered=True, effect=EXTERNAL, witness=None)
        assert not proves_not_done(error, None, entered=True, effect=ONE_REQUEST, witness=None), "cancelled"
    return proves_not_done(error, info, entered=True, effect=ONE_REQUEST, witness=None)


def witness(*statuses: int | None, others: tuple[str, ...] = ()) -> Witness:
    """One that saw a request for each status; None: one that never left."""
    made = Witness()
    for status in statuses:
        made.requests.append(SeenRequest("POST", "http://x", True, [] if status is None else [status]))
    made.others += others
    return made


def raised(call, *args, **kwargs) -> Exception:
    try:
        call(*args, **kwargs)
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


CLIENTS = {
    "httpx": lambda url, timeout=20: httpx.post(url, timeout=timeout).raise_for_status(),
    "requests": lambda url, timeout=20: requests.post(url, timeout=timeout).raise_for_status(),
    "urllib": lambda url, timeout=20: urllib.request.urlopen(url, data=b"{}", timeout=timeout).close(),
}


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


def chained(error: Exception, cause: Exception | None = None, context: Exception | None = None) -> Exception:
    error.__cause__, error.__context__ = cause, context
    return error


def answered(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "http://x", content=b"{}")
    return httpx.HTTPStatusError(
        str(status), request=request, response=httpx.Response(status, request=request)
    )


class Refused(grpc.RpcError):
    def __init__(self, code):
        self._code = code

    def code(self):
        return self._code


@pytest.mark.parametrize(
    "error",
    [
        NotSent("the template is empty"),
        httpx.PoolTimeout("no place"),
        botocore.exceptions.ConnectTimeoutError(endpoint_url="x"),
        botocore.exceptions.ClientError(
            {"Error": {"Code": "Throttling"}, "ResponseMetadata": {"HTTPStatusCode": 400}}, "Send"
        ),
        botocore.exceptions.ClientError(
            {"Error": {"Code": "NoSuchBucket"}, "ResponseMetadata": {"HTTPStatusCode": 404}}, "Put"
        ),
        Refused(grpc.StatusCode.RESOURCE_EXHAUSTED),
        smtplib.SMTPRecipientsRefused({"a@b": (550, b"no such user")}),
        ExceptionGroup("both", [httpx.ConnectError("a"), NotSent("b")]),
        ExceptionGroup("both", [answered(404), answered(429)]),
        chained(RuntimeError("a cause that is named"), cause=httpx.ConnectError("refused")),
        chained(RuntimeError("mail"), cause=chained(OSError(), cause=ConnectionRefusedError())),
    ],
    ids=repr,
)
def test_it_never_took_effect(error):
    assert proven(error)


@pytest.mark.parametrize(
    "error",
    [
        # What a guard of ours refuses inside the function says nothing of what the function did before.
        CircuitOpenError("mail", 3.0),
        BulkheadFullError("mail", 1, 1.0),
        RateLimitedError("mail", 1, 1.0, 1.0),
        NotRecorded("the store is away"),
        ExceptionGroup("an effect inside", [NotSent("a"), NotRecorded("b")]),
        AttemptTimeout(3),
        ConnectionResetError(104, "reset"),
        KeyError("in the answer"),
        Refused(grpc.StatusCode.DEADLINE_EXCEEDED),
        smtplib.SMTPServerDisconnected("gone"),
        ExceptionGroup("one of them", [httpx.ConnectError("a"), httpx.ReadTimeout("b")]),
        ExceptionGroup("one of them", [httpx.ConnectError("a"), KeyError("b")]),
        aiohttp.ServerDisconnectedError(),
        # A group is classified as one of its members is, which says nothing of the others.
        *(ExceptionGroup("one", [answered(status), KeyError("b")]) for status in (404, 429)),
        ExceptionGroup("one", [KeyError("b"), ExceptionGroup("in", [answered(404)])]),
        # A call before that was cut off outweighs the proof.
        chained(httpx.ConnectError("the second time"), context=httpx.ReadTimeout("the first")),
        chained(httpx.ConnectError("then"), context=answered(500)),
        chained(RateLimitedError("m", 1, 1, 1), context=httpx.ReadTimeout("before")),
    ],
    ids=repr,
)
def test_it_proves_nothing(error):
    assert not proven(error)


def redirected(error: BaseException) -> bool:
    return not speaks_for_itself(error, classify(error))


def test_the_end_of_a_redirect_is_not_the_only_request():
    """What was answered with 303 may have been taken; the client then asks elsewhere, with GET."""
    request = httpx.Request("POST", "http://x", content=b"{}")
    first = httpx.Response(303, request=request)
    refused = httpx.Response(404, request=httpx.Request("POST", "http://x/2", content=b"{}"), history=[first])
    assert redirected(raised(refused.raise_for_status))
    refused.history = []
    assert not redirected(raised(refused.raise_for_status))
    assert redirected(httpx.ConnectError("refused", request=httpx.Request("GET", "http://x/2")))
    assert not redirected(httpx.ConnectError("refused", request=request))


def test_a_witness_outweighs_what_the_error_says():
    cut, refused = httpx.ReadTimeout("cut"), httpx.ConnectError("refused")
    for error, seen, proof in (
        (refused, witness(None), True),
        (refused, witness(429), True),
        (KeyError("in the answer"), witness(404), True),
        (KeyError("in the answer"), witness(200), False),
        (refused, witness(200, None), False),
        (refused, witness(500), False),
        (refused, witness(None, others=("http.client.send",)), False),
        (cut, witness(429), True),
        (ConnectionResetError(104, "reset"), witness(429), False),
        (chained(RuntimeError(), context=requests.ReadTimeout()), witness(429), False),
        (NotSent("certain"), witness(200), True),
    ):
        for effect in (EXTERNAL, ONE_REQUEST):
            assert (
                proves_not_done(error, classify(error), entered=True, effect=effect, witness=seen) is proof
            ), (error, seen.requests)


def test_a_witness_that_saw_nothing_says_nothing():
    error = httpx.ConnectError("refused")
    assert not proves_not_done(error, classify(error), entered=True, effect=EXTERNAL, witness=Witness())
    assert proves_not_done(error, classify(error), entered=True, effect=ONE_REQUEST, witness=Witness())


def test_whose_word_counts_in_a_group():
    assert says_not_sent(ExceptionGroup("all", [NotSent("a"), ExceptionGroup("in", [NotSent("b")])]))
    assert not says_not_sent(ExceptionGroup("one", [NotSent("a"), ValueError("b")]))
    assert not says_not_sent(NotRecorded("an effect inside"))


def test_what_would_have_spared_the_doubt():
    error = httpx.ConnectError("refused")
    info = classify(error)
    assert "event_hooks" in hint_of(error, info, EXTERNAL, Witness())
    assert "did not see all traffic (http.client.send)" in hint_of(
        error, info, EXTERNAL, witness(None, others=("http.client.send", "subprocess.Popen"))
    )
    assert hint_of(error, info, EXTERNAL, witness(200)) is None
    assert hint_of(error, info, ONE_REQUEST, Witness()) is None
    assert hint_of(error, None, EXTERNAL, Witness()) is None
    assert hint_of(KeyError("x"), classify(KeyError("x")), EXTERNAL, Witness()) is None
