"""The figures of a report, and how they are counted. Pure: no Prefect, no store, no clock."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, computed_field

from prefect_resilience.durable.letters.model import DeadLetter, Replay
from prefect_resilience.durable.letters.report import RUN_CREATED
from prefect_resilience.guards.budgets.model import BudgetStatus
from prefect_resilience.telemetry.model import cut_random_part


class _Figures(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)


def share(part: int, whole: int) -> float | None:
    """`part / whole`; None if `whole` is 0."""
    return part / whole if whole else None


class RunFigures(_Figures):
    """Task runs that ended in the period, by outcome.

    attempts: attempts that were made. `refused`: attempts that a circuit or a limit rejected. succeeded: the
    task itself succeeded, `recovered` of them after a failed attempt. fallbacks: a fallback was used
    (states Fallback and Degraded), `degraded` of them in state Degraded. replayed: the effect was already
    done. failed: failed for good, `timed_out` of them by their deadline. other: no attempt was needed, such
    as cached or skipped runs. retried: more than one attempt, made or rejected, with any outcome.
    attempts_of_successes: attempts of successful runs, rejected ones included.
    """

    runs: int = 0
    attempts: int = 0
    refused: int = 0
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
        """The share of the runs with more than one attempt."""
        return share(self.retried, self.runs)

    @computed_field
    @property
    def failure_rate(self) -> float | None:
        """The share of the runs that failed or crashed."""
        return share(self.failed + self.crashed, self.runs)

    @computed_field
    @property
    def recovery_rate(self) -> float | None:
        """The share of the retried runs that succeeded without a fallback."""
        return share(self.recovered, self.retried)

    @computed_field
    @property
    def attempts_until_success(self) -> float | None:
        """The mean number of attempts of successful runs."""
        return share(self.attempts_of_successes, self.succeeded)


class TaskFigures(RunFigures):
    """The figures of one task."""

    task: str


class Spread(_Figures):
    """The distribution of durations in seconds; percentiles by nearest rank."""

    count: int
    mean: float
    median: float
    p95: float
    longest: float


class BadEnd(_Figures):
    """One failure or crash of a flow run, and its recovery.

    kind: "FAILED" or "CRASHED". state: the name of the state. again_at: when the run was scheduled again.
    by: the message of that state. completed_at: when the run then completed; None if it did not, or failed
    again. seconds: how long it was failed or crashed in the period.
    """

    flow_run_id: str
    flow_run: str
    kind: str
    state: str
    at: datetime
    again_at: datetime | None = None
    by: str | None = None
    completed_at: datetime | None = None
    seconds: float = 0.0


class FlowFigures(_Figures):
    """Flow runs that ended in the period by their last state, and their failures before it.

    crashes, failures: crashes and failures of flow runs in the period, recovered or not; a crash that is
    reported twice counts once. recovered: flow runs that completed in the period after a failure or a
    crash; None: unknown. seconds_in_error: how long flow runs were failed or crashed in the period, until
    they ran again or until its end. recovery_time: from the first failure or crash of a run to its
    completion.
    """

    runs: int = 0
    completed: int = 0
    failed: int = 0
    crashed: int = 0
    cancelled: int = 0
    crashes: int | None = None
    failures: int | None = None
    recovered: int | None = None
    seconds_in_error: float | None = None
    recovery_time: Spread | None = None


class ErrorFigures(_Figures):
    """Failed attempts with one error code; `rate`: their share of all attempts."""

    code: str
    attempts: int
    rate: float | None


class CircuitFigures(_Figures):
    """One circuit: its openings, the seconds of the period in which it rejected calls, and its present state.

    An opening ends with the next state, or when a probe was allowed: from then on no call is rejected.
    complete: False if changes of the circuit are missing; then both figures are lower bounds.
    """

    name: str
    openings: int
    seconds_open: float
    state: str | None = None
    complete: bool = True


class LetterFigures(_Figures):
    """Dead letters that were created in the period, by present status, and replays that ended in it.

    replays_succeeded: the call succeeded. replays_answered: a fallback was used. replays_started: a run of
    the letter's deployment was created, which is counted as a run. replays_not_made: no call was needed,
    because the effect was already done or the result was cached. skipped: letters that a replay skipped,
    such as those of a running flow run; None: unknown.
    """

    created: int = 0
    waiting: int = 0
    replaying: int = 0
    in_doubt: int = 0
    replayed: int = 0
    settled: int = 0
    replays_succeeded: int = 0
    replays_answered: int = 0
    replays_started: int = 0
    replays_not_made: int = 0
    replays_failed: int = 0
    replays_in_doubt: int = 0
    skipped: int | None = None


class EffectFigures(_Figures):
    """replayed: effects that were already done and not repeated. in_doubt: those with an unknown outcome."""

    replayed: int = 0
    in_doubt: int | None = None


class FleetReport(_Figures):
    """The figures of a fleet between `since` (inclusive) and `until`.

    errors, categories: failed attempts of resilient tasks by code and by category, the most frequent first,
    without rejected attempts. failed_attempts: their number. timeouts: those of category timeout.
    recovery_time: from the start of the first attempt to the success, for recovered task runs.
    bad_ends: failures and crashes of flow runs that happened, or were recovered, in the period; the latest
    first. batches: recoveries of batches by outcome.
    unknown: figures that are unknown, and why. sources: the source of each figure.
    """

    since: datetime
    until: datetime
    made_at: datetime
    task_runs: RunFigures
    tasks: tuple[TaskFigures, ...] = ()
    flow_runs: FlowFigures = FlowFigures()
    bad_ends: tuple[BadEnd, ...] | None = None
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


COMPLETED, FAILED, CRASHED, CANCELLED = "COMPLETED", "FAILED", "CRASHED", "CANCELLED"
FINAL = (COMPLETED, FAILED, CRASHED, CANCELLED)
FALLBACK, DEGRADED, REPLAYED, TIMED_OUT = "Fallback", "Degraded", "Replayed", "TimedOut"
SUBSTITUTES = (FALLBACK, DEGRADED)
UNMADE = ("Cached", "Skipped", "RolledBack")
"""Names of completed states of runs that made no attempt, or whose effect was rolled back."""


UNCALLED = ("Cached", "Skipped", REPLAYED)
"""Those of them whose last start made no call, and so was no attempt."""


@dataclass(frozen=True, slots=True)
class CountedTaskRun:
    """A task run that has ended. `seconds`: from the start of its first attempt to its end."""

    task: str
    type: str
    name: str
    attempts: int
    seconds: float | None = None

    @property
    def succeeded(self) -> bool:
        """Whether the task itself succeeded, without a fallback."""
        return (
            self.type == COMPLETED
            and self.attempts > 0
            and self.name not in (*SUBSTITUTES, *UNMADE, REPLAYED)
        )


@dataclass(slots=True)
class Tally:
    """Counts by task."""

    by_task: dict[str, Counter[str]] = field(default_factory=dict[str, "Counter[str]"])
    recoveries: list[float] = field(default_factory=list[float])
    elsewhere: Counter[str] = field(default_factory=Counter[str])

    def add(self, run: CountedTaskRun) -> None:
        counts = self.by_task.setdefault(run.task, Counter())
        counts.update(_counts_of(run))
        if run.succeeded and run.attempts > 1 and run.seconds is not None:
            self.recoveries.append(run.seconds)

    def add_plain(self, task: str, runs: int) -> None:
        """Add `runs` task runs that succeeded at the first attempt."""
        counts = self.by_task.setdefault(task, Counter())
        for name in ("runs", "attempts", "succeeded", "attempts_of_successes"):
            counts[name] += runs

    def refuse(self, task: str, attempts: int) -> None:
        """Subtract rejected attempts, which the run counts of Prefect include."""
        # Runs with a custom name are counted under the name of their function.
        counts = self.by_task.get(task, self.elsewhere)
        counts["refused"] += attempts
        counts["attempts"] -= attempts

    def tasks(self) -> tuple[TaskFigures, ...]:
        """Tasks with the most retried, failed and fallback runs first."""
        made = [TaskFigures(task=task, **_whole(counts)) for task, counts in self.by_task.items()]
        return tuple(sorted(made, key=lambda one: (-_trouble(one), -one.runs, one.task)))

    def total(self) -> RunFigures:
        counts = Counter(self.elsewhere)
        for one in self.by_task.values():
            counts.update(one)
        return RunFigures(**_whole(counts))


def _whole(counts: Counter[str]) -> dict[str, int]:
    """Never negative: rejected attempts may belong to a run that has not ended yet."""
    return {name: max(0, number) for name, number in counts.items()}


def _counts_of(run: CountedTaskRun) -> dict[str, int]:
    # A result that was there already ends the last start of a run, without a call.
    uncalled = int(run.type == COMPLETED and run.name in UNCALLED and run.attempts > 0)
    made = {"runs": 1, "attempts": run.attempts - uncalled, "retried": int(run.attempts > 1)}
    if run.succeeded:
        success = {"succeeded": 1, "attempts_of_successes": run.attempts}
        return {**made, **success, "recovered": int(run.attempts > 1)}
    if run.type == FAILED:
        return {**made, "failed": 1, "timed_out": int(run.name == TIMED_OUT)}
    if run.type in (CRASHED, CANCELLED):
        return {**made, run.type.lower(): 1}
    if run.name in SUBSTITUTES:
        return {**made, "fallbacks": 1, "degraded": int(run.name == DEGRADED)}
    return {**made, "replayed" if run.name == REPLAYED else "other": 1}


def _trouble(one: RunFigures) -> int:
    return one.retried + one.fallbacks + one.failed + one.crashed


def task_of(name: str, task_key: str, dynamic_key: str) -> str:
    """The name of a run's task if the run's name has it, else the name of its function.

    By default Prefect names a run after its task and the start of its dynamic key.
    """
    stable = cut_random_part(name, dynamic_key)
    if stable != name:
        return stable
    return name if dynamic_key.startswith(f"{task_key}-") else function_of(task_key)


def function_of(task_key: str) -> str:
    """The function in a task's key, which is the qualified name with a digest of the source."""
    name, _, digest = task_key.rpartition("-")
    return name if name and len(digest) == 8 else task_key


def spread_of(seconds: Sequence[float]) -> Spread | None:
    """The distribution of durations; None if there are none."""
    if not seconds:
        return None
    ordered = sorted(seconds)
    return Spread(
        count=len(ordered),
        mean=math.fsum(ordered) / len(ordered),
        median=_percentile(ordered, 0.5),
        p95=_percentile(ordered, 0.95),
        longest=ordered[-1],
    )


def _percentile(ordered: Sequence[float], part: float) -> float:
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


def errors_of(by_code: dict[str, int], attempts: int) -> tuple[ErrorFigures, ...]:
    """Failed attempts by code, the most frequent first."""
    made = (ErrorFigures(code=code, attempts=n, rate=share(n, attempts)) for code, n in by_code.items())
    return tuple(sorted(made, key=lambda one: (-one.attempts, one.code)))


# -- dead letters


def letters_of(letters: Iterable[DeadLetter], since: datetime, until: datetime) -> LetterFigures:
    """Count letters created in the period by status, and replays that ended in it."""
    counts: Counter[str] = Counter()
    for letter in letters:
        if since <= letter.created_at < until:
            counts.update(("created", letter.status))
        for replay in letter.replays:
            if since <= replay.finished_at < until:
                counts[f"replays_{_ending(replay)}"] += 1
    return LetterFigures(**counts)


def _ending(replay: Replay) -> str:
    """The outcome of a replay. The `message` of a successful one is the name of its run's state."""
    if replay.outcome != "replayed":
        return replay.outcome
    if replay.message.startswith(RUN_CREATED):
        return "started"
    if replay.message in (*UNMADE, REPLAYED):
        return "not_made"
    return "answered" if replay.message in SUBSTITUTES else "succeeded"
