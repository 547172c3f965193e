"""Model providers and clouds: their own clients, talking to a service on loopback."""

import anthropic
import botocore.session
import openai
import pytest
import requests
from botocore.config import Config
from botocore.exceptions import NoCredentialsError, ParamValidationError
from google.api_core import exceptions as google
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2

from prefect_resilience import ErrorCategory as C
from prefect_resilience import classify
from tests.errors.by_name import caught


def ask_openai(url: str, stream: bool = False, timeout: float = 5) -> object:
    client = openai.OpenAI(api_key="none", base_url=url, max_retries=0, timeout=timeout)
    messages = [{"role": "user", "content": "hi"}]
    answer = client.chat.completions.create(model="m", messages=messages, stream=stream)  # type: ignore[call-overload]
    return list(answer) if stream else answer


def ask_anthropic(url: str, stream: bool = False, timeout: float = 5) -> object:
    client = anthropic.Anthropic(api_key="none", base_url=url, max_retries=0, timeout=timeout)
    messages = [{"role": "user", "content": "hi"}]
    answer = client.messages.create(model="m", max_tokens=1, messages=messages, stream=stream)  # type: ignore[call-overload]
    return list(answer) if stream else answer


# What the SDKs' own tables (sdks, more_sdks) do not have
OPENAI = [
    (
        400,
        {"message": "This model's maximum context length is 8192 tokens"},
        C.OVERFLOW,
        "context_length_exceeded",
    ),
    (429, {"message": "Request too large for m on tokens per min"}, C.OVERFLOW, "request_too_large"),
    (400, {"code": "invalid_type", "message": "no"}, C.INVALID, "400"),
    (409, {"message": "no"}, C.CONFLICT, "409"),
]


@pytest.mark.parametrize(("status", "error", "category", "code"), OPENAI)
def test_openai(provider, status, error, category, code) -> None:
    provider.says(status, {"error": error})
    info = caught(lambda: ask_openai(provider.url))
    assert (info.category, info.code, info.retryable) == (category, code, category.retryable)
    assert info.details["status"] == status


ANTHROPIC = [
    (402, "billing_error", "no", C.RESOURCE_EXHAUSTED, "billing_error"),
    (403, "permission_error", "no", C.AUTH, "403"),
    (413, "request_too_large", "no", C.OVERFLOW, "413"),
    (504, "timeout_error", "no", C.TIMEOUT, "504"),
]


@pytest.mark.parametrize(("status", "kind", "message", "category", "code"), ANTHROPIC)
def test_anthropic(provider, status, kind, message, category, code) -> None:
    provider.says(status, {"type": "error", "error": {"type": kind, "message": message}})
    info = caught(lambda: ask_anthropic(provider.url))
    assert (info.category, info.code) == (category, code)
    assert info.details["provider_code"] == kind


def test_anthropic_spend_limits_are_no_rate_limits(provider) -> None:
    details = {"error_code": "enforced_spend_limit_reached"}
    provider.says(429, {"error": {"type": "rate_limit_error", "message": "x", "details": details}})
    info = caught(lambda: ask_anthropic(provider.url))
    assert (info.category, info.code) == (C.RESOURCE_EXHAUSTED, "enforced_spend_limit_reached")


SESSION = botocore.session.Session()


def aws(url: str) -> object:
    return SESSION.create_client(
        "dynamodb",
        region_name="eu-west-1",
        endpoint_url=url,
        aws_access_key_id="none",
        aws_secret_access_key="none",
        config=Config(retries={"total_max_attempts": 1}, connect_timeout=1, read_timeout=0.2),
    )


AWS = [
    (400, "ThrottlingException", C.RATE_LIMIT),
    (400, "LimitExceededException", C.RESOURCE_EXHAUSTED),
    (400, "ResourceNotFoundException", C.NOT_FOUND),
    (400, "AccessDeniedException", C.AUTH),
    (400, "ValidationException", C.INVALID),
    (400, "SomethingNew", C.INVALID),
    (500, "InternalServerError", C.SERVER_ERROR),
    (503, "ServiceUnavailable", C.UNAVAILABLE),
]


@pytest.mark.parametrize(("status", "code", "category"), AWS)
def test_aws(provider, status, code, category) -> None:
    provider.says(status, {"__type": f"com.amazonaws#{code}", "message": "no"}, Retry_After="3")
    info = caught(lambda: aws(provider.url).list_tables())
    assert (info.category, info.code, info.details["status"]) == (category, code, status)
    assert info.retry_after == 3.0


def test_aws_beyond_answers(provider, closed_port, silent_port) -> None:
    provider.says(400, {"__type": "ValidationException", "message": "Input is too long for requested model."})
    assert caught(lambda: aws(provider.url).list_tables()).code == "context_length_exceeded"
    assert caught(lambda: aws(closed_port).list_tables()).code == "NETWORK_ERROR"
    assert caught(lambda: aws(silent_port).list_tables()).code == "TIMEOUT"
    assert classify(NoCredentialsError()).category is C.AUTH
    assert classify(ParamValidationError(report="x")).category is C.INVALID
    with pytest.raises(ParamValidationError) as caught_here:
        aws(closed_port).get_item(Nonsense=1)  # type: ignore[attr-defined]
    assert classify(caught_here.value).category is C.INVALID


GOOGLE = [
    (google.ResourceExhausted("x"), C.RATE_LIMIT, "429"),
    (google.ServiceUnavailable("x"), C.UNAVAILABLE, "503"),
    (google.DeadlineExceeded("x"), C.TIMEOUT, "504"),
    (google.Unauthenticated("x"), C.AUTH, "401"),
    (google.PermissionDenied("x"), C.AUTH, "403"),
    (google.NotFound("x"), C.NOT_FOUND, "404"),
    (google.AlreadyExists("x"), C.CONFLICT, "409"),
    (google.Aborted("x"), C.UNAVAILABLE, "409"),
    (google.InvalidArgument("x"), C.INVALID, "400"),
    (google.FailedPrecondition("x"), C.CONFLICT, "400"),
    (google.InternalServerError("x"), C.SERVER_ERROR, "500"),
    (google.Cancelled("x"), C.CANCELLED, "499"),
    (google.RetryError("x", None), C.TIMEOUT, "TIMEOUT"),
    (
        google.InvalidArgument("The input token count (9) exceeds the maximum number of tokens allowed (8)."),
        C.OVERFLOW,
        "context_length_exceeded",
    ),
]


@pytest.mark.parametrize(("error", "category", "code"), GOOGLE)
def test_google(error, category, code) -> None:
    info = classify(error)
    assert (info.category, info.code) == (category, code)


def test_google_waits(provider) -> None:
    retry = error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=2, nanos=500_000_000))
    assert classify(google.ResourceExhausted("x", details=[retry])).retry_after == 2.5
    assert classify(google.ResourceExhausted("x", details=["text"])).retry_after is None
    provider.says(429, {"error": {"message": "x"}}, Retry_After="6")
    error = google.from_http_response(requests.get(provider.url, timeout=5))
    assert classify(error).code == "429"
    assert classify(error).retry_after == 6.0
    exhausted = google.ResourceExhausted("x", response=requests.get(provider.url, timeout=5))
    assert classify(exhausted).retry_after == 6.0
