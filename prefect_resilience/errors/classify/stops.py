"""Incomplete answers of language models: the status is 200, but the text is cut, or the answer failed."""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from typing import Any, ClassVar, TypeVar, cast, overload

from prefect_resilience.base.text import Regex
from prefect_resilience.errors.classify.classify import text_finding
from prefect_resilience.errors.classify.http import codes_in_small, http_finding
from prefect_resilience.errors.classify.shapes import (
    as_code,
    as_dict,
    as_number,
    parse_json,
    value_of,
    values_at,
)
from prefect_resilience.errors.classify.table import places_of, words_of
from prefect_resilience.errors.exceptions import ResilienceError, ResourceExhausted
from prefect_resilience.errors.taxonomy import ErrorCategory as C
from prefect_resilience.errors.taxonomy import Opinion, match_words

T = TypeVar("T")


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
    text = "".join(part for part in _all(response, "answer.text") if isinstance(part, str)) or None
    if resource is not None:
        tokens = map(as_number, _all(response, "answer.usage"))
        used = next((int(number) for number in tokens if number is not None), None)
        raise ResourceExhausted(resource, used, partial_output=text)
    failure = _failure(response)
    if failure is not None:
        raise StreamCut(text, *failure)
    return response


def _spent(answer: Any) -> str | None:
    """The exhausted resource that cut an answer; None if no limit did."""
    cuts = (match_words(words_of("answer.cut"), reason) for reason in _names(answer, "answer.reason"))
    return next((cut.code for cut in cuts if cut is not None), None)


def _failure(event: Any) -> tuple[Opinion, str] | None:
    """The failure that an answer or an event of a stream reports, and its message; None if there is none."""
    for error in filter(None, _all(event, "answer.error")):
        return _of_error(error)
    if any(kind == "error" or kind.endswith(".error") for kind in _names(event, "answer.kind")):
        return _of_error(event)
    for name, error in as_dict(event).items():
        if isinstance(name, str) and (category := codes_in_small("aws").get(name.lower())):
            return Opinion(category, name), str(value_of(error, "message") or "")
    for reason in _names(event, "answer.blocked"):
        return Opinion(C.INVALID, reason), ""
    for reason in (*_names(event, "answer.reason"), *_names(event, "answer.status")):
        if (failure := match_words(words_of("answer.failed"), reason)) is not None:
            return failure._replace(code=reason), ""
    return None


def _of_error(error: Any) -> tuple[Opinion, str]:
    """The error in an answer, read in the form in which SDKs raise it."""
    fields = {name: value_of(error, name) for name in ("code", "type", "status", "message", "details")}
    message = error if isinstance(error, str) else str(fields["message"] or "")
    raised = Exception(message)
    vars(raised).update(body={"error": fields}, code=fields["code"])
    opinion = http_finding(raised, time.time()) or text_finding(message)
    return opinion or Opinion(C.SERVER_ERROR, as_code(fields["code"])), message


End = str | Callable[[Any], bool]

_END = Regex(
    r"message_stop|message-end|stream-end|done|True|(?:conversation\.)?response\.(?:completed|incomplete|failed|done)"
)
"""Kinds of the last event: of Anthropic, Cohere, OpenAI, Mistral; `True` for the `done` of Ollama."""
_FIELDS = ("data:", "event:", "id:", "retry:", ":")


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
    reader = _StreamReader(end)
    if isinstance(chunks, AsyncIterable):
        return _acomplete(cast("AsyncIterable[Any]", chunks), reader)
    return _complete(chunks, reader)


def _complete(chunks: Iterable[T], reader: _StreamReader) -> Iterator[T]:
    for chunk in chunks:
        reader.take(chunk)
        yield chunk
    reader.close()


async def _acomplete(chunks: AsyncIterable[T], reader: _StreamReader) -> AsyncIterator[T]:
    async for chunk in chunks:
        reader.take(chunk)
        yield chunk
    reader.close()


class _StreamReader:
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
        chunk = next((part.decode("utf-8", "replace") for part in _all(chunk, "chunk.bytes")), chunk)
        if not isinstance(chunk, str):
            self._take_event(chunk)
            return
        if self._line and "\n" not in chunk and _is_line(self._line, chunk):
            chunk = f"\n{chunk}"  # lines that were split already, such as those of `iter_lines`
        *lines, self._line = (self._line + chunk).split("\n")
        for line in lines:
            self._take_line(line)

    def close(self) -> None:
        """Check the end of the stream. Raises StreamCut and ResourceExhausted."""
        self._take_line(self._line)
        text = "".join(self._texts) or None
        if self._failure is None and self._spent is not None:
            raise ResourceExhausted(self._spent, partial_output=text)
        if self._failure is not None:
            raise StreamCut(text, *self._failure)
        if not self._ended:
            raise StreamCut(text)

    def _take_line(self, line: str) -> None:
        """A line of server-sent events, or of JSON."""
        name, _, rest = line.strip().partition(":")
        if name == "event":
            self._reported |= rest.strip() == "error"
            self._ended |= self._end is None and _END.fullmatch(rest.strip()) is not None
        elif (data := _data(line)) == "[DONE]":
            self._ended |= self._end is None
        elif (event := parse_json(data)) is not None:
            self._take_event(event)
            self._reported = False
        elif self._reported and data:
            self._failure = self._failure or _of_error(data)

    def _take_event(self, event: Any) -> None:
        self._spent = _spent(event) or self._spent
        if self._failure is None and not self._spent:
            self._failure = _failure(event) or (_of_error(event) if self._reported else None)
        if self._end is None:
            kinds = (str(kind) for kind in _all(event, "chunk.kind") if isinstance(kind, str | bool))
            self._ended |= bool(_all(event, "chunk.end")) or any(map(_END.fullmatch, kinds))
        for path in places_of("chunk.text"):
            if texts := [part for part in values_at(event, path) if isinstance(part, str)]:
                self._texts += texts
                break


def _data(line: str) -> str:
    return line.strip().removeprefix("data:").strip()


def _is_line(line: str, after: str) -> bool:
    """Whether a text without its line break is a whole line, judged by it and by the text after it."""
    data = _data(line)
    if data == "[DONE]" or parse_json(data) is not None or not after:
        return True
    return line.startswith(_FIELDS[1:]) and after.startswith(_FIELDS)


def _all(source: Any, block: str) -> list[Any]:
    """The values at all places of a block of the table."""
    return [value for path in places_of(block) for value in values_at(source, path)]


def _names(answer: Any, block: str) -> list[str]:
    return [str(getattr(value, "name", value)) for value in _all(answer, block)]
