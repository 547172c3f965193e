"""Streams that end without their end marker are cut, whoever sent them."""

import asyncio
import json
import pickle
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from anthropic.types import RawContentBlockDeltaEvent, RawMessageStopEvent
from botocore.exceptions import EventStreamError
from openai.types.chat import ChatCompletionChunk

from prefect_resilience import ResourceExhausted, Retry, StreamCut, classify, ensure_complete_stream
from tests.conftest import Reply


def chunk(text: str | None = None, stop: str | None = None) -> dict[str, Any]:
    return {
        "id": "1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "delta": {"content": text} if text else {}, "finish_reason": stop}],
    }


def sse(*events: Any) -> list[str]:
    return [f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n" for event in events]


ANTHROPIC = [
    {"type": "message_start", "message": {"content": [], "stop_reason": None}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "half a "}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "sentence"}},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
    {"type": "message_stop"},
]
RESPONSES = [
    {"type": "response.created", "response": {"incomplete_details": None}},
    {"type": "response.output_text.delta", "delta": "half a "},
    {"type": "response.output_text.delta", "delta": "sentence"},
    {"type": "response.completed", "response": {"incomplete_details": None}},
]
GOOGLE = [
    {"candidates": [{"content": {"parts": [{"text": "half a "}]}}]},
    {"candidates": [{"content": {"parts": [{"text": "sentence"}]}, "finishReason": "STOP"}]},
]
BEDROCK = [
    {"contentBlockDelta": {"delta": {"text": "half a "}, "contentBlockIndex": 0}},
    {"contentBlockDelta": {"delta": {"text": "sentence"}, "contentBlockIndex": 0}},
    {"messageStop": {"stopReason": "end_turn"}},
]
OLLAMA = [
    {"message": {"content": "half a "}, "done": False},
    {"message": {"content": "sentence"}, "done": False},
    {"message": {"content": ""}, "done": True, "done_reason": "stop"},
]
COHERE = [
    {"type": "content-delta", "delta": {"message": {"content": {"text": "half a "}}}},
    {"type": "content-delta", "delta": {"message": {"content": {"text": "sentence"}}}},
    {"type": "message-end", "delta": {"finish_reason": "COMPLETE"}},
]
COHERE_1 = [
    {"event_type": "text-generation", "text": "half a ", "is_finished": False},
    {"event_type": "text-generation", "text": "sentence", "is_finished": False},
    {"event_type": "stream-end", "is_finished": True, "response": {"text": "half a sentence"}},
]
CHAT = [chunk("half a "), chunk("sentence"), chunk(stop="stop")]


def as_bytes(event):
    return {"chunk": {"bytes": json.dumps(event).encode()}}


AS_BYTES = [*map(as_bytes, ANTHROPIC)]
WHOLE: dict[str, list[Any]] = {
    "chat": CHAT,
    "chat as the SDK gives it": [ChatCompletionChunk.model_validate(event) for event in CHAT],
    "chat as lines": sse(*CHAT[:2], chunk(), "[DONE]"),
    "chat as bytes": [line.encode() for line in sse(*CHAT[:2], "[DONE]")],
    "anthropic": ANTHROPIC,
    "anthropic as the SDK gives it": [
        RawContentBlockDeltaEvent.model_validate(ANTHROPIC[1]),
        RawContentBlockDeltaEvent.model_validate(ANTHROPIC[2]),
        RawMessageStopEvent.model_validate(ANTHROPIC[4]),
    ],
    "anthropic as lines": [*sse(*ANTHROPIC[1:3]), "event: message_stop\n"],
    "responses": RESPONSES,
    "google": GOOGLE,
    "bedrock": BEDROCK,
    "ollama": OLLAMA,
    "ollama as lines": [f"{json.dumps(event)}\n" for event in OLLAMA],
    "cohere": COHERE,
    "cohere, version 1": COHERE_1,
    "mistral": [{"data": event} for event in CHAT],
    "bedrock as bytes": AS_BYTES[1:],
    "llama on bedrock": [
        {"generation": "half a ", "stop_reason": None},
        {"generation": "sentence", "stop_reason": None},
        {"generation": "", "stop_reason": "stop"},
    ],
    "sagemaker": [{"PayloadPart": {"Bytes": line.encode()}} for line in sse(*CHAT)],
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_stream_passes_and_a_cut_one_does_not(name: str) -> None:
    whole = WHOLE[name]
    assert [*ensure_complete_stream(whole)] == whole
    cut = ensure_complete_stream(whole[: 1 if name == "google" else 2])
    with pytest.raises(StreamCut) as caught:
        list(cut)
    assert "half a sentence".startswith(caught.value.partial_output or "")
    assert name == "google" or "half" in (caught.value.partial_output or "half")
    info = classify(caught.value)
    assert (info.category, info.retryable) == ("network", True)


def test_an_async_stream() -> None:
    async def stream(events: list[Any]) -> AsyncIterator[Any]:
        for event in events:
            yield event

    async def read(events: list[Any]) -> list[Any]:
        return [event async for event in ensure_complete_stream(stream(events))]

    assert asyncio.run(read(CHAT)) == CHAT
    with pytest.raises(StreamCut):
        asyncio.run(read(CHAT[:2]))


@pytest.mark.parametrize(
    ("events", "resource"),
    [
        ([*CHAT[:2], chunk(stop="length")], "output"),
        ([*ANTHROPIC[:3], {"delta": {"stop_reason": "max_tokens"}}, ANTHROPIC[4]], "output"),
        ([*RESPONSES[:3], {"response": {"incomplete_details": {"reason": "max_output_tokens"}}}], "output"),
        ([*OLLAMA[:2], {"done": True, "done_reason": "length"}], "output"),
        ([*BEDROCK[:2], {"messageStop": {"stopReason": "model_context_window_exceeded"}}], "context"),
        ([*CHAT[:2], {"data": chunk(stop="model_length")}], "output"),
        ([*GOOGLE[:1], {"text": "sentence", "finish_reason": "too_many_turns"}], "turns"),
        ([{"outputText": "half a "}, {"outputText": "sentence", "completionReason": "LENGTH"}], "output"),
        ([*AS_BYTES[:3], as_bytes({"delta": {"stop_reason": "max_tokens"}})], "output"),
    ],
)  # fmt: skip
def test_a_stream_cut_at_a_limit_of_tokens(events: list[Any], resource: str) -> None:
    with pytest.raises(ResourceExhausted) as caught:
        list(ensure_complete_stream(events))
    assert (caught.value.resource, caught.value.partial_output) == (resource, "half a sentence")


@pytest.mark.parametrize("end", ["END", lambda chunk: chunk.endswith("END")])
def test_streams_with_an_end_of_their_own(end: Any) -> None:
    assert [*ensure_complete_stream(["one", "two END"], end=end)] == ["one", "two END"]
    with pytest.raises(StreamCut):
        list(ensure_complete_stream(["one", "data: [DONE]\n"], end=end))
    with pytest.raises(StreamCut):
        list(ensure_complete_stream([{"done": True}, "event: done\n"], end="END"))


def test_a_server_that_hangs_up(service: Any) -> None:
    for read in (httpx.Response.iter_lines, httpx.Response.iter_text, httpx.Response.iter_bytes):
        service.says(Reply(body="".join(["id: 1\n", *sse(*CHAT[:2])])))
        with httpx.stream("GET", service.url) as response, pytest.raises(StreamCut) as caught:
            list(ensure_complete_stream(read(response)))
        assert caught.value.partial_output == "half a sentence"
        service.says(Reply(body="".join(["id: 1\n", *sse(*CHAT[:2], "[DONE]")])))
        with httpx.stream("GET", service.url) as response:
            assert [*ensure_complete_stream(read(response))]


def delta(**more):
    return {"choices": [{"index": 0, "delta": {"content": "half"}, **more}]}


# By category
FAILURES: dict[str, dict[str, Any]] = {
    "rate_limit": {
        "openai": {"error": {"message": "slow down", "type": "requests", "code": "rate_limit_exceeded"}},
        "responses": {
            "type": "response.failed",
            "response": {"status": "failed", "error": {"code": "rate_limit_exceeded", "message": "x"}},
        },
        "gemini, without a number": {"error": {"status": "RESOURCE_EXHAUSTED"}},
        "mistral, its tier": {"object": "error", "type": "service_tier_capacity_exceeded", "code": "3505"},
    },
    "server_error": {
        "responses, an event": {"type": "error", "code": "server_error", "message": "x", "param": None},
        "bedrock": {"internalServerException": {"message": "x"}},
        "cohere": {"type": "message-end", "delta": {"finish_reason": "ERROR"}},
        "mistral": {"data": {"choices": [{"finish_reason": "error"}]}},
        "ollama": {"error": "model runner has unexpectedly stopped"},
    },
    "invalid": {
        "responses, filtered": {
            "type": "response.incomplete",
            "response": {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}},
        },
        "anthropic, refused": {"type": "message_delta", "delta": {"stop_reason": "refusal"}},
        "gemini, a blocked prompt": {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}},
        "azure": delta(finish_reason="content_filter", content_filter_results={"hate": {"filtered": True}}),
    },
    "cancelled": {
        "responses, cancelled": {"type": "response.cancelled", "response": {"status": "cancelled"}},
    },
    "unavailable": {
        "openrouter, in the choice": delta(finish_reason="error", error={"code": 502, "message": "x"}),
        "anthropic": {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
        "gemini": {"error": {"code": 503, "message": "x", "status": "UNAVAILABLE"}},
        "deepseek": delta(finish_reason="insufficient_system_resource"),
    },
    "validation": {
        "gemini, a broken call": {"candidates": [{"finish_reason": "MALFORMED_FUNCTION_CALL"}]},
    },
    "network": {
        "ollama, a known text": {"error": "connection refused"},
    },
    "overflow": {
        "llama.cpp": {"error": {"code": 400, "message": "x", "type": "exceed_context_size_error"}},
    },
    "resource_exhausted": {
        "a quota": {"error": {"code": "insufficient_quota", "message": "x"}},
    },
}


@pytest.mark.parametrize(
    ("category", "event"),
    [pytest.param(kind, event, id=name) for kind, rows in FAILURES.items() for name, event in rows.items()],
)
def test_a_failure_inside_a_stream_has_the_category_of_its_code(category: str, event: Any) -> None:
    lines = [f"data: {json.dumps(delta())}", "", f"data: {json.dumps(event)}", "", "data: [DONE]", ""]
    for chunks in ([delta(), event], lines, [line.encode() for line in lines], ["\n".join(lines)]):
        passed: list[Any] = []
        with pytest.raises(StreamCut) as caught:
            passed.extend(ensure_complete_stream(chunks))
        assert passed == chunks
        assert caught.value.partial_output.startswith("half")
        for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
            info = classify(error)
            assert info.category.value == category
            assert info.code in (*re.findall(r"\w+", json.dumps(event)), "NETWORK_ERROR", "StreamCut")
        assert not Retry().decide(info, 1).retry or info.category.retryable


@pytest.mark.parametrize(
    ("lines", "category"),
    [
        (["event: error", 'data: {"type": "error", "error": {"type": "rate_limit_error"}}'], "rate_limit"),
        (["event: error", 'data: {"code": 503, "message": "busy"}'], "unavailable"),
        (["event: error", "data: connection reset by the server"], "network"),
        (["event: error", "data: something else"], "server_error"),
    ],
)
def test_an_event_with_the_name_error(lines: list[str], category: str) -> None:
    with pytest.raises(StreamCut) as caught:
        list(ensure_complete_stream([*lines, "", "data: [DONE]", ""]))
    assert classify(caught.value).category.value == category


@pytest.mark.parametrize(
    "events",
    [
        [delta(finish_reason=None), delta(finish_reason="stop")],
        [{"type": "response.completed", "response": {"status": "completed", "error": None}}],
        [{"error": None, **delta(finish_reason="stop")}],
        [{"error": "", "done": True, "response": "whole"}],
        [delta(finish_reason="tool_calls")],
        [{"choices": [{"delta": {"content": '{"error": {"code": 429}}'}, "finish_reason": "stop"}]}],
        [{"candidates": [{"finishReason": "STOP"}], "promptFeedback": {"safetyRatings": []}}],
    ],
)
def test_a_whole_stream_reports_no_failure(events: list[Any]) -> None:
    assert [*ensure_complete_stream(events)] == events


@pytest.mark.parametrize(
    ("name", "category"),
    [("internalServerException", "server_error"), ("ThrottlingException", "rate_limit")],
)
def test_exceptions_of_aws_event_streams(name: str, category: str) -> None:
    frame = {"status_code": 400, "headers": {":exception-type": name}, "body": b"{}"}
    errors = (
        EventStreamError({"Error": {"Code": name, "Message": "x"}}, "ConverseStream"),
        ValueError(f"Bad response code, expected 200: {frame}"),
    )
    assert {classify(error).category.value for error in errors} == {category}
