"""Streams that end without their end marker are cut, whoever sent them."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from anthropic.types import RawContentBlockDeltaEvent, RawMessageDeltaEvent, RawMessageStopEvent
from openai.types.chat import ChatCompletionChunk

from prefect_resilience import ResourceExhausted, StreamCut, classify, ensure_complete_stream
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
    return [f"data: {one if isinstance(one, str) else json.dumps(one)}\n\n" for one in events]


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
WHOLE: dict[str, list[Any]] = {
    "chat": CHAT,
    "chat as the SDK gives it": [ChatCompletionChunk.model_validate(one) for one in CHAT],
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
    "ollama as lines": [f"{json.dumps(one)}\n" for one in OLLAMA],
    "cohere": COHERE,
    "cohere, version 1": COHERE_1,
    "mistral": [{"data": one} for one in CHAT],
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
    ],
)  # fmt: skip
def test_a_stream_cut_at_a_limit_of_tokens(events: list[Any], resource: str) -> None:
    with pytest.raises(ResourceExhausted) as caught:
        list(ensure_complete_stream(events))
    assert (caught.value.resource, caught.value.partial_output) == (resource, "half a sentence")


def test_a_stop_reason_of_the_sdk() -> None:
    event = RawMessageDeltaEvent.model_validate(
        {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": 3}}
    )
    with pytest.raises(ResourceExhausted):
        list(ensure_complete_stream([event]))


@pytest.mark.parametrize("end", ["END", lambda chunk: chunk.endswith("END")])
def test_streams_with_an_end_of_their_own(end: Any) -> None:
    assert [*ensure_complete_stream(["one", "two END"], end=end)] == ["one", "two END"]
    with pytest.raises(StreamCut):
        list(ensure_complete_stream(["one", "data: [DONE]\n"], end=end))
    with pytest.raises(StreamCut):
        list(ensure_complete_stream([{"done": True}, "event: done\n"], end="END"))


def test_what_is_no_event_ends_nothing() -> None:
    with pytest.raises(StreamCut, match="after 0 characters"):
        [
            *ensure_complete_stream(
                ['{"done": tru', "\n", "data: {broken}\n", ": a comment\n", "[1]\n", 5, None]
            )
        ]
    with pytest.raises(StreamCut):
        list(ensure_complete_stream([SimpleNamespace(type=["done"])]))


def test_lines_may_be_cut_anywhere() -> None:
    text = "".join(sse(*CHAT[:2], "[DONE]"))
    for size in (1, 3, 50):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        assert [*ensure_complete_stream(pieces)] == pieces


def test_it_travels() -> None:
    back = pickle.loads(pickle.dumps(StreamCut("half")))
    assert (back.partial_output, str(back)) == ("half", str(StreamCut("half")))


def test_a_server_that_hangs_up(service: Any) -> None:
    for read in (httpx.Response.iter_lines, httpx.Response.iter_text, httpx.Response.iter_bytes):
        service.says(Reply(body="".join(["id: 1\n", *sse(*CHAT[:2])])))
        with httpx.stream("GET", service.url) as response, pytest.raises(StreamCut) as caught:
            list(ensure_complete_stream(read(response)))
        assert caught.value.partial_output == "half a sentence"
        service.says(Reply(body="".join(["id: 1\n", *sse(*CHAT[:2], "[DONE]")])))
        with httpx.stream("GET", service.url) as response:
            assert [*ensure_complete_stream(read(response))]
