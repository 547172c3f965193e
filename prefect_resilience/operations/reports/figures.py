"""Figures from runs, changes and letters. Pure: no Prefect, no store, no clock."""

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


class _Figures(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)


def share(part: int, whole: int) -> float | None:
    """`part` of `whole`; None of nothing."""
    return part / whole if whole else None


class RunFigures(_Figures):
    """Task runs that ended in the period, and what became of them.

    attempts: those that were made; refused: those that a circuit or a limit did not let through. succeeded:
    the task itself answered, `recovered` of them after a failed attempt. fallbacks: another one answered (the
    states Fallback and Degraded), `degraded` of them with less. replayed: an effect was done already. failed:
    for good, `timed_out` of them by their deadline. other: answered without an attempt, such as from a cache,
    or skipped. retried: were tried more than once, however they ended and whether they were refused.
    attempts_of_successes counts refused ones, too: what they cost is the wait.
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
        """The share of the runs that were tried more than once."""
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
        """The mean number of tries of those that succeeded."""
        return share(self.attempts_of_successes, self.succeeded)


class TaskFigures(RunFigures):
    """The same of one task."""

    task: str


class Spread(_Figures):
    """How durations in seconds are spread; percentiles by the nearest rank."""

    count: int
    mean: float
    median: float
    p95: float
    longest: float


class BadEnd(_Figures):
    """One time that a flow run failed or crashed, and what came of it.

    kind: "FAILED" or "CRASHED", state: the name of the state. again_at: when it was made to run again, `by`
    what that state says of it. completed_at: when it then completed; None where it did not, or ended badly
    once more. seconds: how long it stood there, as far as that is in the period.
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
    """Flow runs that ended in the period by their last state, and what happened to them on the way there.

    crashes, failures: how often a flow run crashed or failed in the period, whatever came of it; a crash that
    is reported twice is one. recovered: flow runs that completed in it after they had ended badly; None: what
    came of them is unknown. seconds_in_error: how long flow runs stood failed or crashed in the period until
    they ran again, or until its end. recovery_time: from the first bad end of a run to its completion.
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
    """Attempts that were made and failed with one code; `rate` is their share of all attempts."""

    code: str
    attempts: int
    rate: float | None


class CircuitFigures(_Figures):
    """One circuit: how often it opened, for how many seconds of the period it refused calls, its state now.

    An opening lasts until something ended it, or until a probe might have been made: nobody was refused
    after that. complete: False where changes of it are missing; then both are the least that is known.
    """

    name: str
    openings: int
    seconds_open: float
    state: str | None = None
    complete: bool = True


class LetterFigures(_Figures):
    """Dead letters that came in during the period, how they stand now, and replays that ended in it.

    replays_succeeded: the call answered itself; replays_answered: a fallback did. replays_started: a run of
    the letter's deployment was created, which counts for itself. replays_not_made: nothing was called, since
    an effect was done already or a result was cached. skipped: letters that a replay left alone, as of a run
    that goes on; None: unknown.
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
    """Effects that were found done and not done again; those of which nobody knew whether they took place."""

    replayed: int = 0
    in_doubt: int | None = None


class FleetReport(_Figures):
    """What happened to a fleet between `since` (inclusive) and `until`.

    errors: failed attempts of resilient tasks by code, categories: by category, both the most frequent first,
    without those that were refused; failed_attempts: their number, timeouts: those of category timeout.
    recovery_time: from the start of a task run's first attempt to its success, of those that recovered.
    bad_ends: each time that a flow run failed or crashed in the period, or had before it and completed or ran
    again in it, the latest first. batches: recoveries by what they came to.
    unknown: what cannot be known, and why. sources: where each number comes from.
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
"""Names of green states of runs that made no attempt, or took it back."""


@dataclass(frozen=True, slots=True)
class CountedTaskRun:
    """A task run that has ended; `seconds` from the start of its first attempt to its end."""

    task: str
    type: str
    name: str
    attempts: int
    seconds: float | None = None

    @property
    def succeeded(self) -> bool:
        """Whether the task itself answered."""
        return (
            self.type == COMPLETED
            and self.attempts > 0
            and self.name not in (*SUBSTITUTES, *UNMADE, REPLAYED)
        )


@dataclass(slots=True)
class Tally:
    """Figures by task, growing run by run."""

    by_task: dict[str, Counter[str]] = field(default_factory=dict[str, "Counter[str]"])
    recoveries: list[float] = field(default_factory=list[float])
    elsewhere: Counter[str] = field(default_factory=Counter[str])

    def add(self, run: CountedTaskRun) -> None:
        counts = self.by_task.setdefault(run.task, Counter())
        counts.update(_counts_of(run))
        if run.succeeded and run.attempts > 1 and run.seconds is not None:
            self.recoveries.append(run.seconds)

    def add_plain(self, task: str, runs: int) -> None:
        """So many runs whose first attempt went well."""
        counts = self.by_task.setdefault(task, Counter())
        for name in ("runs", "attempts", "succeeded", "attempts_of_successes"):
            counts[name] += runs

    def refuse(self, task: str, attempts: int) -> None:
        """So many attempts of a task were not made: its runs have them among their attempts."""
        # Runs with names of their own are told by their function, and stand under that.
        counts = self.by_task.get(task, self.elsewhere)
        counts["refused"] += attempts
        counts["attempts"] -= attempts

    def tasks(self) -> tuple[TaskFigures, ...]:
        """Those in trouble first: by runs that were retried, replaced or failed."""
        made = [TaskFigures(task=task, **_whole(counts)) for task, counts in self.by_task.items()]
        return tuple(sorted(made, key=lambda one: (-_trouble(one), -one.runs, one.task)))

    def total(self) -> RunFigures:
        counts = Counter(self.elsewhere)
        for one in self.by_task.values():
            counts.update(one)
        return RunFigures(**_whole(counts))


def _whole(counts: Counter[str]) -> dict[str, int]:
    """No less than none: attempts of a run that goes on may have been refused in the period."""
    return {name: max(0, number) for name, number in counts.items()}


def _counts_of(run: CountedTaskRun) -> dict[str, int]:
    made = {"runs": 1, "attempts": run.attempts, "retried": int(run.attempts > 1)}
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
    """What the task of a run is called, as far as its name says so, else its function.

    Prefect names a run after its task and the start of its dynamic key, unless it was given a name.
    """
    for ending in (f"-{dynamic_key}", f"-{dynamic_key[:3]}"):
        if len(ending) > 1 and name.endswith(ending) and len(name) > len(ending):
            return name[: -len(ending)]
    return name if dynamic_key.startswith(f"{task_key}-") else function_of(task_key)


def function_of(task_key: str) -> str:
    """The function in a task's key, which is its qualified name with a digest of its source."""
    name, _, digest = task_key.rpartition("-")
    return name if name and len(digest) == 8 else task_key


def spread_of(seconds: Sequence[float]) -> Spread | None:
    """How durations are spread; None of none."""
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
    """Those that came in during the period by their status, and the replays that ended in it."""
    counts: Counter[str] = Counter()
    for letter in letters:
        if since <= letter.created_at < until:
            counts.update(("created", letter.status))
        for replay in letter.replays:
            if since <= replay.finished_at < until:
                counts[f"replays_{_ending(replay)}"] += 1
    return LetterFigures(**counts)


def _ending(replay: Replay) -> str:
    """What a replay came to; `message` of one that went well is the name of its run's state."""
    if replay.outcome != "replayed":
        return replay.outcome
    if replay.message.startswith(RUN_CREATED):
        return "started"
    if replay.message in (*UNMADE, REPLAYED):
        return "not_made"
    return "answered" if replay.message in SUBSTITUTES else "succeeded"
