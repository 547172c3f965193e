"""Incomplete answers of language models: the status is 200, but the text is cut, or the answer failed."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from typing import Any, ClassVar, TypeVar, cast, overload

from prefect_resilience.errors.classify.http import aws_codes, http_finding
from prefect_resilience.errors.classify.shapes import as_code, as_dict, as_number, parsed, read
from prefect_resilience.errors.classify.texts import text_finding
from prefect_resilience.errors.exceptions import ResilienceError, ResourceExhausted
from prefect_resilience.errors.taxonomy import ErrorCategory as C
from prefect_resilience.errors.taxonomy import Opinion, found_by_words, worded

T = TypeVar("T")

_SPENT = (
    ("context_window", "context"),
    ("too_many|max_(?:turns|rounds)", "turns"),
    ("max_|length", "output"),
)
"""Words in the stop reasons of cut answers, and the resource that was used up."""

_BAD_STOPS = worded("""
    overflow - ^error_limit$
    validation - malformed|unexpected_tool
    timeout - timeout|expired
    cancelled - cancel|abort
    unavailable - insufficient_system|overload
    invalid - refus|filter|guard|toxic|safety|recit|block|prohibit|spii|language|armor|missing_thought
    server_error - error|fail|incomplete|other|no_image
""")
"""Words in the stop reasons and statuses of failed answers: of OpenAI, Anthropic, Google, Cohere, Mistral,
Bedrock and compatible services. No other reason is a failure."""
_BAD_STATUSES = frozenset(["failed", "incomplete", "cancelled", "canceled", "expired", "error"])


def ensure_complete(response: T) -> T:
    """Return a language model's answer, or raise an error if it failed or was cut off at a token limit.

    `response` is a response of the SDKs of OpenAI, Anthropic or Google, or its JSON. Raises ResourceExhausted
    with the resource "output" (or "context"), the tokens used, and the text so far as `partial_output`; and
    StreamCut for an answer with a failed status, an error in it, or a filter's stop reason.

        return ensure_complete(client.messages.create(...)).content[0].text

    Example:
        >>> cut = {"choices": [{"finish_reason": "length", "message": {"content": "Half of"}}]}
        >>> try:
        ...     ensure_complete(cut)
        ... except ResourceExhausted as error:
        ...     print(error.resource, "-", error.partial_output)
        output - Half of
    """
    resource = _spent(response)
    texts = [one for path in _WHOLE_TEXTS for one in _at(response, path) if isinstance(one, str)]
    if resource is not None:
        tokens = [as_number(one) for path in _USAGES for one in _at(response, path)]
        used = next((int(one) for one in tokens if one is not None), None)
        raise ResourceExhausted(resource, used, partial_output="".join(texts) or None)
    failure = _failure(response)
    if failure is not None:
        raise StreamCut("".join(texts) or None, *failure)
    return response


def _spent(answer: Any) -> str | None:
    """The exhausted resource that cut an answer; None if no limit did."""
    found = (
        spent for one in _named(answer, _REASONS) for words, spent in _SPENT if re.search(words, one, re.I)
    )
    return next(found, None)


def _named(answer: Any, paths: list[list[str]]) -> list[str]:
    return [str(getattr(one, "name", one)) for path in paths for one in _at(answer, path)]


def _failure(event: Any) -> tuple[Opinion, str] | None:
    """The failure that an answer or an event of a stream reports, and its message; None if there is none."""
    for error in (one for path in _ERRORS for one in _at(event, path) if one):
        return _of_error(error)
    if any(kind == "error" or kind.endswith(".error") for kind in _named(event, _KINDS)):
        return _of_error(event)
    for name, error in as_dict(event).items():
        if isinstance(name, str) and (category := aws_codes().get(name.lower())):
            return Opinion(category, name), str(_field(error, "message") or "")
    for reason in _named(event, _BLOCKED):
        return Opinion(C.INVALID, reason), ""
    statuses = (one for one in _named(event, _ANSWER_STATUSES) if one in _BAD_STATUSES)
    for reason in (*_named(event, _REASONS), *statuses):
        if (found := found_by_words(_BAD_STOPS, reason)) is not None:
            return found._replace(code=reason), ""
    return None


class _AnswerError(Exception):
    """The error in an answer, in the form in which SDKs raise it."""

    def __init__(self, error: Any) -> None:
        known = {name: _field(error, name) for name in ("code", "type", "status", "message", "details")}
        super().__init__(error if isinstance(error, str) else known["message"] or "")
        self.body = {"error": known}
        self.code: object = known["code"]


def _of_error(error: Any) -> tuple[Opinion, str]:
    reported = _AnswerError(error)
    message = str(reported)
    found = http_finding(reported, time.time()) or text_finding(message)
    return found or Opinion(C.SERVER_ERROR, as_code(reported.code)), message


def _paths(table: str) -> list[list[str]]:
    """Paths of fields, such as "choices.message.content", from a table of them."""
    return [path.split(".") for path in table.split()]


_USAGES = _paths("usage.output_tokens usage.completion_tokens usage_metadata.candidates_token_count")
_WHOLE_TEXTS = _paths(
    "content.text choices.message.content candidates.content.parts.text output.content.text"
)
"""Where a complete answer has its text."""

_ERRORS = _paths("error response.error choices.error last_error response.status_details.error")
_KINDS = _paths("type object")
_BLOCKED = _paths("promptFeedback.blockReason prompt_feedback.block_reason")
_ANSWER_STATUSES = _paths("status response.status")

End = str | Callable[[Any], bool]

# Paths to fields of a chunk or an event: a stream ends if one of them is present.
_ENDS = _paths("""
    choices.finish_reason data.choices.finish_reason candidates.finish_reason candidates.finishReason
    messageStop stop_reason completionReason outputs.stop_reason
""")
# Fields with values that end a stream: Anthropic and Cohere, OpenAI Responses, Cohere version 1, Ollama.
_END_VALUES: dict[str, tuple[object, ...]] = {
    "type": (
        *("message_stop", "message-end", "stream-end", "done"),
        *("response.completed", "response.incomplete", "response.failed", "response.done"),
        "conversation.response.done",
    ),
    "event_type": ("stream-end",),
    "is_finished": (True,),
    "done": (True,),
}
_REASONS = _paths("""
    choices.finish_reason data.choices.finish_reason candidates.finish_reason candidates.finishReason
    delta.stop_reason delta.finish_reason stop_reason finish_reason incomplete_details.reason
    response.incomplete_details.reason messageStop.stopReason done_reason stopReason completionReason
    outputs.stop_reason response.finish_reason response.status_details.reason
""")
"""Where a stream has its stop reason."""

_TEXTS = _paths("""
    choices.delta.content data.choices.delta.content candidates.content.parts.text delta.text delta
    delta.message.content.text contentBlockDelta.delta.text message.content response text generation
    outputText outputs.text
""")
"""Where a chunk has its part of the text: the first of these that has a text counts."""

_RAW = _paths("chunk.bytes PayloadPart.Bytes")
"""Where an event of AWS has the bytes of a model's own event."""

_FIELDS = ("data:", "event:", "id:", "retry:", ":")
_DONE = "[DONE]"
_END_EVENTS = frozenset({"message_stop", "done", "stream-end", "message-end", "response.completed"})


class StreamCut(ResilienceError):
    """A stream ended without its end marker, or reported a failure, so its text is incomplete.

    Without a marker its category is `network`, so it is retried; else it has the category of the failure's
    own code. partial_output: the text so far, None if there was none.

    Example:
        >>> print(StreamCut("Half of"))
        the stream ended without its end marker, after 7 characters
    """

    error_category: ClassVar[str] = "network"

    def __init__(
        self, partial_output: str | None = None, found: Opinion | None = None, message: str = ""
    ) -> None:
        self.partial_output = partial_output
        self.found = found
        why = "the stream ended without its end marker"
        if found is not None:
            why = f"the answer failed: {': '.join(part for part in (found.code, message) if part)}"
        super().__init__(f"{why}, after {len(partial_output or ''):,} characters")


@overload
def ensure_complete_stream(chunks: AsyncIterable[T], *, end: End | None = None) -> AsyncIterator[T]: ...
@overload
def ensure_complete_stream(chunks: Iterable[T], *, end: End | None = None) -> Iterator[T]: ...
def ensure_complete_stream(chunks: Any, *, end: End | None = None) -> Any:
    """Yield the chunks of a language model's stream, and raise an error at its end if it was cut off.

    `chunks` are the events of an SDK (OpenAI, Anthropic, Google, Mistral, Cohere, Bedrock, Ollama and
    compatible ones), their JSON, or the lines of server-sent events, as texts or bytes; async chunks give an
    async iterator. `end` marks the end of other streams: a text in the last chunk, or a function of a chunk.

    Raises StreamCut if it ended without its end marker or reported a failure, and ResourceExhausted if it was
    cut off at a token limit; both have the text so far as `partial_output`.

    Example:
        >>> lines = ['data: {"choices": [{"delta": {"content": "Half"}}]}']
        >>> try:
        ...     [*ensure_complete_stream(lines)]
        ... except StreamCut as error:
        ...     print(error.partial_output)
        Half
    """
    reader = _Reader(end)
    if isinstance(chunks, AsyncIterable):
        return _acomplete(cast("AsyncIterable[Any]", chunks), reader)
    return _complete(chunks, reader)


def _complete(chunks: Iterable[T], reader: _Reader) -> Iterator[T]:
    for chunk in chunks:
        reader.take(chunk)
        yield chunk
    reader.close()


async def _acomplete(chunks: AsyncIterable[T], reader: _Reader) -> AsyncIterator[T]:
    async for chunk in chunks:
        reader.take(chunk)
        yield chunk
    reader.close()


class _Reader:
    """The state of a stream: its text so far, whether it has ended, and why."""

    def __init__(self, end: End | None) -> None:
        self._end = end
        self._ended = False
        self._spent: str | None = None
        self._failure: tuple[Opinion, str] | None = None
        self._reported = False
        self._line = ""
        self._texts: list[str] = []

    def take(self, chunk: Any) -> None:
        if isinstance(chunk, bytes | bytearray):
            chunk = chunk.decode("utf-8", "replace")
        if self._end is not None:
            self._ended |= self._end(chunk) if callable(self._end) else self._end in str(chunk)
        chunk = next((one.decode("utf-8", "replace") for path in _RAW for one in _at(chunk, path)), chunk)
        if isinstance(chunk, str):
            if self._line and "\n" not in chunk and _is_line(self._line, chunk):
                chunk = f"\n{chunk}"  # lines that were split already, such as those of `iter_lines`
            *lines, self._line = (self._line + chunk).split("\n")
            for line in lines:
                self._take_line(line)
        else:
            self._take_event(chunk)

    def close(self) -> None:
        """Check the end of the stream. Raises StreamCut and ResourceExhausted."""
        self._take_line(self._line)
        text = "".join(self._texts) or None
        if self._failure is not None:
            raise StreamCut(text, *self._failure)
        if self._spent is not None:
            raise ResourceExhausted(self._spent, partial_output=text)
        if not self._ended:
            raise StreamCut(text)

    def _take_line(self, line: str) -> None:
        """A line of server-sent events, or of JSON."""
        name, _, rest = line.strip().partition(":")
        if name == "event":
            self._reported |= rest.strip() == "error"
            self._ended |= self._end is None and rest.strip() in _END_EVENTS
        elif (data := _data(line)) == _DONE:
            self._ended |= self._end is None
        elif (event := parsed(data)) is not None:
            self._take_event(event)
            self._reported = False
        elif self._reported and data:
            self._failure = self._failure or _of_error(data)

    def _take_event(self, event: Any) -> None:
        self._spent = _spent(event) or self._spent
        if self._failure is None and not self._spent:
            self._failure = _failure(event) or (_of_error(event) if self._reported else None)
        if self._end is None:
            self._ended |= _ends(event)
        for path in _TEXTS:
            texts = [one for one in _at(event, path) if isinstance(one, str)]
            if texts:
                self._texts += texts
                break


def _data(line: str) -> str:
    return line.strip().removeprefix("data:").strip()


def _is_line(line: str, after: str) -> bool:
    """Whether a text without its line break is a whole line, judged by it and by the text after it."""
    data = _data(line)
    if data == _DONE or parsed(data) is not None or not after:
        return True
    return line.startswith(("event:", "id:", "retry:", ":")) and after.startswith(_FIELDS)


def _ends(event: Any) -> bool:
    if any(_at(event, path) for path in _ENDS):
        return True
    found = ((one, values) for name, values in _END_VALUES.items() for one in _at(event, [name]))
    return any(one in values for one, values in found if isinstance(one, str | bool))


def _at(source: Any, path: list[str]) -> list[Any]:
    """The values at a path of fields. Lists on the path are searched item by item."""
    found = [source]
    for name in path:
        found = [_field(item, name) for each in found for item in _each(each)]
    return [one for one in found if one is not None]


def _each(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else [value]


def _field(source: Any, name: str) -> Any:
    known = as_dict(source)
    if known or isinstance(source, dict | str | int | float | None):
        return known.get(name)
    return read(source, name)
