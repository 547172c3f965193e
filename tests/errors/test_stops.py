"""Answers that were cut at a limit of tokens, as the SDKs give them and as JSON."""

from enum import Enum
from types import SimpleNamespace

import openai
import pytest
from anthropic.types import Message
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from prefect_resilience import ResourceExhausted, StreamCut, classify, ensure_complete


def message(stop):
    return {
        "id": "1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": "half a "}, {"type": "text", "text": "sentence"}],
        "stop_reason": stop,
        "usage": {"input_tokens": 5, "output_tokens": 16},
    }


def completion(stop):
    message = {"role": "assistant", "content": "half a sentence"}
    return {
        "id": "1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "finish_reason": stop, "message": message}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 16, "total_tokens": 21},
    }


def response(status, details):
    text = {"type": "output_text", "text": "half a sentence", "annotations": []}
    return {
        "id": "1",
        "object": "response",
        "created_at": 1,
        "model": "m",
        "status": status,
        "incomplete_details": details,
        "output": [{"id": "2", "type": "message", "role": "assistant", "status": status, "content": [text]}],
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 5,
            "output_tokens": 16,
            "total_tokens": 21,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        },
    }


class FinishReason(Enum):
    """As Google's SDK has it."""

    STOP = "STOP"
    MAX_TOKENS = "MAX_TOKENS"


def candidate(stop):
    content = SimpleNamespace(parts=[SimpleNamespace(text="half a sentence")])
    return SimpleNamespace(
        candidates=[SimpleNamespace(content=content, finish_reason=stop)],
        usage_metadata=SimpleNamespace(candidates_token_count=16),
    )


@pytest.mark.parametrize(
    "cut",
    [
        message("max_tokens"),
        Message.model_validate(message("max_tokens")),
        completion("length"),
        ChatCompletion.model_validate(completion("length")),
        Response.construct(**response("incomplete", {"reason": "max_output_tokens"})),
        candidate(FinishReason.MAX_TOKENS),
    ],
)
def test_a_cut_answer_is_an_exhausted_resource_with_the_text_so_far(cut):
    with pytest.raises(ResourceExhausted) as caught:
        ensure_complete(cut)
    error = caught.value
    assert (error.resource, error.usage, error.partial_output) == ("output", 16, "half a sentence")
    assert classify(error).kind == "resource"


@pytest.mark.parametrize(
    "whole",
    [
        Message.model_validate(message("end_turn")),
        ChatCompletion.model_validate(completion("stop")),
        Response.construct(**response("completed", None)),
        candidate(FinishReason.STOP),
        {"choices": None},
        None,
        "text",
    ],
)
def test_a_whole_answer_is_handed_on(whole):
    assert ensure_complete(whole) is whole


def test_the_error_of_a_parser_that_met_a_cut_completion():
    cut = openai.LengthFinishReasonError(completion=ChatCompletion.model_validate(completion("length")))
    details = classify(cut).details
    assert (details["resource"], details["usage"]) == ("output", 16)


def test_a_full_context_window_and_answers_that_say_little():
    with pytest.raises(ResourceExhausted, match="context exhausted") as caught:
        ensure_complete({"stop_reason": "model_context_window_exceeded"})
    assert (caught.value.usage, caught.value.partial_output) == (None, None)


@pytest.mark.parametrize(
    ("answer", "category"),
    [
        ({"status": "failed"}, "server_error"),
        ({"status": "failed", "error": {"code": "rate_limit_exceeded", "message": "x"}}, "rate_limit"),
        ({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, "invalid"),
        ({"status": "incomplete"}, "server_error"),
        ({"status": "cancelled"}, "cancelled"),
        ({"status": "expired"}, "timeout"),
        (response("failed", None), "server_error"),
        (completion("content_filter"), "invalid"),
        (completion("error"), "server_error"),
        (message("refusal"), "invalid"),
        ({"error": {"code": 503, "message": "x"}}, "unavailable"),
        ({"promptFeedback": {"blockReason": "SAFETY"}}, "invalid"),
        (
            SimpleNamespace(candidates=[SimpleNamespace(finish_reason=Enum("R", "OTHER").OTHER)]),
            "server_error",
        ),
    ],
)
def test_an_answer_that_failed(answer, category):
    with pytest.raises(StreamCut, match="the answer failed") as caught:
        ensure_complete(answer)
    assert classify(caught.value).category.value == category
