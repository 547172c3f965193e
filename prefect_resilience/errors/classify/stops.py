"""Answers that a language model did not finish: no error of the provider's, but half a result."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar, cast

from prefect_resilience.errors.classify.shapes import as_dict, as_number, read
from prefect_resilience.errors.failures import ResourceExhausted

T = TypeVar("T")

STOPS = {
    "max_tokens": "output",
    "max_output_tokens": "output",
    "length": "output",
    "MAX_TOKENS": "output",
    "model_context_window_exceeded": "context",
}
"""Why an answer ended too early, in the words of Anthropic, OpenAI and Google, and what was used up."""

_USAGES = (
    ("usage", "output_tokens"),
    ("usage", "completion_tokens"),
    ("usage_metadata", "candidates_token_count"),
)


def ensure_complete(response: T) -> T:
    """The answer of a language model, if it was not cut at a limit of tokens.

    `response` is what the SDKs of OpenAI, Anthropic and Google return, or its JSON. Raises ResourceExhausted
    with the resource "output" (or "context"), the tokens used, and the text so far as `partial_output`.

        return ensure_complete(client.messages.create(...)).content[0].text

    Example:
        >>> cut = {"choices": [{"finish_reason": "length", "message": {"content": "Half of"}}]}
        >>> try:
        ...     ensure_complete(cut)
        ... except ResourceExhausted as error:
        ...     print(error.resource, "-", error.partial_output)
        output - Half of
    """
    for reason in _reasons(response):
        resource = STOPS.get(str(getattr(reason, "name", reason)))
        if resource is not None:
            text = "".join(_texts(response))
            raise ResourceExhausted(resource, _usage(response), partial_output=text or None)
    return response


def _get(source: object, name: str) -> Any:
    known = as_dict(source)
    return known.get(name) if known else read(source, name)


def _items(value: object) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _reasons(response: object) -> Iterator[Any]:
    yield _get(response, "stop_reason")
    yield _get(_get(response, "incomplete_details"), "reason")
    for choice in (*_items(_get(response, "choices")), *_items(_get(response, "candidates"))):
        yield _get(choice, "finish_reason")
        yield _get(choice, "finishReason")


def _usage(response: object) -> float | None:
    for group, name in _USAGES:
        tokens = as_number(_get(_get(response, group), name))
        if tokens is not None:
            return int(tokens)
    return None


def _texts(response: object) -> Iterator[str]:
    """The text so far, wherever that kind of answer has it."""
    parts = [*_items(_get(response, "content"))]
    for choice in _items(_get(response, "choices")):
        parts.append({"text": _get(_get(choice, "message"), "content")})
    for candidate in _items(_get(response, "candidates")):
        parts.extend(_items(_get(_get(candidate, "content"), "parts")))
    for message in _items(_get(response, "output")):
        parts.extend(_items(_get(message, "content")))
    return (text for part in parts if isinstance(text := _get(part, "text"), str))
