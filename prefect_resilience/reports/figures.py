"""Figures from runs, changes and letters. Pure: no Prefect, no store, no clock."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from prefect_resilience.circuits.model import CircuitSnapshot
from prefect_resilience.dead_letters.model import DeadLetter
from prefect_resilience.errors.redact import redact
from prefect_resilience.reports.model import (
    CircuitFigures,
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

REFUSING = ("open", "forced_open")


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

    def tasks(self) -> tuple[TaskFigures, ...]:
        """Those in trouble first: by runs that were retried, replaced or failed."""
        made = [TaskFigures(task=task, **counts) for task, counts in self.by_task.items()]
        return tuple(sorted(made, key=lambda one: (-_trouble(one), -one.runs, one.task)))

    def total(self) -> RunFigures:
        counts: Counter[str] = Counter()
        for one in self.by_task.values():
            counts.update(one)
        return RunFigures(**counts)


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


# -- circuits


@dataclass(frozen=True, slots=True)
class StateChange:
    """A circuit changed its state; `at` is in seconds since the epoch."""

    circuit: str
    at: float
    before: str
    after: str


def circuits_of(
    changes: Iterable[StateChange], now: Iterable[CircuitSnapshot], since: float, until: float
) -> tuple[CircuitFigures, ...]:
    """Openings and the time in which calls were refused, of every circuit that changed or is not closed."""
    by_name: dict[str, list[StateChange]] = {}
    for change in sorted(changes, key=lambda one: one.at):
        by_name.setdefault(change.circuit, []).append(change)
    # As the events call them: a name may be made of a parameter.
    snapshots = {redact(snapshot.name): snapshot for snapshot in now}
    shown = by_name.keys() | {name for name, snapshot in snapshots.items() if snapshot.state != "closed"}
    made = [_circuit(name, by_name.get(name, []), snapshots.get(name), since, until) for name in shown]
    return tuple(sorted(made, key=lambda one: (-(one.openings or 0), -(one.seconds_open or 0), one.name)))


def _circuit(
    name: str, changes: list[StateChange], now: CircuitSnapshot | None, since: float, until: float
) -> CircuitFigures:
    return CircuitFigures(
        name=name,
        openings=sum(change.after in REFUSING and change.before not in REFUSING for change in changes),
        seconds_open=open_for(changes, now, since, until),
        state=now.state if now else None,
    )


def open_for(changes: list[StateChange], now: CircuitSnapshot | None, since: float, until: float) -> float:
    """Seconds of the period in which a circuit was open, from its changes in their order.

    Without any, the circuit has been as it is now, or was before the period.
    """
    if not changes:
        if now is None or now.state not in REFUSING:
            return 0.0
        begun = now.opened_at if now.opened_at is not None else now.updated_at
        return max(0.0, until - max(since, begun))
    total, opened = 0.0, since if changes[0].before in REFUSING else None
    for change in changes:
        at = min(max(change.at, since), until)
        if opened is not None and change.after not in REFUSING:
            total, opened = total + at - opened, None
        elif opened is None and change.after in REFUSING:
            opened = at
    return total if opened is None else total + until - opened


# -- dead letters


def letters_of(letters: Iterable[DeadLetter], since: datetime, until: datetime) -> LetterFigures:
    """Those that came in during the period by their status, and the replays that ended in it."""
    counts: Counter[str] = Counter()
    for letter in letters:
        if since <= letter.created_at < until:
            counts.update(("created", letter.status))
        for replay in letter.replays:
            if since <= replay.finished_at < until:
                counts["replays_succeeded" if replay.outcome == "replayed" else "replays_failed"] += 1
    return LetterFigures(**counts)
