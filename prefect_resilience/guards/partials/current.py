"""What the code inside a resilient run says about its progress, and what it can learn of the attempt before.

The notes of a run live where its attempts are recorded; whoever runs attempts says where, with
`add_notes_source`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from prefect_resilience.errors.context import ErrorContext, PartialOutput
from prefect_resilience.errors.taxonomy import FailureReason
from prefect_resilience.guards.partials.bounds import partial_output

T = TypeVar("T")

MOST_APPENDED = 10_000
"""Values that `keep_partial(..., append=True)` keeps for one run; of more the first are kept."""


@dataclass(slots=True)
class Notes:
    """What the attempt of one run kept so far, what the ones before it kept, and how the last one ended."""

    kept: Any = None
    appends: bool = False
    dropped: int = 0
    before: Any = None
    goes_on: bool = False
    """Whether this attempt asked for what was kept before: then it appends to that."""
    previous: ErrorContext | None = None
    violations: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """What was wrong with the last output that was looked at; other failures since then do not matter."""
    sink: Callable[[Notes], None] | None = None
    """Where each value goes at once, since this process may be killed."""

    def keep(self, value: Any, append: bool) -> None:
        if append:
            self._append(value)
        else:
            self.kept, self.appends, self.dropped = value, False, 0
        if self.sink is not None:
            self.sink(self)

    def _append(self, value: Any) -> None:
        if not self.appends:
            before = self.before if self.goes_on else None
            self.kept, self.appends = list(cast("Any", before)) if isinstance(before, list) else [], True
        if len(self.kept) < MOST_APPENDED:
            self.kept.append(value)
        else:
            self.dropped += 1

    def told(self, left: Any = None) -> PartialOutput | None:
        """As an ErrorContext carries it: of this attempt, else of the last one that kept anything.

        `left` is what the error that ended this attempt says of its own accord.
        """
        output = partial_output(self._latest(left))
        if output is None or not self.dropped:
            return output
        size = MOST_APPENDED + self.dropped if output.original_size is None else output.original_size
        return output.model_copy(update={"truncated": True, "original_size": size})

    def _latest(self, left: Any) -> Any:
        return next((value for value in (self.kept, left) if value is not None), self.before)

    def ended(self, context: ErrorContext, left: Any = None) -> None:
        """The attempt failed: what it kept, or else its error `left`, is what the next one finds."""
        self.before = self._latest(left)
        self.kept, self.appends, self.goes_on, self.dropped = None, False, False, 0
        self.previous = context
        if context.reason is FailureReason.OUTPUT_FORMAT_FAILURE:
            self.violations = list(context.details.get("violations", ()))


@dataclass(slots=True)
class _Sources:
    """Each gives the notes of the run that is going on; made if there are none and `make` says so."""

    known: list[Callable[[bool], Notes | None]] = field(default_factory=list[Callable[[bool], Notes | None]])


_sources = _Sources()


def add_notes_source(source: Callable[[bool], Notes | None]) -> None:
    """Ask `source(make)` for the notes of the run that is going on; the first that has some is right."""
    _sources.known.append(source)


def _notes(make: bool) -> Notes | None:
    return next((notes for source in _sources.known if (notes := source(make)) is not None), None)


def keep_partial(value: T, *, append: bool = False) -> T:
    """Keep what the work has come to so far, in case it fails; returns `value`.

    The last value wins; with `append=True` the values are kept as a list. If the run fails, the
    ErrorContext has it as `partial_output`, cut to a bounded size and without secrets, for handlers,
    fallbacks and dead letters, and the run's next attempt gets the value itself from `previous_partial()`.
    It is kept in this process's memory, at no cost: what must survive the death of the process belongs in
    a task of its own with a persisted result. Outside of a resilient run nothing is kept.

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
    """What the attempts before this one kept with `keep_partial`, as it was; None if nothing.

    An attempt that asks goes on with it: what it keeps with `append=True` is appended to that.
    """
    notes = _notes(False)
    if notes is None:
        return None
    notes.goes_on = True
    return notes.before


def previous_error() -> ErrorContext | None:
    """How the attempt before this one ended; None in a first attempt, and outside of a resilient run."""
    notes = _notes(False)
    return None if notes is None else notes.previous


def last_violations() -> list[dict[str, Any]]:
    """Where this run's last output broke its promise: `{"path": "/items/0", "message": ...}` each.

    Empty in a first attempt, and as long as no output was malformed. An attempt that came to no output, such
    as one that found the network down, changes nothing about it.
    """
    notes = _notes(False)
    return [] if notes is None else list(notes.violations)
