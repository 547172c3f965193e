"""The content of events and artifacts: JSON without secrets and of bounded size.

Prefect rejects events over 1.5 MB, and error messages of services can have any length. Content that was cut
is marked.
"""

from __future__ import annotations

import inspect
import json
import logging
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, cast

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
STEPS = ((20_000, 500), (4_000, 100), (1_000, 25), (300, 10))
"""Pairs: the characters kept of each text, and the items kept of each list or object. The first pair with
which the payload fits the limit is used."""

FEWEST = 10
SHORTEST = 100
"""The last resort: the number of entries, and the characters of each."""

SMALL = 4_000
"""A payload of at most so many bytes is not cut."""
_UNSOUND = re.compile(r"\\u(?:0000|d[89a-f])|\d{19}")
"""NUL, lone surrogates, and numbers of more than 64 bits, in JSON."""

MARK = "truncated"
_LOOK_AHEAD = 2_000
"""Characters read beyond the cut, so that a secret which crosses the cut is masked first."""


def fit(payload: Mapping[str, Any], limit: int = LIMIT) -> dict[str, Any]:
    """The payload as JSON without secrets, of at most `limit` bytes (10,000 or more).

    Values that JSON does not have become text. A text that was cut ends with its original length. After any
    cut the payload has "truncated": true.
    """
    if (plain := _plain(payload)) is not None:
        return redact_data(plain)
    for text, items in STEPS:
        cutter = _Cutter(text, items, limit)
        try:
            reduced = cast("dict[str, Any]", redact_data(cutter.reduce(dict(payload))))
        except _TooMuch:
            continue
        reduced = reduced if not cutter.cuts else {**reduced, MARK: True}
        if size_of(reduced) <= limit:
            return reduced
    plain = {
        fit_text(str(key), SHORTEST): value if value is None else fit_text(_text_of(value), SHORTEST)
        for key, value in list(payload.items())[:FEWEST]
        if not isinstance(value, dict | list | tuple | set | frozenset)
    }
    return {**redact_data(plain), MARK: True}


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


class _TooMuch(Exception):
    """The values together exceed the limit: cut each of them further."""


class _Cutter:
    """Makes JSON of any value, with at most `text` characters in a text, `items` items in a list or object,
    and `limit` characters altogether."""

    def __init__(self, text: int, items: int, limit: int) -> None:
        self.text = text
        self.items = items
        self.left = limit
        self.cuts = 0

    def reduce(self, value: Any, depth: int = DEPTH) -> Any:
        self._spend(2)
        if value is None or isinstance(value, bool | int):
            return value if not isinstance(value, int) or abs(value) < 2**63 else self._text(str(value))
        if isinstance(value, float):
            return value if math.isfinite(value) else str(value)
        if isinstance(value, str):
            # str() of a member of `class E(str, Enum)` is its name.
            return self._text(value.value if isinstance(value, Enum) else value)
        if isinstance(value, date):
            return value.isoformat()
        if not isinstance(value, dict | list | tuple | set | frozenset):
            return self._text(_text_of(value))
        if depth == 0:
            self.cuts += 1
            return "…"
        if isinstance(value, dict):
            return self._object(cast("dict[Any, Any]", value), depth)
        return self._list(list(cast("list[Any]", value)), depth)

    def _object(self, value: dict[Any, Any], depth: int) -> dict[str, Any]:
        pairs = list(value.items())[: self.items]
        reduced = {self._text(str(key)): self.reduce(item, depth - 1) for key, item in pairs}
        if len(value) > len(pairs):
            self.cuts += 1
            reduced["…"] = f"{len(value) - len(pairs)} more"
        return reduced

    def _list(self, value: list[Any], depth: int) -> list[Any]:
        reduced = [self.reduce(item, depth - 1) for item in value[: self.items]]
        if len(value) > self.items:
            self.cuts += 1
            reduced.append(f"… {len(value) - self.items} more")
        return reduced

    def _spend(self, letters: int) -> None:
        self.left -= letters
        if self.left < 0:
            raise _TooMuch

    def _text(self, text: str) -> str:
        self._spend(min(len(text), self.text))
        if len(text) <= self.text:
            return sound(text)
        self.cuts += 1
        return f"{fit_text(text, self.text)} ({len(text)} characters)"


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
    *("dead-letter.created", "dead-letter.failed-again", "dead-letter.replayed"),
    *("dead-letter.settled", "dead-letter.skipped"),
    *("plan.branched", "task.configured", "calls.counted", "budget.burned", "store.unavailable"),
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
