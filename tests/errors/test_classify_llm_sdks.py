"""What the SDKs of two providers raise when their provider misbehaves: sync and async, streaming or not.

Each row is checked against what the SDK itself raised: its class, its status, its own code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import cache
from typing import Any

import anthropic
import httpx
import openai
import pytest

from flows.llm_service import BEHAVIOURS, LLMService
from flows.serving import running
from prefect_resilience import ErrorCategory as C
from prefect_resilience import classify

WORDS = "one two three four five six"
MESSAGES: Any = [{"role": "user", "content": WORDS}]
OPENAI, ANTHROPIC = "openai", "anthropic"
WITHOUT_STREAM, WITH_STREAM = "at once", "streaming"


@pytest.fixture(scope="module")
def llm() -> Iterator[tuple[LLMService, str]]:
    service = LLMService(slow_seconds=2.0)
    with running(service) as address:
        yield service, address


def client(provider: str, isasync: bool, address: str, timeout: float) -> Any:
    module: Any = openai if provider == OPENAI else anthropic
    sdk = getattr(module, f"{'Async' if isasync else ''}{'OpenAI' if provider == OPENAI else 'Anthropic'}")
    path = "openai/v1" if provider == OPENAI else "anthropic"
    return sdk(base_url=f"{address}/{path}", api_key="none", max_retries=0, timeout=timeout)


@cache
def sync_client(provider: str, address: str, timeout: float) -> Any:
    return client(provider, False, address, timeout)


def create(provider: str, sdk: Any, stream: bool) -> Any:
    if provider == OPENAI:
        return sdk.chat.completions.create(model="m", messages=MESSAGES, stream=stream)
    return sdk.messages.create(model="m", max_tokens=9, messages=MESSAGES, stream=stream)


def raised_by(provider: str, isasync: bool, stream: bool, address: str, timeout: float) -> BaseException:
    """The error of one call, the whole stream read."""

    async def acall() -> None:
        async with client(provider, True, address, timeout) as sdk:
            answer = await create(provider, sdk, stream)
            if stream:
                async for _ in answer:
                    pass

    def call() -> None:
        answer = create(provider, sync_client(provider, address, timeout), stream)
        if stream:
            list(answer)

    try:
        asyncio.run(acall()) if isasync else call()
    except Exception as error:
        return error
    raise AssertionError("the SDK did not raise")


# what the provider does: the SDK's class by provider, the status it tells, then what is made of it:
# category, code by provider, the wait in seconds
Row = tuple[str, dict[str, str], Any, C, dict[str, str], Any]
BOTH = (OPENAI, ANTHROPIC)


def both(text: str) -> dict[str, str]:
    return dict.fromkeys(BOTH, text)


TABLE: list[Row] = [
    ("429", both("RateLimitError"), 429, C.RATE_LIMIT, both("429"), 1.0),
    ("429-ms", both("RateLimitError"), 429, C.RATE_LIMIT, both("429"), 0.25),
    (
        "429-reset",
        both("RateLimitError"),
        429,
        C.RATE_LIMIT,
        both("429"),
        {OPENAI: 360.0, ANTHROPIC: pytest.approx(30, abs=3)},
    ),
    ("400", both("BadRequestError"), 400, C.INVALID, both("400"), None),
    ("401", both("AuthenticationError"), 401, C.AUTH, both("401"), None),
    ("404", both("NotFoundError"), 404, C.NOT_FOUND, both("404"), None),
    ("overflow", both("BadRequestError"), 400, C.OVERFLOW, both("context_length_exceeded"), None),
    ("500", both("InternalServerError"), 500, C.SERVER_ERROR, both("500"), None),
    (
        "503",
        {OPENAI: "InternalServerError", ANTHROPIC: "ServiceUnavailableError"},
        503,
        C.UNAVAILABLE,
        both("503"),
        None,
    ),
    (
        "529",
        {OPENAI: "InternalServerError", ANTHROPIC: "OverloadedError"},
        529,
        C.UNAVAILABLE,
        both("529"),
        None,
    ),
    # money that is used up does not come back
    (
        "quota",
        {OPENAI: "RateLimitError", ANTHROPIC: "BadRequestError"},
        {OPENAI: 429, ANTHROPIC: 400},
        C.RESOURCE_EXHAUSTED,
        {OPENAI: "insufficient_quota", ANTHROPIC: "billing_error"},
        None,
    ),
    ("cut", both("APIConnectionError"), None, C.NETWORK, both("NETWORK_ERROR"), None),
    ("slow", both("APITimeoutError"), None, C.TIMEOUT, both("TIMEOUT"), None),
]


@pytest.mark.parametrize("stream", [False, True], ids=[WITHOUT_STREAM, WITH_STREAM])
@pytest.mark.parametrize("isasync", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("provider", BOTH)
@pytest.mark.parametrize("row", TABLE, ids=[row[0] for row in TABLE])
def test_what_the_sdk_raised_and_what_is_made_of_it(llm, row, provider, isasync, stream) -> None:
    word, names, status, category, codes, wait = row
    status = status[provider] if isinstance(status, dict) else status
    service, address = llm
    service.says(provider, word)
    error = raised_by(provider, isasync, stream, address, timeout=0.3 if word == "slow" else 10)
    if word == "cut" and stream and provider == ANTHROPIC:
        assert type(error).__name__ == "RemoteProtocolError"  # it lets its transport's error through
    else:
        assert type(error).__name__ == names[provider]
        assert isinstance(error, (openai if provider == OPENAI else anthropic).APIError)
    assert getattr(error, "status_code", None) == status
    info = classify(error)
    assert (info.category, info.code, info.retryable) == (category, codes[provider], category.retryable)
    assert info.retry_after == (wait[provider] if isinstance(wait, dict) else wait)
    if status is not None:
        assert info.details["status"] == status
        reported = error.body["error"] if provider == ANTHROPIC else error.body  # type: ignore[attr-defined]
        assert info.details["provider_code"] == (reported.get("code") or reported["type"])
        assert (reported.get("message") or "") in info.message


@pytest.mark.parametrize("isasync", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize(
    ("provider", "word", "category", "code"),
    [
        (OPENAI, "event", C.SERVER_ERROR, "server_error"),
        (ANTHROPIC, "event", C.UNAVAILABLE, "overloaded_error"),
        (OPENAI, "stall", C.TIMEOUT, "TIMEOUT"),
        (ANTHROPIC, "stall", C.TIMEOUT, "TIMEOUT"),
    ],
)
def test_trouble_in_the_middle_of_a_stream(llm, provider, word, category, code, isasync) -> None:
    service, address = llm
    service.says(provider, word)
    error = raised_by(provider, isasync, True, address, timeout=0.5)
    info = classify(error)
    assert (info.category, info.code, info.retryable) == (category, code, True)


@pytest.mark.parametrize("provider", BOTH)
def test_an_answer_that_no_sdk_objects_to(llm, provider) -> None:
    """Empty, malformed and half answers are the caller's to find out: no SDK raises."""
    service, address = llm
    with client(provider, False, address, 10) as sdk:
        for word in ("empty", "malformed"):
            service.says(provider, word)
            create(provider, sdk, False)
        service.says(provider, "half", "ok")
        half, whole = (list(create(provider, sdk, True)) for _ in range(2))
    assert 0 < len(half) < len(whole)


def test_the_service_does_what_its_words_say(llm) -> None:
    service, address = llm
    with pytest.raises(KeyError):
        service.says(OPENAI, "42")
    service.says(OPENAI, "ok")
    body = {"model": "m", "messages": MESSAGES}
    answer = httpx.post(f"{address}/openai/v1/chat/completions", json=body)
    assert answer.json()["choices"][0]["message"]["content"] == f"You said: {WORDS}"
    assert set(service.given[OPENAI]) <= set(BEHAVIOURS)
