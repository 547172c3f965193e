"""The rounds of a loop: what each one gave, kept within bounds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from prefect_resilience.base.plain import plain
from prefect_resilience.errors.context import ErrorContext
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.errors.taxonomy import bounded
from prefect_resilience.graphs.conditions.bounds import Bounds, ConditionError
from prefect_resilience.graphs.conditions.compare import equal
from prefect_resilience.guards.partials.current import LIMIT as PARTIAL
from prefect_resilience.guards.partials.current import partial_output

__all__ = ["PARTIAL", "History", "Iteration", "Round", "brief", "history_details", "partial_output"]

T = TypeVar("T")

KEPT_VALUES = 50
"""Rounds whose values are kept; of those before only number, duration and error are."""

BRIEF = 1_000


@dataclass(frozen=True)
class Round(Generic[T]):
    """One round: its number from 1, what the step gave, its mark of progress, and the seconds it took.

    `progress` is plain data. `steps` has what each step of the round gave, by name, where there are several.
    `truncated`: value, mark and steps were dropped, since newer rounds took their place.
    """

    number: int
    value: T | None = None
    progress: Any = None
    duration: float = 0.0
    error: ErrorContext | None = None
    truncated: bool = False
    steps: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Iteration(Generic[T]):
    """A loop that came to its end: the last round's value, how many rounds it took, and each of them.

    `steps` has what each step of the last round gave, by name, where a round has several.
    """

    value: T
    rounds: int
    iteration_history: tuple[Round[T], ...]

    @property
    def steps(self) -> Mapping[str, Any]:
        return self.iteration_history[-1].steps


class History(Generic[T]):
    """The rounds so far."""

    def __init__(self) -> None:
        self._rounds: list[Round[T]] = []

    def add(self, made: Round[T]) -> None:
        self._rounds.append(made)
        old = len(self._rounds) - KEPT_VALUES - 1
        if old >= 0:
            self._rounds[old] = replace(
                self._rounds[old], value=None, progress=None, truncated=True, steps={}
            )

    def told(self) -> tuple[Round[T], ...]:
        return tuple(self._rounds)


def brief(value: Any, limit: int = BRIEF) -> str:
    """A value as JSON in at most `limit` characters, secrets masked."""
    text = json.dumps(plain(value, depth=20, items=limit), default=str, ensure_ascii=False)
    return bounded(redact(text), limit)


def history_details(rounds: Iterable[Round[Any]]) -> list[dict[str, Any]]:
    """The last rounds as an ErrorContext carries them: texts, each of bounded length."""
    return [
        {
            "round": made.number,
            "value": brief(made.value),
            "progress": brief(made.progress),
            "duration": round(made.duration, 3),
            "error": None if made.error is None else made.error.summary(),
            **({"steps": {name: brief(given) for name, given in made.steps.items()}} if made.steps else {}),
        }
        for made in list(rounds)[-KEPT_VALUES:]
    ]


STEPS = 5_000_000


def same(one: Any, other: Any, steps: int = STEPS) -> bool:
    """Whether two plain values are the same, through and through; those too large to compare are not."""
    try:
        return equal(one, other, Bounds(steps=steps))
    except ConditionError:
        return False
