"""Answers that look like one thing and are another: throttles, lost races, streams, waits in odd places."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import botocore.exceptions
import httpx
import pytest
from google.api_core import exceptions as google
from prefect.states import Failed

from prefect_resilience import ErrorCategory as C
from prefect_resilience import classify
from prefect_resilience.errors.classify.retry_after import retry_info_delay
from tests.errors.by_name import made
from tests.errors.sdks.cloud_cases import with_retry_info

NOW = 1_800_000_000.0


def answer(status: int, body: object = None, **headers: str) -> httpx.HTTPStatusError:
    request = httpx.Request("GET", "http://service.invalid")
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    response = httpx.Response(status, json=body or {}, headers=names, request=request)
    return httpx.HTTPStatusError(f"status {status}", request=request, response=response)


def aws(code: str, message: str = "no", **extra: Any) -> botocore.exceptions.ClientError:
    return botocore.exceptions.ClientError({"Error": {"Code": code, "Message": message}, **extra}, "Call")


@pytest.mark.parametrize(
    ("error", "wait"),
    [
        (answer(403, x_ratelimit_remaining="0", x_ratelimit_reset="1800000060"), 60.0),
        (answer(403, ratelimit_remaining="0"), None),
        (answer(403, retry_after="30"), 30.0),
        (answer(403, {"error": {"errors": [{"reason": "userRateLimitExceeded"}]}}), None),
        (answer(403, [{"errorCode": "RATE_LIMIT_EXCEEDED"}]), None),
        (answer(403, {"message": "You have exceeded a secondary rate limit"}), None),
        (
            made(
                "github.RateLimitExceededException", status=403, data={"message": "API rate limit exceeded"}
            ),
            None,
        ),
    ],
)
def test_a_403_that_is_a_rate_limit(error, wait) -> None:
    if isinstance(error, httpx.HTTPStatusError):
        error.response.read()
    else:
        error.args = ("API rate limit exceeded",)
    info = classify(error, now=NOW)
    assert (info.category, info.code, info.retry_after) == (C.RATE_LIMIT, "403", wait)


def test_a_403_that_is_none() -> None:
    assert classify(answer(403, x_ratelimit_remaining="12")).category is C.AUTH
    assert classify(answer(401, retry_after="3")).category is C.AUTH


def test_a_day_s_allowance_does_not_come_back_in_minutes() -> None:
    daily = answer(403, {"error": {"errors": [{"reason": "dailyLimitExceeded"}]}})
    daily.response.read()
    assert classify(daily).category is C.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    ("status", "word", "retried"),
    [(503, "false", False), (400, "true", True), (413, "true", False), (503, "maybe", True)],
)
def test_a_server_may_say_whether_to_retry(status, word, retried) -> None:
    assert classify(answer(status, x_should_retry=word)).retryable is retried


THROTTLES = [
    (aws("throttlingException", "Too many tokens"), C.RATE_LIMIT),
    (aws("ValidationException", "too many input tokens: 9 > 8"), C.OVERFLOW),
    (aws("TransactionCanceledException"), C.CONFLICT),
    ("Too many tokens, please wait before trying again", C.UNEXPECTED),
    ("Rate limit: too many tokens per minute", C.RATE_LIMIT),
    ("too many tokens in the prompt", C.OVERFLOW),
    ("grpc: received message larger than max (5 vs. 4)", C.OVERFLOW),
    ("insufficient_quota", C.RESOURCE_EXHAUSTED),
    ("You exceeded your current quota. Please retry in 34.07s.", C.RATE_LIMIT),
    ("You have reached your specified API usage limits", C.RESOURCE_EXHAUSTED),
    ("ERROR: could not serialize access due to concurrent update", C.UNAVAILABLE),
    ("The model is experiencing high demand", C.UNAVAILABLE),
]


@pytest.mark.parametrize(("error", "category"), THROTTLES)
def test_throttles_and_overflows(error, category) -> None:
    assert classify(error).category is category


def test_the_worst_reason_of_a_cancelled_transaction_counts() -> None:
    reasons = [{"Code": "TransactionConflict"}, {"Code": "ValidationError"}, "odd"]
    info = classify(aws("TransactionCanceledException", CancellationReasons=reasons))
    assert not info.retryable
    assert info.details["reasons"] == ["TransactionConflict", "ValidationError"]


class Rpc(Exception):
    __module__ = "grpc"

    def __init__(self, status: str, trailing: Any = (), text: str = "") -> None:
        super().__init__(text)
        self.code = lambda: SimpleNamespace(name=status)
        self.trailing_metadata = lambda: trailing


Rpc.__name__ = "RpcError"


def test_google_s_own_answers() -> None:
    race = google.BadRequest("Could not serialize access to table t due to concurrent update")
    assert (classify(race).category, classify(race).retryable) == (C.UNAVAILABLE, True)
    limited = google.Forbidden("x", errors=[{"reason": "rateLimitExceeded"}])
    assert classify(limited).category is C.RATE_LIMIT
    large = google.ResourceExhausted("received message larger than max")
    assert classify(large).category in (C.OVERFLOW, C.RATE_LIMIT)
    invalid = google.InvalidArgument(
        "message size 5 is larger than 4: sent message larger than max (5 vs. 4)"
    )
    assert classify(invalid).category is C.OVERFLOW
    body = {"error": {"details": [{"@type": "google.rpc.RetryInfo", "retryDelay": "34s"}]}}
    assert classify(made("google.APIError", code=429, details=body)).retry_after == 34.0
    odd = {"error": {"details": [{"retryDelay": "soon"}, {"retryDelay": 7}]}}
    assert classify(made("google.APIError", code=429, details=odd)).retry_after is None


def test_only_a_retry_info_is_read_as_one() -> None:
    assert retry_info_delay(with_retry_info(3)) == 3.0
    assert retry_info_delay(with_retry_info(3).replace(b"RetryInfo", b"ErrorInfo")) is None
    assert retry_info_delay(b"\xff" * 40) is None
    assert retry_info_delay(b"\x09" + b"\0" * 8 + with_retry_info(4)) == 4.0
    kind = b"google.rpc.RetryInfo"
    typed = bytes((0x0A, len(kind))) + kind
    assert retry_info_delay(_detail(typed)) is None
    assert retry_info_delay(_detail(typed + b"\x12\x00")) is None
    negative = b"\x0a\x0b\x08" + b"\xff" * 9 + b"\x01"
    assert retry_info_delay(_detail(typed + bytes((0x12, len(negative))) + negative)) == 0.0
    halves = b"\x0a\x06\x10" + b"\x80\xca\xb5\xee\x01"
    assert retry_info_delay(_detail(typed + bytes((0x12, len(halves))) + halves)) == 0.5


def _detail(any_message: bytes) -> bytes:
    return bytes((0x1A, len(any_message))) + any_message


def test_a_wait_in_words_counts_for_a_throttle_and_not_for_a_mistake() -> None:
    assert classify("429 Too Many Requests: try again in 6s").retry_after == 6.0
    assert classify("400 Bad Request: try again in 6s").retry_after is None


def test_an_exception_that_says_when_to_come_back() -> None:
    info = classify(made("chat.FloodControl", "slow", retry_after=7))
    assert (info.category, info.code, info.retry_after) == (C.RATE_LIMIT, "FloodControl", 7.0)
    assert classify(made("chat.Flood", retry_after=timedelta(seconds=2))).retry_after == 2.0
    assert classify(made("chat.Flood", retry_after="soon")).category is C.UNEXPECTED


@pytest.mark.parametrize(
    ("message", "category"),
    [
        ("Task run encountered an exception: ConnectionResetError: [Errno 104]", C.NETWORK),
        ("step 'load' failed: ConnectionResetError: [Errno 104] reset by peer", C.NETWORK),
        ("Retries are exhausted: httpx.ConnectError: all failed", C.NETWORK),
        ("Finished in state Failed('encountered an exception ReadTimeout')", C.TIMEOUT),
        ("oops: KeyError: 'x'", C.UNEXPECTED),
        ("Traceback (most recent call last):\n  x\nTimeoutError: slow", C.TIMEOUT),
    ],
)
def test_the_exception_in_a_state_s_message(message, category) -> None:
    assert classify(Failed(message=message)).category is category


def test_sdks_that_set_no_cause() -> None:
    for dotted, category in {
        "azure.core.exceptions.ServiceRequestError": C.NETWORK,
        "azure.core.exceptions.ServiceResponseTimeoutError": C.TIMEOUT,
        "pymongo.errors.ServerSelectionTimeoutError": C.NETWORK,
        "pymongo.errors.NetworkTimeout": C.TIMEOUT,
        "stripe._error.APIConnectionError": C.NETWORK,
        "elastic_transport.ConnectionTimeout": C.TIMEOUT,
    }.items():
        assert classify(made(dotted, "x")).category is category
    assert (
        classify(made("stripe._error.APIConnectionError", "(Network error: ReadTimeout: x)")).code
        == "TIMEOUT"
    )
    assert classify(made("stripe._error.APIError", "x", http_status=503)).code == "503"


def test_google_auth_knows_itself() -> None:
    assert classify(made("google.auth.exceptions.GoogleAuthError", "x", retryable=True)).retryable
    assert not classify(made("google.auth.exceptions.GoogleAuthError", "x", retryable=False)).retryable


def test_a_body_may_lie_in_many_places() -> None:
    for field, body in {
        "body": b'{"code": "context_length_exceeded"}',
        "data": {"code": "context_length_exceeded"},
        "content": [{"errorCode": "context_length_exceeded"}],
        "json_body": {"error": {"code": "context_length_exceeded"}},
    }.items():
        assert classify(made("x.ApiError", status=400, **{field: body})).category is C.OVERFLOW
    assert classify(made("x.ApiError", status=400, body="{broken")).category is C.INVALID
    azure = made(
        "azure.core.exceptions.HttpResponseError",
        status_code=403,
        error=SimpleNamespace(code="TooManyRequests"),
    )
    assert classify(azure).category is C.RATE_LIMIT


def test_what_is_no_answer_s_body_says_nothing() -> None:
    """An application's own error may carry its subject: a product that is unavailable is not retried."""
    for field in ("data", "details", "info", "content"):
        assert (
            classify(made("shop.OrderError", "x", **{field: {"code": "rate_limited"}})).category
            is C.UNEXPECTED
        )
    for code in ("UNAVAILABLE", "ABORTED", "SlowDown", "InternalError", "ServiceUnavailable"):
        assert classify(made("shop.OrderError", "x", code=code)).category is C.UNEXPECTED


def test_a_class_that_says_overflow_is_one_whatever_its_status() -> None:
    error = made("litellm.ContextWindowExceededError", "x", status_code=400)
    assert (classify(error).category, classify(error).code) == (C.OVERFLOW, "context_length_exceeded")


def test_a_stream_s_error_is_read_by_its_words() -> None:
    assert classify(made("openai.APIError", "The engine is overloaded")).category is C.UNAVAILABLE
    assert classify(made("openai.APIError", "odd")).category is C.UNEXPECTED
    broken = made(
        "anthropic.APIError", "prompt is too long: 9 tokens", status_code=200, type="invalid_request_error"
    )
    assert classify(broken).category is C.OVERFLOW


def test_no_service_fails_to_retrieve_context() -> None:
    """Only the user's code knows that a call retrieves context: it raises TaskFailure."""
    assert "context_retrieval_failure" not in {category.reason.value for category in C}
