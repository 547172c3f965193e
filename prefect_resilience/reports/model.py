"""The fleet report as data. A number is None where nobody can know it; `unknown` then says why."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, computed_field

from prefect_resilience.budgets.model import BudgetStatus


class _Figures(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)


def share(part: int, whole: int) -> float | None:
    """`part` of `whole`; None of nothing."""
    return part / whole if whole else None


class RunFigures(_Figures):
    """Task runs that ended in the period, and what became of them.

    succeeded: the task itself answered, `recovered` of them after a failed attempt. fallbacks: another one
    answered (the states Fallback and Degraded), `degraded` of them with less. replayed: an effect was done
    already. failed: for good, `timed_out` of them by their deadline. other: answered without an attempt, such
    as from a cache, or skipped. retried: had more than one attempt, however they ended.
    """

    runs: int = 0
    attempts: int = 0
    succeeded: int = 0
    retried: int = 0
    recovered: int = 0
    fallbacks: int = 0
    degraded: int = 0
    replayed: int = 0
    failed: int = 0
    timed_out: int = 0
    crashed: int = 0
    cancelled: int = 0
    other: int = 0
    attempts_of_successes: int = 0

    @computed_field
    @property
    def retry_rate(self) -> float | None:
        """The share of the runs that had more than one attempt."""
        return share(self.retried, self.runs)

    @computed_field
    @property
    def failure_rate(self) -> float | None:
        """The share of the runs that failed or crashed."""
        return share(self.failed + self.crashed, self.runs)

    @computed_field
    @property
    def recovery_rate(self) -> float | None:
        """The share of the retried runs in which the task itself answered in the end."""
        return share(self.recovered, self.retried)

    @computed_field
    @property
    def attempts_until_success(self) -> float | None:
        """The mean number of attempts of those that succeeded."""
        return share(self.attempts_of_successes, self.succeeded)


class TaskFigures(RunFigures):
    """The same of one task."""

    task: str


class FlowFigures(_Figures):
    """Flow runs that ended in the period."""

    runs: int = 0
    completed: int = 0
    failed: int = 0
    crashed: int = 0
    cancelled: int = 0


class Spread(_Figures):
    """How durations in seconds are spread; percentiles by the nearest rank."""

    count: int
    mean: float
    median: float
    p95: float
    longest: float


class ErrorFigures(_Figures):
    """Attempts that failed with one code; `rate` is their share of all attempts."""

    code: str
    attempts: int
    rate: float | None


class CircuitFigures(_Figures):
    """One circuit: how often it opened, for how many seconds of the period it was open, its state now."""

    name: str
    openings: int | None
    seconds_open: float | None
    state: str | None = None


class LetterFigures(_Figures):
    """Dead letters that came in during the period, how they stand now, and replays that ended in it."""

    created: int = 0
    waiting: int = 0
    replaying: int = 0
    in_doubt: int = 0
    replayed: int = 0
    replays_succeeded: int = 0
    replays_failed: int = 0


class EffectFigures(_Figures):
    """Effects that were found done and not done again; those of which nobody knew whether they took place."""

    replayed: int = 0
    in_doubt: int | None = None


class FleetReport(_Figures):
    """What happened to a fleet between `since` (inclusive) and `until`.

    errors: failed attempts of resilient tasks by code, categories: by category, both the most frequent first;
    failed_attempts: their number, timeouts: those of category timeout. recovery_time: from the start of a
    run's first attempt to its success, of the runs that recovered. batches: recoveries by what they came to.
    unknown: what cannot be known, and why. sources: where each number comes from.
    """

    since: datetime
    until: datetime
    made_at: datetime
    task_runs: RunFigures
    tasks: tuple[TaskFigures, ...] = ()
    flow_runs: FlowFigures = FlowFigures()
    recovery_time: Spread | None = None
    failed_attempts: int | None = None
    timeouts: int | None = None
    errors: tuple[ErrorFigures, ...] | None = None
    categories: dict[str, int] | None = None
    circuits: tuple[CircuitFigures, ...] | None = None
    dead_letters: LetterFigures | None = None
    effects: EffectFigures = EffectFigures()
    batches: dict[str, int] | None = None
    budgets: tuple[BudgetStatus, ...] | None = None
    unknown: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
