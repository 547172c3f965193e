"""Figures from runs, changes and letters. Pure: no Prefect, no store, no clock."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from prefect_resilience.durable.letters.model import DeadLetter, Replay
from prefect_resilience.durable.letters.report import RUN_CREATED
from prefect_resilience.operations.reports.model import (
    ErrorFigures,
    LetterFigures,
    RunFigures,
    Spread,
    TaskFigures,
    share,
)

COMPLETED, FAILED, CRASHED, CANCELLED = "COMPLETED", "FAILED", "CRASHED", "CANCELLED"
FINAL = (COMPLETED, FAILED, CRASHED, CANCELLED)
FALLBACK, DEGRADED, REPLAYED, TIMED_OUT = "Fallback", "Degraded", "Replayed", "TimedOut"
SUBSTITUTES = (FALLBACK, DEGRADED)
UNMADE = ("Cached", "Skipped", "RolledBack")
"""Names of green states of runs that made no attempt, or took it back."""


@dataclass(frozen=True, slots=True)
class Run:
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

    def add(self, run: Run) -> None:
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


def _counts_of(run: Run) -> dict[str, int]:
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
