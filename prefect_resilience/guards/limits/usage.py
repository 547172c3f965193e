"""What a call of a language model used, read from its answer, and the base of the limits that count it.

One reader takes the forms of OpenAI (chat and responses), Anthropic and Gemini: the objects of their SDKs,
their JSON, and the chunks of their streams.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from time import monotonic, sleep
from typing import Any, ClassVar, NamedTuple, Self, cast
from urllib.parse import quote
from uuid import uuid4

from pydantic import Field, PrivateAttr

from prefect_resilience.base.drive import Steps, sleep_for
from prefect_resilience.base.durations import Seconds
from prefect_resilience.base.process import in_forked_child, start_thread
from prefect_resilience.errors.classify.classify import classify
from prefect_resilience.errors.classify.shapes import parse_json, value_at, values_at
from prefect_resilience.errors.exceptions import StoreUnavailable
from prefect_resilience.errors.taxonomy import ErrorCategory, ErrorInfo
from prefect_resilience.guards.circuits import listeners, registry
from prefect_resilience.guards.limits.guarding import NamedLimit, Ticket
from prefect_resilience.guards.limits.line import for_place, stand_in_line
from prefect_resilience.stores.base import Store, change

PLACES = ("usage", "usage_metadata", "usageMetadata")
# Where an event of a stream has its usage: OpenAI's `response.completed`, Anthropic's `message_start`.
AROUND = ("", "response.", "message.")

INPUT = ("prompt_tokens", "input_tokens", "promptTokenCount", "prompt_token_count", "total_tokens")
OUTPUT = ("completion_tokens", "output_tokens", "candidatesTokenCount", "candidates_token_count")
TOOLS = ("toolUsePromptTokenCount", "tool_use_prompt_token_count")
THOUGHTS = ("thoughtsTokenCount", "thoughts_token_count")
# Tokens from a cache that are part of the input; Anthropic's come on top of it.
CACHED = (
    *("prompt_tokens_details.cached_tokens", "input_tokens_details.cached_tokens", "cached_tokens"),
    *("cachedContentTokenCount", "cached_content_token_count"),
)
CACHE_READ, CACHE_WRITE = ("cache_read_input_tokens",), ("cache_creation_input_tokens",)


class Usage(NamedTuple):
    """The tokens of one call, under the names of genai-prices. `input_tokens` has those of the caches."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0


def read_usage(answer: Any) -> Usage | None:
    """The usage in an answer or a chunk of one; None if it has none. Never raises.

    Example:
        >>> read_usage({"usage": {"prompt_tokens": 12, "completion_tokens": 30}}).output_tokens
        30
    """
    if isinstance(answer, list | tuple):
        return merge_all(map(read_usage, cast("Iterable[Any]", answer)))
    places = (around + place for around in AROUND for place in PLACES)
    return merge_all(_read_counts(counts) for place in places for counts in values_at(answer, place))


def merge_all(usages: Iterable[Usage | None]) -> Usage | None:
    """The usage after some chunks of a stream: the counts of all providers only grow."""
    present = [usage for usage in usages if usage is not None]
    return Usage(*map(max, zip(*present, strict=True))) if present else None


def _read_counts(counts: Any) -> Usage | None:
    question, output = count_at(counts, INPUT), count_at(counts, OUTPUT)
    if output is None and question is None:
        return None
    kinds = (CACHE_READ, CACHE_WRITE, TOOLS, THOUGHTS, CACHED)
    read, write, tools, thoughts, cached = (count_at(counts, names) or 0 for names in kinds)
    return Usage((question or 0) + tools + read + write, (output or 0) + thoughts, read + cached, write)


def count_at(counts: Any, names: Iterable[str]) -> int | None:
    """The first number at these places."""
    fields = (value_at(counts, name) for name in names)
    return next((count for count in fields if type(count) is int and count >= 0), None)


# -- limits that count what a call used


class Meter(Ticket):
    """What a call has reserved of a share. It is settled once: from the usage in its answer, or when it has
    failed."""

    def __init__(self, limit: MeteredLimit, share: Share, reserved: float) -> None:
        super().__init__()
        self.limit: MeteredLimit = limit
        self.share: Share = share
        self.reserved: float = reserved
        self.call: str = uuid4().hex
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
            self._usage = merge_all((self._usage, self.limit.read(answer)))

    def end(self, answers: Iterable[Any], is_whole: bool) -> None:
        """Settle at the end of a body. `is_whole`: all of it was read."""
        self._waits = False
        for answer in answers:
            self.see(answer)
        self.settle(None if is_whole else GeneratorExit())

    def settle(self, error: BaseException | None, info: ErrorInfo | None = None) -> None:
        """Give back what was not used. An answer without a usage counts as what was reserved, and so does a
        call that timed out, because the service may go on with it. One that was cut off counts as at least
        that."""
        if self._waits and error is None:
            return
        used = None if self._usage is None else self.limit.amount(self._usage)
        info = info or (classify(error) if isinstance(error, Exception) else None)
        timed_out = info is not None and info.category is ErrorCategory.TIMEOUT
        if error is not None and not self._seen and not timed_out:
            used = 0.0
        elif used is None or (error is not None and used < self.reserved):
            used = self.reserved
        self.share.settle(self, used)


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
        answers = [answer for part in parts if (answer := parse_json(part.decode(errors="replace")))]
        for meter in meters:
            meter.end(answers, is_whole)


class MeteredLimit(NamedLimit):
    """The base class of the limits on what calls use."""

    metered: ClassVar[bool] = True
    max_wait: Seconds | None = Field(
        default=None, description="The longest wait, in seconds; null: no limit."
    )
    _arguments: Mapping[str, Any] = PrivateAttr(default_factory=dict)

    def bind(self, parameters: Mapping[str, Any]) -> Self:
        """The limit for a call with these parameters."""
        if self._arguments:  # the further call of a hedge has the same ones
            return self
        bound = super().bind(parameters).model_copy()
        bound._arguments = parameters
        return bound

    def read(self, answer: Any) -> Usage | None:
        """The usage in an answer."""
        return read_usage(answer)

    @abstractmethod
    def amount(self, usage: Usage) -> float | None:
        """What a call with this usage counts for; None if that is unknown."""

    @abstractmethod
    def _open(self) -> Steps[Meter]:
        """The meter of a call, with what it may use."""

    def acquire(self) -> Steps[Ticket]:
        """Reserve what the call may use. Raises a LimitRefused, at once if the wait is known."""
        came = monotonic()
        meter = yield from self._open()
        share = meter.share
        try:
            meter.place = yield from stand_in_line(share.key, 1, self.max_wait)
            while True:
                remaining = for_place(self.max_wait, monotonic() - came, None)
                pause = yield from share.take(meter, max(remaining, 0.0))
                if pause is None:
                    return meter
                yield from sleep_for(pause)
        except BaseException:
            share.settle(meter, 0.0)
            raise
        finally:
            if meter.place is not None:
                meter.place.leave()

    def finish(
        self, ticket: Ticket, error: BaseException | None = None, *, info: ErrorInfo | None = None, **_: Any
    ) -> Steps[None]:
        """Settle the call."""
        cast("Meter", ticket).settle(error, info)
        yield from ()


# -- the documents of these limits

# Beyond this many documents, those that need no settling are forgotten.
MOST_SHARES = 1_000


class Share:
    """What this process knows and has of a document that the fleet shares: a bucket of tokens, or a cap."""

    keeps: ClassVar[float]
    """Seconds for which the store keeps the document without a change."""

    pause: ClassVar[float] = 0.0
    """Seconds from the end of a call until the store knows of it."""

    def __init__(self, key: str, fresh: Any) -> None:
        self.key: str = key
        self.document: Any = fresh
        # What each running call has reserved.
        self.running: dict[str, float] = {}
        # Re-entrant: the garbage collector may end a stream at any time.
        self.lock: AbstractContextManager[Any] = threading.RLock()
        self._settles = False

    @classmethod
    def of(cls, key: str, fresh: Any) -> Self:
        """The share of this process; `fresh` is the document before its first call."""
        if len(shares) >= MOST_SHARES:
            for old in list(shares.values()):
                if not old.running and old.is_settled():
                    shares.pop(old.key, None)
        return cast("Self", shares.get(key) or shares.setdefault(key, cls(key, fresh)))

    @abstractmethod
    def take(self, meter: Meter, patience: float) -> Steps[float | None]:
        """Reserve for a call that has the place in the line. Returns None if that is done, else the seconds
        until the next attempt. Raises a LimitRefused for a longer wait than `patience`."""

    @abstractmethod
    def end(self, call: str, reserved: float, used: float) -> None:
        """A call that had reserved so much has used so much."""

    @abstractmethod
    def is_settled(self) -> bool:
        """Whether the document in the store has every call that has ended."""

    @abstractmethod
    def settle_all(self) -> None:
        """Bring the document in the store up to date, unless a call is about to. May block."""

    def settle(self, meter: Meter, used: float) -> None:
        """A call has ended, or does not begin; a second time does nothing. Does not block.

        The store knows of it after the pause, with all calls that end until then. The process waits for it.
        """
        with self.lock:
            if (reserved := self.running.pop(meter.call, None)) is not None:
                self.end(meter.call, reserved, used)
            if self._settles or self.is_settled():
                return
            self._settles = True
        with suppress(RuntimeError):  # the interpreter ends
            start_thread("limits", self._settle_after_pause, daemon=False)

    def _settle_after_pause(self) -> None:
        sleep(self.pause)
        with self.lock:
            self._settles = False
        if not self.is_settled():
            self.settle_all()

    def change(self, step: Callable[[Any, float], Any]) -> tuple[Any, bool]:
        """The document after `step`, which gets it and the store's time, and whether the store has it.

        While the store is unavailable, the process goes on with the document that it knows. May block.
        """
        link = registry.link_to(None)

        def write(store: Store) -> Any:
            link.note_clock(store.now())
            return change(store, self.key, step_now, lasts=self.keeps, now=link.now())

        def step_now(value: Any) -> Any:
            return step(value or self.document, link.now())

        try:
            if not link.is_ready:
                raise StoreUnavailable("it rests")
            self.document = link.exchange(write)
            return self.document, True
        except StoreUnavailable:
            return step_now(None), False
        finally:
            listeners.tell(link.notices)


shares: dict[str, Share] = {}
in_forked_child(shares.clear)


def key_of(prefix: str, name: str) -> str:
    """The key of a document."""
    return prefix + quote(name, safe="/", errors="surrogatepass")
