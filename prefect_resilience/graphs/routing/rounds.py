"""The rounds of a loop, votes, and the exceptions of routing.

    ResilienceError
    ├── NoRoute            no branch matches the value
    ├── NoQuorum           too few handlers gave the same answer
    ├── TooManyFailures    more items failed than allowed
    ├── NoProgress         several rounds in a row had the same state
    └── RoundsExhausted    `until` did not hold after the last allowed round

All of them can be pickled.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from prefect_resilience.base.plain import plain
from prefect_resilience.base.text import plural
from prefect_resilience.errors.context import ErrorContext
from prefect_resilience.errors.exceptions import ResilienceError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.errors.taxonomy import bounded
from prefect_resilience.graphs.conditions.compare import ConditionError, EvaluationBounds, equal
from prefect_resilience.graphs.conditions.evaluate import shown

if TYPE_CHECKING:
    from prefect_resilience.graphs.routing.edge.gathering import Outcome


T = TypeVar("T")

MOST_DETAILS = 50
"""The last rounds that an ErrorContext has."""

BRIEF = 1_000


@dataclass(frozen=True)
class Round(Generic[T]):
    """One round: its number from 1, the step's value, its mark of progress, and its seconds.

    `progress` is plain data. `steps` has the value of each step by name, if there are several.
    """

    number: int
    value: T | None = None
    progress: Any = None
    duration: float = 0.0
    error: ErrorContext | None = None
    steps: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Iteration(Generic[T]):
    """The result of a loop: the last round's value, the number of rounds, and each round.

    `steps` has the value of each step of the last round by name, if there are several.
    """

    value: T
    rounds: int
    iteration_history: tuple[Round[T], ...]

    @property
    def steps(self) -> Mapping[str, Any]:
        return self.iteration_history[-1].steps


def brief(value: Any, limit: int = BRIEF) -> str:
    """A value as JSON in at most `limit` characters, secrets masked."""
    text = json.dumps(plain(value, depth=20, items=limit), default=str, ensure_ascii=False)
    return bounded(redact(text), limit)


def history_details(rounds: Iterable[Round[Any]]) -> list[dict[str, Any]]:
    """The last rounds for an ErrorContext: texts of bounded length."""
    return [
        {
            "round": entry.number,
            "value": brief(entry.value),
            "progress": brief(entry.progress),
            "duration": round(entry.duration, 3),
            "error": None if entry.error is None else entry.error.summary(),
            **({"steps": {name: brief(value) for name, value in entry.steps.items()}} if entry.steps else {}),
        }
        for entry in list(rounds)[-MOST_DETAILS:]
    ]


STEPS = 5_000_000


def same(one: Any, other: Any, steps: int = STEPS) -> bool:
    """Whether two plain values are equal, with all their parts. Values too large to compare are different."""
    try:
        return equal(one, other, EvaluationBounds(steps=steps))
    except ConditionError:
        return False


@dataclass
class Vote:
    """One answer, the part of it that is compared, and the names of the handlers that gave it."""

    answer: Any
    mark: Any
    names: list[str] = field(default_factory=list[str])


@dataclass
class Votes:
    """The answers so far; `need` of them must have the same `key`, by default all of the answer."""

    need: int
    key: Callable[[Any], Any] | None = None
    given: list[Vote] = field(default_factory=list[Vote])
    errors: dict[str, str] = field(default_factory=dict[str, str])
    """The error of each failed handler in one line."""

    def add(self, name: str, answer: Any) -> None:
        """Count an answer. Raises any error of `key`."""
        mark = plain(answer if self.key is None else self.key(answer))
        vote = next((vote for vote in self.given if same(vote.mark, mark)), None)
        if vote is None:
            vote = Vote(answer, mark)
            self.given.append(vote)
        vote.names.append(name)

    @property
    def winner(self) -> Vote | None:
        return next((vote for vote in self.given if len(vote.names) >= self.need), None)

    def can_win(self, left: int) -> bool:
        """Whether `left` more answers may be enough."""
        return max((len(vote.names) for vote in self.given), default=0) + left >= self.need

    def failure(self) -> NoQuorum:
        votes: dict[str, tuple[str, ...]] = {}
        for vote in self.given:
            text = shown(vote.mark)
            votes[text] = (*votes.get(text, ()), *vote.names)
        return NoQuorum(self.need, votes, self.errors)


class NoRoute(ResilienceError):
    """No branch matches this value, and there is no `otherwise`. `branches` are the conditions."""

    error_category = "validation"

    def __init__(self, value: str, branches: tuple[str, ...]) -> None:
        self.value = value
        self.branches = branches
        super().__init__(
            f"no branch matches {value}: none of ({', '.join(branches)}) holds, and there is no otherwise"
        )


class NoQuorum(ResilienceError):
    """Fewer than `need` handlers gave the same answer.

    `votes` has each answer, shortened, with the names of its handlers. `errors` has the error of each failed
    handler in one line.
    """

    error_category = "subtask"

    def __init__(self, need: int, votes: dict[str, tuple[str, ...]], errors: dict[str, str]) -> None:
        self.need = need
        self.votes = votes
        self.errors = errors
        summaries = [f"{', '.join(names)} answered {answer}" for answer, names in votes.items()]
        summaries += [f"{name} failed ({error})" for name, error in errors.items()]
        super().__init__(
            f"fewer than {need} handlers gave the same answer: {'; '.join(summaries) or 'no answers'}"
        )


class TooManyFailures(ResilienceError):
    """More items failed than allowed: `failed` of `total`. `failures` has the first 100 of them."""

    error_category = "subtask"

    def __init__(self, failures: tuple[Outcome[Any], ...], failed: int, total: int, allowed: int) -> None:
        self.failures = failures
        self.failed = failed
        self.total = total
        self.allowed = allowed
        first = failures[0].error
        example = f"; first failed item {failures[0].name}: {first.summary()}" if first else ""
        super().__init__(f"{failed} of {total} items failed, but only {allowed} may fail{example}")


class _Halted(ResilienceError):
    """A loop that ended before `until` held. `iteration_history` includes its last round."""

    def __init__(self, message: str, rounds: int, value: Any, history: tuple[Round[Any], ...]) -> None:
        self.rounds = rounds
        self.value = value
        self.iteration_history = history
        super().__init__(message)


class NoProgress(_Halted):
    """Several rounds in a row had the same state. `rounds` were made; `value` is that of the last one."""

    error_category = "no_progress"

    def __init__(self, rounds: int, value: Any, history: tuple[Round[Any], ...], patience: int = 1) -> None:
        self.patience = patience
        last = "the last round" if patience == 1 else f"the last {patience} rounds"
        super().__init__(f"{last} of {rounds} changed nothing", rounds, value, history)


class RoundsExhausted(_Halted):
    """All allowed `rounds` were made and `until` never held. `value` is the value of the last round."""

    error_category = "resource_exhausted"

    def __init__(self, rounds: int, value: Any, history: tuple[Round[Any], ...]) -> None:
        super().__init__(f"until= did not hold after {plural(rounds, 'round')}", rounds, value, history)
