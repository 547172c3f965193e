"""What OpenAI and Anthropic send: answers, streams and errors, each in its own dialect.

The shapes are those that the providers document and that their SDKs read; `llm_service.py` sends them. Watch
how differently the two say the same thing: an overflow has a code in one and only a sentence in the other; an
error in a stream is an event of its own kind in one and data like any other in the other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from starlette.responses import JSONResponse, Response

OVERFLOW = {
    "openai": "This model's maximum context length is 8192 tokens, and your messages have 9000 tokens.",
    "anthropic": "prompt is too long: 9000 tokens > 8192 maximum",
}

# status, and the error's type (for OpenAI: its code, too) in each dialect
ERRORS: dict[str, tuple[int, tuple[str, str | None], str]] = {
    "429": (429, ("requests", "rate_limit_exceeded"), "rate_limit_error"),
    "429-ms": (429, ("requests", "rate_limit_exceeded"), "rate_limit_error"),
    "429-reset": (429, ("requests", "rate_limit_exceeded"), "rate_limit_error"),
    "400": (400, ("invalid_request_error", None), "invalid_request_error"),
    "401": (401, ("invalid_request_error", "invalid_api_key"), "authentication_error"),
    "404": (404, ("invalid_request_error", "model_not_found"), "not_found_error"),
    "overflow": (400, ("invalid_request_error", "context_length_exceeded"), "invalid_request_error"),
    "500": (500, ("server_error", None), "api_error"),
    "503": (503, ("server_error", None), "api_error"),
    "529": (529, ("server_error", None), "overloaded_error"),
}


def headers_of(dialect: str, word: str) -> dict[str, str]:
    """What a provider says about when to come back."""
    if word == "429":
        return {"retry-after": "1"}
    if word == "429-ms":
        return {"retry-after-ms": "250", "retry-after": "9"}
    if word != "429-reset":
        return {}
    if dialect == "openai":
        return {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "6m0s"}
    in_half_a_minute = datetime.now(UTC) + timedelta(seconds=30)
    return {
        "anthropic-ratelimit-requests-remaining": "0",
        "anthropic-ratelimit-requests-reset": in_half_a_minute.isoformat(timespec="milliseconds"),
    }


def refusal(dialect: str, word: str, text: str) -> Response:
    """An error in the shape that the provider gives it; `text` is what it says."""
    text = OVERFLOW[dialect] if word == "overflow" else text
    headers = headers_of(dialect, word)
    if dialect == "openai":
        status, (kind, code), _ = ERRORS.get(word, (429, ("insufficient_quota", "insufficient_quota"), ""))
        error = {"message": text, "type": kind, "param": None, "code": code}
        return JSONResponse({"error": error}, status, headers)
    status, _, kind = ERRORS.get(word, (400, ("", None), "invalid_request_error"))
    text = "Your credit balance is too low" if word == "quota" else text
    body = {"type": "error", "error": {"type": kind, "message": text}, "request_id": "req_1"}
    return JSONResponse(body, status, headers)


def openai_message(text: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}] if text else []
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "small",
        "choices": choices,
    }


def anthropic_message(text: str) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "small",
        "content": [{"type": "text", "text": text}] if text else [],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": len(text.split())},
    }


def openai_events(text: str) -> Iterator[str]:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "small"}
    for delta in ({"role": "assistant", "content": ""}, *({"content": word} for word in words_of(text))):
        yield event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    yield event({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    yield "data: [DONE]\n\n"


def anthropic_events(text: str) -> Iterator[str]:
    begun = {**anthropic_message(""), "stop_reason": None}
    yield event({"type": "message_start", "message": begun})
    yield event({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})
    for word in words_of(text):
        delta = {"type": "text_delta", "text": word}
        yield event({"type": "content_block_delta", "index": 0, "delta": delta})
    yield event({"type": "content_block_stop", "index": 0})
    ended = {"stop_reason": "end_turn", "stop_sequence": None}
    yield event({"type": "message_delta", "delta": ended, "usage": {"output_tokens": 1}})
    yield event({"type": "message_stop"})


def event(data: dict[str, Any]) -> str:
    named = f"event: {data['type']}\n" if "type" in data else ""
    return f"{named}data: {json.dumps(data)}\n\n"


def words_of(text: str) -> list[str]:
    return [word + " " for word in text.split()]


MESSAGES = {"openai": openai_message, "anthropic": anthropic_message}
EVENTS = {"openai": openai_events, "anthropic": anthropic_events}
ERROR_EVENTS = {
    "openai": event({"error": {"message": "sorry", "type": "server_error", "code": "server_error"}}),
    "anthropic": event({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}),
}
