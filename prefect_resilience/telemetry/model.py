"""The data of a summary, from the notes of this process or from the Prefect API. Pure.

Times are seconds since the epoch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

RETRIES = frozenset({"AwaitingRetry", "Retrying"})
REPLACED = frozenset({"Fallback", "Degraded"})
REPLAYED = "Replayed"
UNCALLED = frozenset({"Cached", "Skipped", REPLAYED})
ENDED_BADLY = frozenset({"FAILED", "CRASHED", "CANCELLED", "CANCELLING"})
FINAL = frozenset({"COMPLETED", "FAILED", "CRASHED", "CANCELLED"})

Outcome = Literal["ok", "replaced", "replayed", "failed", "crashed", "running", "pending"]
"""The outcome of a task run; `running` and `pending` ones did not end, or did not begin."""
OUTCOMES_BY_NAME: dict[str, Outcome] = {
    **{"Fallback": "replaced", "Degraded": "replaced", REPLAYED: "replayed"},
    "Parked": "pending",  # it runs anew in a later pass
}
OUTCOMES: dict[str, Outcome] = {
    **dict.fromkeys(ENDED_BADLY, "failed"),
    **{"COMPLETED": "ok", "CRASHED": "crashed", "PENDING": "pending"},
}

REMARKABLE_HAPPENINGS = frozenset(
    {
        "retry.scheduled",
        "fallback.used",
        "run.degraded",
        "run.failed",
        "effect.replayed",
        "effect.in-doubt",
        "circuit.opened",
        "circuit.half-opened",
        "circuit.closed",
        "circuit.forced",
        "dead-letter.created",
        "store.unavailable",
        "budget.burned",
        "cap.reached",
        "calls.counted",
    }
)
"""A run without any of these events is a quiet run."""

MOST_OF_A_KIND = 300
"""The most events of each name that are kept for one pass."""
CALLS_COUNTED = "calls.counted"
CALL_COUNTS = ("calls", "attempts", "rejected", "fallbacks", "failures", "waited")
"""The totals of a function's guarded calls: calls that ended, attempts, rejected attempts, calls that a
fallback answered, calls that failed, and seconds of delays."""


def strip_random_part(name: str, dynamic_key: str) -> str:
    """A task run's name without the part of its key with which Prefect ends a name that it makes."""
    for ending in (f"-{dynamic_key}", f"-{dynamic_key[:3]}"):
        if len(ending) > 1 and name.endswith(ending) and len(name) > len(ending):
            return name[: -len(ending)]
    return name


def outcome_of(kind: str, name: str) -> Outcome:
    """The outcome of a task run, from the type and the name of its last state."""
    return OUTCOMES_BY_NAME.get(name) or OUTCOMES.get(kind, "running")


@dataclass(frozen=True, slots=True)
class StateSeen:
    """One state of a task run, and when the task run entered it."""

    type: str
    name: str
    at: float
    message: str = ""

    @property
    def remarkable(self) -> bool:
        return self.type in ENDED_BADLY or self.name in RETRIES | REPLACED or self.name == REPLAYED


@dataclass(frozen=True, slots=True)
class Happening:
    """An event of this package: `name` without the prefix, and `subject`, the name of its resource."""

    id: str
    at: float
    name: str
    subject: str
    payload: Mapping[str, Any]


@dataclass(slots=True)
class TaskRunSeen:
    """One task run with its states, the first one first. `begun` is the number of its starts, for when not
    all states are known; `rejected` is how many of its calls a circuit or a limit rejected."""

    id: str
    name: str
    flow_run_id: str
    states: list[StateSeen] = field(default_factory=list[StateSeen])
    begun: int = 0
    rejected: int = 0
    events: list[Happening] = field(default_factory=list[Happening])
    label: str = ""
    """A name that is the same in each run of the flow, as "fetch (2)" for the second call of a task."""

    @property
    def remarkable(self) -> bool:
        return any(state.remarkable for state in self.states)

    @property
    def last(self) -> StateSeen | None:
        return self.states[-1] if self.states else None

    @property
    def starts(self) -> int:
        return max(self.begun, [state.type for state in self.states].count("RUNNING"))

    @property
    def attempts(self) -> int:
        """The attempts that were made. A result that was there already ends the last start without a call."""
        uncalled = self.last is not None and self.last.name in UNCALLED
        return max(self.starts - self.rejected - uncalled, 0)


@dataclass(frozen=True, slots=True)
class Advice:
    """How to continue after a run that ended badly. `commands` are pairs: the purpose, and the command."""

    strategy: str
    why: str
    commands: tuple[tuple[str, str], ...] = ()
    by_itself: str = ""


@dataclass(slots=True)
class PassFacts:
    """What one source knows about a pass of a flow run and the runs inside it: the notes of this process, or
    the API. Counts are exact even when rows are left out.

    `happenings` are the events outside of its task runs. `states` counts task runs by the name of their last
    state; `types` maps these names to Prefect's state types. `retried` is the number of task runs that were
    retried, `retries` the number of retries. `calls` has the totals of guarded calls inside the runs, by
    function and name in CALL_COUNTS; `call_errors` the last error of each of these functions.
    """

    task_runs: dict[str, TaskRunSeen] = field(default_factory=dict[str, TaskRunSeen])
    happenings: list[Happening] = field(default_factory=list[Happening])
    states: Counter[str] = field(default_factory=Counter[str])
    types: dict[str, str] = field(default_factory=dict[str, str])
    counts: Counter[str] = field(default_factory=Counter[str])
    retried: int = 0
    retries: int = 0
    calls: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    call_errors: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def total(self) -> int:
        return self.states.total()

    @property
    def events(self) -> list[Happening]:
        """All events, also those of task runs."""
        return [*self.happenings, *(event for run in self.task_runs.values() for event in run.events)]

    @property
    def outcomes(self) -> Counter[Outcome]:
        """The number of task runs for each outcome."""
        outcomes: Counter[Outcome] = Counter()
        for name, count in self.states.items():
            outcomes[outcome_of(self.types.get(name, name.upper()), name)] += count
        return +outcomes

    @property
    def remarkable(self) -> bool:
        return bool(
            self.retries
            or any(self.counts[name] for name in REMARKABLE_HAPPENINGS)
            or any(run.remarkable for run in self.task_runs.values())
        )

    def add(self, run: TaskRunSeen) -> None:
        """Count a task run, and keep it."""
        self.task_runs[run.id] = run
        if run.last is not None:
            self.count(run.last.type, run.last.name)
        self.retried += run.starts > 1
        self.retries += max(run.starts - 1, 0)

    def count_start(self, starts: int) -> None:
        """Count the start of a task run that now has so many."""
        self.retries += starts > 1
        self.retried += starts == 2

    def count(self, kind: str, name: str) -> None:
        """Count a task run whose last state has this type and name."""
        self.states[name] += 1
        self.types[name] = kind

    def add_event(self, event: Happening) -> None:
        """Count an event, and keep it."""
        self.counts[event.name] += 1
        run = self.task_runs.get(str(event.payload.get("task_run_id")))
        if run is not None and event.name == "attempt.refused":
            run.rejected += 1
        if event.name == CALLS_COUNTED:
            for name in CALL_COUNTS:
                self.calls[event.subject, name] += event.payload.get(name, 0)
            if error := event.payload.get("last_error"):
                self.call_errors[event.subject] = str(error)
        elif self.counts[event.name] <= MOST_OF_A_KIND:
            (self.happenings if run is None else run.events).append(event)


def together(parts: Iterable[PassFacts]) -> PassFacts:
    """The facts of several runs or passes, combined."""
    whole = PassFacts()
    for part in parts:
        for name in PassFacts.__dataclass_fields__:
            mine, theirs = getattr(whole, name), getattr(part, name)
            # Counters, lists and numbers are added; dicts are merged.
            setattr(whole, name, mine | theirs if type(mine) is dict else mine + theirs)
    return whole
