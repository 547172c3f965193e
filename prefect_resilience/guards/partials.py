"""Partial results of a run, of bounded size, and the data of the previous attempt that the next one can read.

The notes of a run are kept beside the record of its attempts. The code that runs attempts registers the place
with `add_notes_source`.
"""

from __future__ import annotations

import json
import pickle
from bisect import bisect_right
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, TypeVar, cast

from prefect_resilience.base.plain import plain_or_cut
from prefect_resilience.errors.classify.shapes import read
from prefect_resilience.errors.context import ErrorContext, PartialOutput, error_context
from prefect_resilience.errors.secrets.redact import EDGE, redact, redact_data
from prefect_resilience.errors.taxonomy import FailureReason

LIMIT = 64_000
"""The most characters of JSON of a partial result, and of all partial results of one failure."""

# `redact_data` would drop deeper levels and further items silently.
_DEPTH, _ITEMS = 12, 10_000


def partial_output(value: Any, limit: int = LIMIT) -> PartialOutput | None:
    """A partial result as plain data, cut to `limit` characters of JSON; None for None.

    A list that is too long keeps its first items. Any other value that is too long keeps the beginning of its
    text (of its JSON, if it is not a text). `original_size` is in characters of JSON then.
    """
    if value is None:
        return None
    content, cut, size = _safe(value, limit)
    if size <= limit:
        return PartialOutput(content=content, truncated=cut, original_size=size if cut else None)
    items = _first(cast("list[Any]", content), limit) if isinstance(content, list) else []
    return PartialOutput(content=items or _text(content)[:limit], truncated=True, original_size=size)


def partial_results(
    results: Iterable[tuple[str, Any]], limit: int = LIMIT, *, named: str = "name"
) -> list[dict[str, Any]]:
    """The results of the steps that are done, for `ErrorContext.details["partial_results"]`.

    Each becomes `{"name": ..., "value": ...}`, with `named` as the first key; together they take at most
    about `limit` characters of JSON. A result that does not fit has the beginning of its text as value, and
    `"truncated": True` beside it.
    """
    values: list[dict[str, Any]] = []
    remaining = limit
    for name, value in results:
        content, cut, size = _safe(value, max(remaining, 1))
        if size > remaining:
            content, cut = _text(content)[:remaining], True
        remaining = max(remaining - size, 0)
        values.append({named: redact(name), "value": content, **({"truncated": True} if cut else {})})
    return values


def _safe(value: Any, limit: int) -> tuple[Any, bool, int]:
    """Plain data without secrets, whether anything was left out of it, and its size before a text was cut."""
    content, cut = plain_or_cut(value, depth=_DEPTH, items=min(limit, _ITEMS))
    size = _size(content)
    redacted = redact_data(content, limit)
    return redacted, cut, size if size > limit + EDGE else _size(redacted)


def _first(items: list[Any], limit: int) -> list[Any]:
    """As many of the first items as fit."""
    sums = list(accumulate(_size(item) + 2 for item in items))
    return items[: bisect_right(sums, limit - 2)]


def _size(content: Any) -> int:
    return len(_json(content))


def _text(content: Any) -> str:
    return content if isinstance(content, str) else _json(content)


def _json(content: Any) -> str:
    return json.dumps(content, default=str, ensure_ascii=False)


def value_left_by(error: BaseException) -> Any:
    """The value that user code left in an exception's `partial_output`, unchanged; None if there is none."""
    partial = read(error, "partial_output")
    return None if isinstance(partial, PartialOutput) else partial


T = TypeVar("T")


@dataclass(slots=True)
class Notes:
    """The values kept by the current attempt of a run and by earlier ones, and the last attempt's error."""

    partial: Any = None
    appends: bool = False
    before: Any = None
    goes_on: bool = False
    """Whether this attempt has read the earlier values: then it appends to them."""
    failure: BaseException | ErrorContext | None = None
    """The error of the last attempt. A child process has only its context."""
    violations: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """The violations of the last checked output; other failures since then do not change them."""
    sink: Callable[[Notes], None] | None = None
    """Called with the notes after each new value, since this process may be killed."""

    def keep(self, value: Any, append: bool) -> None:
        if append:
            if not self.appends:
                before = self.before if self.goes_on else None
                self.partial = list(cast("Any", before)) if isinstance(before, list) else []
            self.partial.append(value)
        else:
            self.partial = value
        self.appends = append
        if self.sink is not None:
            self.sink(self)

    def as_output(self, left: Any = None) -> PartialOutput | None:
        """The partial result for an ErrorContext: of this attempt, else of the last one that kept any.

        `left` is the partial result that the error of this attempt has.
        """
        return partial_output(self._latest(left))

    def _latest(self, left: Any) -> Any:
        return next((value for value in (self.partial, left) if value is not None), self.before)

    @property
    def previous(self) -> ErrorContext | None:
        """The context of the last attempt's error."""
        return self.failure if isinstance(self.failure, ErrorContext) else error_context(self.failure)

    def end_attempt(self, error: BaseException, context: ErrorContext, left: Any = None) -> None:
        """The attempt failed: the next one can read its kept values, or else `left`, its error's value."""
        self.before = self._latest(left)
        self.partial, self.appends, self.goes_on = None, False, False
        self.failure = error
        if context.reason is FailureReason.OUTPUT_FORMAT_FAILURE:
            self.violations = list(context.details.get("violations", ()))


_sources: list[Callable[[bool], Notes | None]] = []


def add_notes_source(source: Callable[[bool], Notes | None], *, first: bool = False) -> None:
    """Register `source(make)`, which returns the current run's notes. If `make` is true, it creates them.

    The first source that returns notes is used. With `first`, this one is asked before the others.
    """
    _sources.insert(0 if first else len(_sources), source)


def _notes(make: bool) -> Notes | None:
    return next((notes for source in _sources if (notes := source(make)) is not None), None)


def keep_partial(value: T, *, append: bool = False) -> T:
    """Keep a partial result in case the run fails; returns `value`.

    The last value wins; with `append=True` the values are kept as a list. If the run fails, the
    ErrorContext has it as `partial_output`, cut to a bounded size and without secrets, for handlers,
    fallbacks and dead letters, and the run's next attempt gets the value itself from `previous_partial()`.
    It is kept in this process's memory, at no cost. A value that must survive the death of the process
    belongs in a task of its own with a persisted result. Outside of a resilient run nothing is kept.

        @resilient_task(fallback=finish_from)
        def read_pages(pages):
            for page in pages[len(previous_partial() or []):]:
                keep_partial(read(page), append=True)
    """
    notes = _notes(True)
    if notes is not None:
        notes.keep(value, append)
    return value


def previous_partial() -> Any:
    """The value that earlier attempts kept with `keep_partial`, unchanged; None if there is none.

    An attempt that calls this continues the value: `keep_partial(..., append=True)` then appends to it.
    """
    notes = _notes(False)
    if notes is None:
        return None
    notes.goes_on = True
    return notes.before


def previous_error() -> ErrorContext | None:
    """The error of the previous attempt; None in a first attempt, and outside of a resilient run."""
    notes = _notes(False)
    return None if notes is None else notes.previous


def last_violations() -> list[dict[str, Any]]:
    """The violations of this run's last output: `{"path": "/items/0", "message": ...}` each.

    Empty in a first attempt, and as long as no output was malformed. An attempt without an output, such as
    one that failed with a network error, does not change them.
    """
    notes = _notes(False)
    return [] if notes is None else list(notes.violations)


@dataclass
class Carried:
    """The notes that a child process gets from its run, and the values that the child kept."""

    before: bytes | None = None
    previous: ErrorContext | None = None
    violations: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    packed: bytes | None = None

    def unpack(self, send: Callable[[bytes], None]) -> Notes:
        """The notes in the child, which sends each value that it keeps to the parent."""

        def sink(notes: Notes) -> None:
            packed = _pack((notes.partial, notes.appends))
            if packed is not None:
                send(packed)

        before = None if self.before is None else pickle.loads(self.before)
        return Notes(before=before, failure=self.previous, violations=list(self.violations), sink=sink)

    def read(self, notes: Notes) -> None:
        """In the parent: take over the values that the child had kept."""
        packed, self.packed = self.packed, None
        if packed is not None:
            with suppress(Exception):  # the values may be of a class that only the child knows
                notes.partial, notes.appends = pickle.loads(packed)


def carry(notes: Notes | None) -> Carried:
    """The notes to send to a child."""
    if notes is None:
        return Carried()
    return Carried(_pack(notes.before), notes.previous, notes.violations)


def _pack(value: Any) -> bytes | None:
    """The value as bytes; None if it cannot be pickled."""
    import cloudpickle  # pyright: ignore[reportMissingTypeStubs]

    try:
        return cloudpickle.dumps(value)  # pyright: ignore[reportUnknownMemberType]
    except Exception:  # noqa: BLE001 - pickling an object may raise any error
        return None
