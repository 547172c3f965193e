"""The rounds of a loop: what each one gave, kept within bounds."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from prefect_resilience.conditions.plain import plain
from prefect_resilience.errors.context import ErrorContext, PartialOutput
from prefect_resilience.errors.info import bounded
from prefect_resilience.errors.redact import redact, redact_data

T = TypeVar("T")

KEPT_VALUES = 50
"""Rounds whose values are kept; of those before only number, duration and error are."""

BRIEF = 1_000
PARTIAL = 64_000


@dataclass(frozen=True)
class Round(Generic[T]):
    """One round: its number from 1, what the step gave, its mark of progress, and the seconds it took.

    `progress` is plain data. `truncated`: value and mark were dropped, since newer rounds took their place.
    """

    number: int
    value: T | None = None
    progress: Any = None
    duration: float = 0.0
    error: ErrorContext | None = None
    truncated: bool = False


@dataclass(frozen=True)
class Iteration(Generic[T]):
    """A loop that came to its end: the last round's value, how many rounds it took, and each of them."""

    value: T
    rounds: int
    iteration_history: tuple[Round[T], ...]


class History(Generic[T]):
    """The rounds so far."""

    def __init__(self) -> None:
        self._rounds: list[Round[T]] = []

    def add(self, made: Round[T]) -> None:
        self._rounds.append(made)
        old = len(self._rounds) - KEPT_VALUES - 1
        if old >= 0:
            self._rounds[old] = replace(self._rounds[old], value=None, progress=None, truncated=True)

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
        }
        for made in list(rounds)[-KEPT_VALUES:]
    ]


def partial_output(value: Any) -> PartialOutput | None:
    """What the rounds before had come to: plain data, or the beginning of its text when that is long."""
    if value is None:
        return None
    content = redact_data(plain(value))
    text = json.dumps(content, default=str, ensure_ascii=False)
    if len(text) <= PARTIAL:
        return PartialOutput(content=content)
    return PartialOutput(content=text[:PARTIAL], truncated=True, original_size=len(text))
