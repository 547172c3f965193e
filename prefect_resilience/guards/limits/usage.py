"""What a call of a language model used, read from its answer, and the base of the limits that count it.

One reader takes the forms of OpenAI (chat and responses), Anthropic and Gemini: the objects of their SDKs,
their JSON, and the chunks of their streams.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from inspect import Parameter, signature
from typing import Any, ClassVar, NamedTuple, Self, cast

from pydantic import PrivateAttr

from prefect_resilience.base.drive import Steps
from prefect_resilience.errors.taxonomy import ErrorInfo
from prefect_resilience.guards.limits.guarding import NamedLimit, Ticket

PLACES = ("usage", "usage_metadata", "usageMetadata")
# Where an event of a stream has its usage: OpenAI's `response.completed`, Anthropic's `message_start`.
AROUND = ("response", "message")

INPUT = ("prompt_tokens", "input_tokens", "promptTokenCount", "prompt_token_count", "total_tokens")
OUTPUT = ("completion_tokens", "output_tokens", "candidatesTokenCount", "candidates_token_count")
TOOLS = ("toolUsePromptTokenCount", "tool_use_prompt_token_count")
THOUGHTS = ("thoughtsTokenCount", "thoughts_token_count")
# Tokens from a cache that are part of the input; Anthropic's come on top of it.
CACHED = ("cached_tokens", "cachedContentTokenCount", "cached_content_token_count")
CACHE_READ, CACHE_WRITE = ("cache_read_input_tokens",), ("cache_creation_input_tokens",)
DETAILS = ("prompt_tokens_details", "input_tokens_details")
MODELS = ("model", "modelVersion", "model_version")


class Usage(NamedTuple):
    """The tokens of one call. `input_tokens` has those of `cache_read` and `cache_write`."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read: int = 0
    cache_write: int = 0
    model: str = ""

    @property
    def total(self) -> int:
        return self.input_tokens + self.output_tokens

    def merge(self, later: Usage) -> Usage:
        """The usage after another chunk of the stream: the counts of all providers only grow."""
        counts: Iterable[int] = map(max, self[:4], later[:4])
        return Usage(*counts, model=later.model or self.model)  # pyright: ignore[reportCallIssue]


def read_usage(answer: Any) -> Usage | None:
    """The usage in an answer or a chunk of one; None if it has none. Never raises.

    Example:
        >>> read_usage({"usage": {"prompt_tokens": 12, "completion_tokens": 30}}).total
        42
    """
    with suppress(Exception):  # an object of any library
        if isinstance(answer, list | tuple):
            return merge_all(map(read_usage, cast("Iterable[Any]", answer)))
        around = (answer, *(_field(answer, name) for name in AROUND))
        places = ((whole, _field(whole, place)) for whole in around for place in PLACES)
        return merge_all(_read_counts(counts, whole) for whole, counts in places if counts is not None)
    return None


def merge_all(usages: Iterable[Usage | None]) -> Usage | None:
    total: Usage | None = None
    for usage in usages:
        total = total if usage is None else usage if total is None else total.merge(usage)
    return total


def _read_counts(counts: Any, whole: Any) -> Usage | None:
    question, output = _count(counts, INPUT), _count(counts, OUTPUT)
    if output is None and question is None:
        return None
    read, write = _count(counts, CACHE_READ) or 0, _count(counts, CACHE_WRITE) or 0
    inside = next((count for name in DETAILS if (count := _count(_field(counts, name), CACHED))), 0)
    total_input = (question or 0) + (_count(counts, TOOLS) or 0) + read + write
    total_output = (output or 0) + (_count(counts, THOUGHTS) or 0)
    model = next((str(name) for place in MODELS if (name := _field(whole, place))), "")
    cached = read + (inside or _count(counts, CACHED) or 0)
    return Usage(total_input, total_output, cached, write, model)


def _field(whole: Any, name: str) -> Any:
    if isinstance(whole, Mapping):
        return cast("Mapping[str, Any]", whole).get(name)
    return getattr(whole, name, None)


def _count(counts: Any, names: Iterable[str]) -> int | None:
    fields = (_field(counts, name) for name in names)
    return next((count for count in fields if type(count) is int and count >= 0), None)


# -- limits that count what a call used


class Meter(Ticket):
    """What a call has reserved. It is settled once: from the usage in its answer, or when it has failed."""

    def __init__(self, limit: MeteredLimit, reserved: float, settle: Callable[[float, float], None]) -> None:
        super().__init__()
        self.reserved: float = reserved
        self._limit = limit
        self._settle: Callable[[float, float], None] | None = settle
        self._usage: Usage | None = None
        self._seen = self._waits = False

    def see(self, answer: Any) -> None:
        """Read the usage of an answer or of a chunk of it. Never raises.

        A body that is still to be read settles the call at its end.
        """
        body, status = getattr(answer, "stream", None), getattr(answer, "status_code", None)
        self._seen = True
        if isinstance(status, int) and status >= 400:
            self._usage = Usage()
        elif isinstance(body, BodyUsage):
            self._waits = True
            body.add_meter(self)
        else:
            self._usage = merge_all((self._usage, self._limit.read(answer)))

    def end(self, parts: Iterable[bytes], is_whole: bool) -> None:
        """Settle at the end of a body. `is_whole`: all of it was read."""
        self._waits = False
        for part in parts:
            with suppress(ValueError):
                self.see(json.loads(part))
        self.settle(None if is_whole else GeneratorExit())

    def settle(self, error: BaseException | None, info: ErrorInfo | None = None) -> None:
        """Give back what was not used. An answer without a usage counts as what was reserved, and so does,
        at least, one that was cut off."""
        if (self._waits and error is None) or self._settle is None:
            return
        settle, self._settle = self._settle, None
        used = None if self._usage is None else self._limit.amount(self._usage)
        if error is not None and not self._seen and not self._limit.may_have_used(info):
            used = 0.0
        elif used is None or (error is not None and used < self.reserved):
            used = self.reserved
        settle(self.reserved, used)


# The last events of streams, after which clients close them.
ENDS = (b"[DONE]", b"message_stop", b"response.completed", b"finishReason")


class BodyUsage:
    """The body of a response, for the meters of its call, which are settled when it has ended."""

    def __init__(self, content_type: str, body: bytes | None = None) -> None:
        self._is_stream = content_type.startswith("text/event-stream")
        self._meters: list[Meter] = []
        # The body, if it is in memory.
        self._body = body

    def add_meter(self, meter: Meter) -> None:
        self._meters.append(meter)
        if self._body is not None:
            self.settle(self._body, True)

    def settle(self, body: bytes, is_whole: bool) -> None:
        meters, self._meters = self._meters, []
        parts, is_whole = [body], is_whole or not self._is_stream
        if self._is_stream:
            parts = [line[5:] for line in body.split(b"\n") if line.startswith(b"data:")]
            is_whole = is_whole or any(end in part for part in parts[-2:] for end in ENDS)
        for meter in meters:
            meter.end(parts, is_whole)


class MeteredLimit(NamedLimit):
    """The base class of the limits on what calls use."""

    metered: ClassVar[bool] = True
    _arguments: Mapping[str, Any] | None = PrivateAttr(default=None)

    def bind(self, parameters: Mapping[str, Any]) -> Self:
        """The limit for a call with these parameters."""
        if self._arguments is not None:
            return self
        bound = super().bind(parameters)
        bound = bound.model_copy() if bound is self else bound
        bound._arguments = parameters
        return bound

    def read(self, answer: Any) -> Usage | None:
        """The usage in an answer."""
        return read_usage(answer)

    @abstractmethod
    def amount(self, usage: Usage) -> float | None:
        """What a call with this usage counts for; None if that is unknown."""

    def may_have_used(self, info: ErrorInfo | None) -> bool:
        """Whether a call that failed with this error counts as what it reserved."""
        return False

    def finish(
        self,
        ticket: Ticket,
        error: BaseException | None = None,
        *,
        info: ErrorInfo | None = None,
        took: float | None = None,
    ) -> Steps[None]:
        """Settle the call."""
        cast("Meter", ticket).settle(error, info)
        yield from ()


def call_with(fn: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Call `fn` with those of the arguments that it declares, by their names."""
    declared = signature(fn).parameters
    if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in declared.values()):
        return fn(**arguments)
    return fn(**{name: value for name, value in arguments.items() if name in declared})
