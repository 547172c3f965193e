"""The figures of a report, and how they are counted. Pure: no Prefect, no store, no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import inf

from pydantic import BaseModel, computed_field

from prefect_resilience.durable.letters.model import DeadLetter, Replay
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.budgets.model import BudgetStatus
from prefect_resilience.guards.circuits.model import CircuitEntered, CircuitSnapshot
from prefect_resilience.telemetry.model import strip_random_part


def share(part: int, whole: int) -> float | None:
    """`part / whole`; None if `whole` is 0."""
    return part / whole if whole else None


class RunFigures(BaseModel, frozen=True):
    """Task runs that ended in the period, by outcome.

    attempts: attempts that were made. `refused`: attempts that a circuit or a limit rejected. succeeded: the
    task itself succeeded, `recovered` of them after a failed attempt. fallbacks: a fallback was used
    (states Fallback and Degraded), `degraded` of them in state Degraded. replayed: the effect was already
    done. failed: failed for good, `timed_out` of them by their deadline. other: no attempt was needed, such
    as cached or skipped runs. retried: more than one attempt, made or rejected, with any outcome.
    attempts_of_successes: attempts that successful runs made.
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
    def attempts_until_success(self) -> float | None:
        """The mean number of attempts of successful runs."""
        return share(self.attempts_of_successes, self.succeeded)


class TaskFigures(RunFigures, frozen=True):
    """The figures of one task."""

    task: str


class FlowFigures(BaseModel, frozen=True):
    """Flow runs that ended in the period by their last state, and their failures before it.

    crashes, failures: crashes and failures of flow runs in the period, recovered or not; a crash that is
    reported twice counts once. recovered: flow runs that completed in the period after a failure or a
    crash; None: unknown. seconds_in_error: how long flow runs were failed or crashed in the period, until
    they ran again or until its end. recovery_time: the median of the seconds from the first failure or crash
    of a run to its completion. parked: how often a run parked for a long wait.
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
    recovery_time: float | None = None
    parked: int | None = 0


class ErrorFigures(BaseModel, frozen=True):
    """Failed attempts with one error code; `rate`: their share of all attempts."""

    code: str
    attempts: int
    rate: float | None


class CircuitFigures(BaseModel, frozen=True):
    """One circuit: its openings, the seconds of the period in which it rejected calls, and its present state.

    An opening ends with the next state, or when a probe was allowed: from then on no call is rejected.
    complete: False if earlier changes of the circuit are not known; then both figures are lower bounds.
    """

    name: str
    openings: int
    seconds_open: float
    state: str | None = None
    complete: bool = True


class LetterFigures(BaseModel, frozen=True):
    """Dead letters that were created in the period, by present status, and replays that ended in it.

    replays_succeeded: the call succeeded, or a fallback answered it. replays_not_made: no call was needed,
    because the effect was already done or the result was cached.
    """

    created: int = 0
    waiting: int = 0
    replaying: int = 0
    in_doubt: int = 0
    replayed: int = 0
    settled: int = 0
    replays_succeeded: int = 0
    replays_not_made: int = 0
    replays_failed: int = 0
    replays_in_doubt: int = 0


class EffectFigures(BaseModel, frozen=True):
    """replayed: effects that were already done and not repeated. in_doubt: those with an unknown outcome."""

    replayed: int = 0
    in_doubt: int | None = None


class FleetReport(BaseModel, frozen=True):
    """The figures of a fleet between `since` (inclusive) and `until`.

    errors, categories: failed attempts of resilient tasks by code and by category, the most frequent first,
    without rejected attempts. failed_attempts: their number. batches: recoveries of batches by outcome.
    unknown: figures that are unknown, and why.
    """

    since: datetime
    until: datetime
    task_runs: RunFigures
    tasks: tuple[TaskFigures, ...] = ()
    flow_runs: FlowFigures = FlowFigures()
    failed_attempts: int | None = None
    errors: tuple[ErrorFigures, ...] | None = None
    categories: dict[str, int] | None = None
    circuits: tuple[CircuitFigures, ...] | None = None
    dead_letters: LetterFigures | None = None
    effects: EffectFigures = EffectFigures()
    batches: dict[str, int] | None = None
    budgets: tuple[BudgetStatus, ...] | None = None
    unknown: tuple[str, ...] = ()


COMPLETED, FAILED, CRASHED, CANCELLED = "COMPLETED", "FAILED", "CRASHED", "CANCELLED"
FINAL = (COMPLETED, FAILED, CRASHED, CANCELLED)
FALLBACK, DEGRADED, REPLAYED, TIMED_OUT = "Fallback", "Degraded", "Replayed", "TimedOut"
SUBSTITUTES = (FALLBACK, DEGRADED)
UNMADE = ("Cached", "Skipped", "RolledBack")
"""Names of completed states of runs that made no attempt, or whose effect was rolled back."""
UNCALLED = ("Cached", "Skipped", REPLAYED)
"""Names of completed states of runs whose last start made no call, and so was no attempt."""


@dataclass(slots=True)
class Tally:
    """Counts by task."""

    by_task: dict[str, Counter[str]] = field(default_factory=dict[str, "Counter[str]"])
    elsewhere: Counter[str] = field(default_factory=Counter[str])
    retried_successes: list[str] = field(default_factory=list[str])
    """The ids of these runs."""

    def add(self, task: str, kind: str, state: str, attempts: int, run_id: str = "") -> None:
        """Add a run that has ended."""
        outcome = _outcome_of(kind, state, attempts)
        retried = int(attempts > 1)
        counts = self.by_task.setdefault(task, Counter())
        calls = attempts - (kind == COMPLETED and state in UNCALLED and attempts > 0)
        counts.update({"runs": 1, "attempts": calls, "retried": retried, outcome: 1})
        if outcome == "succeeded":
            counts.update(attempts_of_successes=attempts, recovered=retried)
            self.retried_successes += [run_id] * retried
        elif state in DETAILS:
            counts[DETAILS[state]] += 1

    def refuse(self, task: str, attempts: int, *, of_successes: int = 0) -> None:
        """Subtract rejected attempts, which the run counts of Prefect include."""
        # Runs with a custom name are counted under the name of their function.
        counts = self.by_task.get(task, self.elsewhere)
        counts.update(refused=attempts, attempts=-attempts, attempts_of_successes=-of_successes)

    def tasks(self) -> tuple[TaskFigures, ...]:
        """Tasks with the most retried, failed and fallback runs first."""
        tasks = [TaskFigures(task=task, **_positive(counts)) for task, counts in self.by_task.items()]
        return tuple(sorted(tasks, key=lambda task: (-_trouble(task), -task.runs, task.task)))

    def total(self) -> RunFigures:
        return RunFigures(**_positive(sum(self.by_task.values(), Counter(self.elsewhere))))


DETAILS = {TIMED_OUT: "timed_out", DEGRADED: "degraded"}
"""States that are counted beside the outcome that includes them."""


def _outcome_of(kind: str, state: str, attempts: int) -> str:
    if kind != COMPLETED:
        return kind.lower()
    if state in SUBSTITUTES:
        return "fallbacks"
    if state == REPLAYED:
        return "replayed"
    return "succeeded" if attempts and state not in UNMADE else "other"


def _positive(counts: Counter[str]) -> dict[str, int]:
    """Never negative: rejected attempts may belong to a run that has not ended yet."""
    return {name: max(0, number) for name, number in counts.items()}


def _trouble(figures: RunFigures) -> int:
    return figures.retried + figures.fallbacks + figures.failed + figures.crashed


def task_of(name: str, task_key: str, dynamic_key: str) -> str:
    """The name of a run's task if the run's name has it, else the name of its function.

    By default Prefect names a run after its task and the start of its dynamic key.
    """
    stable = strip_random_part(name, dynamic_key)
    if stable != name:
        return stable
    return name if dynamic_key.startswith(f"{task_key}-") else function_of(task_key)


def function_of(task_key: str) -> str:
    """The function in a task's key, which is the qualified name with a digest of the source."""
    name, _, digest = task_key.rpartition("-")
    return name if name and len(digest) == 8 else task_key


def errors_of(by_code: Counter[str], attempts: int) -> tuple[ErrorFigures, ...]:
    """Failed attempts by code, the most frequent first."""
    return tuple(
        ErrorFigures(code=code, attempts=number, rate=share(number, attempts))
        for code, number in by_code.most_common()
    )


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
    return "not_made" if replay.message in (*UNMADE, REPLAYED) else "succeeded"


# -- how often circuits opened, and how long they rejected calls
#
# A circuit's document has its latest changes, with their times. Events of runs count earlier openings, too.

REJECTING = ("open", "forced_open")
FIRST = 2
"""The generation of the first change. A document begins with generation 1, closed."""


def circuits_of(
    openings: Mapping[str, int], documents: Iterable[CircuitSnapshot], since: float, until: float
) -> tuple[CircuitFigures, ...]:
    """The figures of every circuit that opened or is not closed. `openings`: how many have an event."""
    figures: list[CircuitFigures] = []
    # Events have redacted names, because a name may contain a parameter.
    snapshots = {redact(snapshot.name): snapshot for snapshot in documents}
    for name in openings.keys() | snapshots.keys():
        snapshot = snapshots.get(name, CircuitSnapshot(name=name))
        number, seconds = _rejections(snapshot.history, since, until)
        begins = [change for change in snapshot.history if change.generation == FIRST or change.at <= since]
        circuit = CircuitFigures(
            name=name,
            openings=max(number, openings.get(name, 0)),
            seconds_open=seconds,
            state=snapshot.state if name in snapshots else None,
            complete=number >= openings.get(name, 0) and bool(begins or not snapshot.history),
        )
        if circuit.openings or seconds or circuit.state not in (None, "closed") or not circuit.complete:
            figures.append(circuit)
    return tuple(
        sorted(figures, key=lambda circuit: (-circuit.openings, -circuit.seconds_open, circuit.name))
    )


def _rejections(history: Sequence[CircuitEntered], since: float, until: float) -> tuple[int, float]:
    """The openings in the period, and the seconds of it in which calls were rejected."""
    openings, seconds = 0, 0.0
    for last, change, later in zip((None, *history), history, (*history[1:], None), strict=False):
        if change.state not in REJECTING:
            continue
        # Before the first change that is known, the circuit may have been open.
        is_opening = last.state not in REJECTING if last else change.generation == FIRST
        openings += is_opening and since <= change.at < until
        end = min(inf if change.retry_at is None else change.retry_at, later.at if later else inf, until)
        seconds += max(0.0, end - max(change.at, since))
    return openings, seconds
