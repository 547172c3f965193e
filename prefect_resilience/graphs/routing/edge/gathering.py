"""`gather`: the outcome of every item, a verdict, and a table of the items that failed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Generic, TypeVar, cast

from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture

from prefect_resilience.errors.context import ErrorContext, attach_context
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.errors.taxonomy import bounded
from prefect_resilience.graphs.routing.edge.upstream import (
    Ending,
    Gave,
    NeverRan,
    check_upstream,
    context_of,
    ending_of,
)
from prefect_resilience.graphs.routing.rounds import TooManyFailures
from prefect_resilience.tasks.summaries.markdown import text

T = TypeVar("T")

MOST_CARRIED = 100
CELL = 200


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """The outcome of one item. `state` is the name of its last state. `value` is None if it failed.

    A blocked or cancelled item also has an `error`, of the category `cancelled`.
    """

    index: int
    name: str
    state: str
    value: T | None = None
    error: ErrorContext | None = None
    task_run_id: str | None = None

    @property
    def succeeded(self) -> bool:
        return self.error is None


@dataclass(frozen=True)
class Gathered(Generic[T]):
    """Every item's outcome, in the order of the items. `allowed` is how many of them may fail."""

    outcomes: tuple[Outcome[T], ...]
    allowed: int

    @property
    def values(self) -> list[T]:
        """The values of the items that succeeded."""
        return [cast("T", outcome.value) for outcome in self.outcomes if outcome.succeeded]

    @property
    def failures(self) -> list[Outcome[T]]:
        return [outcome for outcome in self.outcomes if not outcome.succeeded]

    @property
    def succeeded(self) -> bool:
        """Whether no more items failed than allowed."""
        return len(self.failures) <= self.allowed

    @property
    def table(self) -> str:
        """The failed items as a markdown table of at most 100 rows, secrets masked; empty without any."""
        failures = self.failures
        if not failures:
            return ""
        rows = ["| item | error |", "| --- | --- |"]
        rows += [_row(outcome) for outcome in failures[:MOST_CARRIED]]
        if len(failures) > MOST_CARRIED:
            rows.append(f"| … | and {len(failures) - MOST_CARRIED:,} more |")
        return "\n".join(rows)

    def raise_for_failures(self) -> None:
        """Raise `TooManyFailures` if more items failed than allowed."""
        if self.succeeded:
            return
        failures = self.failures
        error = TooManyFailures(
            tuple(failures[:MOST_CARRIED]), len(failures), len(self.outcomes), self.allowed
        )
        details = {
            "failed": len(failures),
            "total": len(self.outcomes),
            "allowed": self.allowed,
            "items": [outcome.name for outcome in failures[:MOST_CARRIED]],
        }
        first = cast("ErrorContext", failures[0].error)
        as_cause = {"cause": first, "kind": first.kind, "retryable": first.retryable}
        attach_context(error, context_of(error).model_copy(update={**as_cause, "details": details}))
        raise error


def gather(futures: Iterable[PrefectFuture[T] | State[T] | T], allow_failures: float = 0) -> Gathered[T]:
    """Wait for all items and return the outcome of each. Failed items raise nothing here.

    futures: futures, such as those of `.map`, states, or plain values; a caught exception counts as failed.
    allow_failures: how many may fail: a share below 1 (0.1 for a tenth), a number of items, or True for all.

    Blocks this thread: in a coroutine write
    `await agather(...)`.

    Example:
        >>> gather([1, ValueError("bad"), 3], allow_failures=1).values
        [1, 3]
    """
    collection = cast("Any", futures)
    if isinstance(collection, PrefectFuture | State | str | bytes) or not isinstance(collection, Iterable):
        raise ConfigurationError(
            f"gather(...) takes a list of futures, states or values, not {collection!r}: write gather([...])"
        )
    items = [check_upstream(item, "gather(...)") for item in cast("Iterable[Any]", collection)]
    allowed = allowed_of(allow_failures, len(items))
    outcomes = tuple(_outcome(index, item) for index, item in enumerate(items))
    return Gathered(outcomes, allowed)


async def agather(
    futures: Iterable[PrefectFuture[T] | State[T] | T], allow_failures: float = 0
) -> Gathered[T]:
    """As `gather`, without blocking the event loop."""
    return await asyncio.to_thread(gather, futures, allow_failures)


def allowed_of(allow: Any, total: int) -> int:
    """How many of `total` items may fail. A share is exact: 0.29 of 100 are 29."""
    if allow is True:
        return total
    if isinstance(allow, float) and 0 <= allow <= 1:
        return int(Fraction(repr(allow)) * total)
    if isinstance(allow, int) and allow >= 0:
        return int(allow)
    raise ConfigurationError(
        f"gather(allow_failures={allow!r}): write a share from 0.0 to 1.0, a whole number of items, or True"
    )


def _outcome(index: int, item: Any) -> Outcome[Any]:
    ending = ending_of(item)
    run = getattr(item, "task_run_id", None)
    if run is None and isinstance(item, State):
        run = item.state_details.task_run_id
    error = None if isinstance(ending, Gave) else ending.context
    return Outcome(
        index=index,
        name=str(index),
        state=_state_name(item, ending),
        value=ending.value if isinstance(ending, Gave) else None,
        error=error,
        task_run_id=str(run) if run else (error.task_run_id if error else None),
    )


def _state_name(item: Any, ending: Ending) -> str:
    if isinstance(ending, NeverRan):
        return str(ending.state.name)
    state: Any = cast("Any", item) if isinstance(item, State) else getattr(item, "_final_state", None)
    if state is not None:
        return str(state.name)
    if isinstance(ending, Gave):
        return "Completed"
    return "Crashed" if isinstance(item, PrefectFuture) else "Failed"


def _row(outcome: Outcome[Any]) -> str:
    error = outcome.error
    summary = outcome.state if error is None else error.summary()
    return f"| {outcome.name} | {text(bounded(redact(summary), CELL))} |"
