"""The reports of calls, and the content of events and artifacts: JSON without secrets, of bounded size.

Prefect rejects events over 1.5 MB, and error messages of services can have any length. Content that was cut
is marked.
"""

from __future__ import annotations

import inspect
import json
import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from prefect_resilience.base.policy import nearest
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact, redact_data

if TYPE_CHECKING:
    from prefect_resilience.errors.context import ErrorContext

LIMIT = 100_000
"""The most bytes of JSON in a payload."""

NAME = 300
"""The most characters in the name of a resource."""

DEPTH = 10
ITEMS = 500
"""The most items of each list or object."""
LONGEST_NUMBER = 25
"""The bytes that a value takes in JSON apart from its text."""

SMALL = 4_000
"""A payload of at most so many bytes is not cut."""
_UNSOUND = re.compile(r"\\u(?:0000|d[89a-f])|\d{19}")
"""NUL, lone surrogates, and numbers of more than 64 bits, in JSON."""

MARK = "truncated"
_LOOK_AHEAD = 2_000
"""Characters read beyond the cut, so that a secret which crosses the cut is masked first."""


class CallEvent(NamedTuple):
    """An event: what happened, to what. `payload` may be the part that the metrics read: then `whole` returns
    all of it, for the readers of the event."""

    happening: str
    kind: str
    name: str
    payload: dict[str, Any]
    whole: Callable[[], dict[str, Any]] | None = None


@dataclass(eq=False, slots=True)  # not frozen: frozen ones are slower to make
class CallReport:
    """One thing that happened to a call: its log line, its events, and the totals in which it counts.

    kind: what the line has in common with others. error: the failure that the line is about. failure: the
        context of a failed attempt.
    """

    level: int
    kind: tuple[object, ...]
    line: str
    error: BaseException | None = None
    failure: ErrorContext | None = None
    events: Sequence[CallEvent] = ()
    totals: Sequence[str] = ()


def fit(payload: Mapping[str, Any], limit: int = LIMIT) -> dict[str, Any]:
    """The payload as JSON without secrets, of at most `limit` bytes (10,000 or more).

    Values that JSON does not have become text. A text of more than a fifth of the limit is cut, and ends with
    its original length. What no longer fits is left out. After any cut the payload has "truncated": true.
    """
    if (plain := _plain(payload)) is not None:
        return redact_data(plain)
    cutter = _Cutter(limit)
    reduced = cast("dict[str, Any]", redact_data(cutter.reduce(dict(payload))))
    return {**reduced, MARK: True} if cutter.is_cut else reduced


def _plain(payload: Mapping[str, Any]) -> dict[str, Any] | None:
    """The payload as JSON if it is small and JSON can hold each value as it is; else None."""
    try:
        text = json.dumps(payload, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return None
    return None if len(text) > SMALL or _UNSOUND.search(text) else json.loads(text)


def error_payload(context: ErrorContext) -> dict[str, Any]:
    """The payload for an error, without the stack trace, the earlier attempts and the partial output."""
    return context.model_dump(
        mode="json", exclude={"stack_trace", "history", "partial_output"}, exclude_none=True
    )


def fit_text(text: str, most: int) -> str:
    """The text without secrets and of at most `most` characters. A text that was cut ends in "…"."""
    clean = redact(sound(text[: most + _LOOK_AHEAD]))
    return clean if len(text) <= most and len(clean) <= most else clean[: most - 1] + "…"


def size_of(payload: Any) -> int:
    """The number of bytes of its JSON."""
    return len(json.dumps(payload, ensure_ascii=False).encode())


def sound(text: str) -> str:
    """The text in a form that every database accepts: without NUL and without lone surrogates."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


class _Cutter:
    """Makes JSON of any value, of at most three quarters of `limit` bytes: the masks of secrets need room."""

    def __init__(self, limit: int) -> None:
        self.longest = limit // 5
        self.left = limit * 3 // 4
        self.is_cut = False

    def reduce(self, value: Any, depth: int = DEPTH) -> Any:
        if isinstance(value, dict):
            fields = cast("dict[Any, Any]", value)
            keys = self._fitting(fields, depth)
            reduced = {self._text(str(key)): self.reduce(fields[key], depth - 1) for key in keys}
            more = len(fields) - len(reduced)
            return {**reduced, "…": self._cut(f"{more} more")} if more else reduced
        if isinstance(value, list | tuple | set | frozenset):
            items = list(cast("Iterable[Any]", value))
            parts = [self.reduce(item, depth - 1) for item in self._fitting(items, depth)]
            more = len(items) - len(parts)
            return [*parts, self._cut(f"… {more} more")] if more else parts
        self.left -= LONGEST_NUMBER
        if isinstance(value, float):
            return value if math.isfinite(value) else str(value)
        if value is None or (isinstance(value, int) and abs(value) < 2**63):
            return value
        if isinstance(value, date):
            return value.isoformat()
        # str() of a member of `class E(str, Enum)` is its name.
        return self._text(_text_of(value.value if isinstance(value, Enum) else value))

    def _fitting(self, items: Iterable[Any], depth: int) -> Iterable[Any]:
        for item in islice(items, ITEMS if depth else 0):
            if self.left <= 0:
                return
            yield item

    def _text(self, text: str) -> str:
        if len(text) <= self.longest:
            shown = sound(text)
        else:
            shown = self._cut(f"{fit_text(text, self.longest)} ({len(text)} characters)")
        size = size_of(shown)
        if size > self.left:
            return self._cut("…")
        self.left -= size
        return shown

    def _cut(self, note: str) -> str:
        self.is_cut = True
        self.left -= LONGEST_NUMBER
        return note


def _text_of(value: Any) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - an object's __str__ may raise anything
        return f"<{type(value).__name__}>"


logger: logging.Logger = logging.getLogger("prefect_resilience")

EVERYTHING = "*"
EVENTS = (
    *("attempt.failed", "attempt.refused", "retry.scheduled", "fallback.used"),
    *("run.degraded", "run.recovered", "run.failed", "run.decomposed"),
    *("circuit.opened", "circuit.half-opened", "circuit.closed", "circuit.forced"),
    *("effect.replayed", "effect.in-doubt", "effect.settled"),
    *("effect.compensated", "effect.compensation-failed"),
    *("batch.recovered", "batch.rolled-back", "batch.reopened"),
    *("run.parked", "run.woken", "run.stranded"),
    *("dead-letter.created", "dead-letter.failed-again", "dead-letter.replayed"),
    *("dead-letter.settled", "dead-letter.skipped"),
    *("plan.branched", "task.configured", "calls.counted", "budget.burned", "store.unavailable"),
    *("cap.reached", "deadline.exceeded"),
)


@dataclass(frozen=True, slots=True)
class ResilienceEvent:
    """An event: `event` is one of the names in the operations page, such as "retry.scheduled".

    `kind` and `name` are its subject: ("task", "ask"), ("circuit", "llm:primary"). `payload` is the payload
    of the Prefect event, without secrets and of bounded size. `at` is in UTC.

    Example:
        >>> opened = ResilienceEvent("circuit.opened", "circuit", "llm", {"reason": "5 failures in a row"})
        >>> opened.kind, opened.payload["reason"]
        ('circuit', '5 failures in a row')
    """

    event: str
    kind: str
    name: str
    payload: dict[str, Any]
    at: datetime = field(default_factory=lambda: datetime.now(UTC))


Handler = Callable[[ResilienceEvent], object]
Whole = Callable[[], dict[str, Any]] | None
"""A function that returns the whole payload of an event, if the given one is a part of it."""

_handlers: dict[object, tuple[str, Handler]] = {}
"""Handlers, each with its event. A dict adds, removes and lists its values without a lock."""


def on(event: str, handler: Handler) -> Callable[[], None]:
    """Call `handler(event)` for each such event in this process. Returns a function that removes the handler.

    `event` is an event's name ("retry.scheduled"), the first half of a name ("circuit") or "*" for all. The
    handler is called in the thread in which the event happened, inside and outside of runs, and should be
    quick. An exception of the handler is logged and does not affect the call. Raises ConfigurationError for
    an unknown event, and for a coroutine function, because it would not be awaited.

        stop = on("circuit", lambda event: print(event.event, event.name))
    """
    nouns = {name.partition(".")[0] for name in EVENTS}
    if event not in (EVERYTHING, *EVENTS) and event not in nouns:
        raise ConfigurationError(f"on(): there is no event {event!r}{nearest(event, [*EVENTS, *nouns])}")
    if inspect.iscoroutinefunction(handler):
        raise ConfigurationError(
            f"on({event!r}, ...) needs a plain function: a coroutine would not be awaited"
        )
    key = object()
    _handlers[key] = (event, handler)

    def stop() -> None:
        _handlers.pop(key, None)

    return stop


def tell(happening: str, kind: str, name: str, payload: dict[str, Any], whole: Whole = None) -> None:
    """Call the handlers of an event. Never raises."""
    concerned = [handler for event, handler in [*_handlers.values()] if _means(event, happening)]
    if not concerned:
        return
    try:
        news = ResilienceEvent(happening, kind, redact(name), fit(whole() if whole else payload))
    except Exception:  # noqa: BLE001 - an event that cannot be built must not fail the work
        return
    for handler in concerned:
        try:
            handler(news)
        except Exception as error:  # noqa: BLE001 - an error of the handler must not affect the call
            logger.error("A handler of the event %s failed: %s", happening, redact(repr(error)))


def _means(event: str, happening: str) -> bool:
    return event in (EVERYTHING, happening) or happening.startswith(f"{event}.")
