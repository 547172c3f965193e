"""What a summary is made of, whoever saw it: this process, or the Prefect API. Pure.

Times are seconds since the epoch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

RETRIES = frozenset({"AwaitingRetry", "Retrying"})
REPLACED = frozenset({"Fallback", "Degraded"})
REPLAYED = "Replayed"
ENDED_BADLY = frozenset({"FAILED", "CRASHED", "CANCELLED", "CANCELLING"})
FINAL = frozenset({"COMPLETED", "FAILED", "CRASHED", "CANCELLED"})

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
    }
)
"""Events without which a run was a quiet one."""


@dataclass(frozen=True, slots=True)
class StateSeen:
    """One state of a task run, with the moment at which it came to it."""

    type: str
    name: str
    at: float
    message: str = ""

    @property
    def remarkable(self) -> bool:
        return self.type in ENDED_BADLY or self.name in RETRIES | REPLACED or self.name == REPLAYED


@dataclass(slots=True)
class TaskRunSeen:
    """One task run with its states, the first one first."""

    id: str
    name: str
    flow_run_id: str
    states: list[StateSeen] = field(default_factory=list[StateSeen])

    @property
    def remarkable(self) -> bool:
        return any(state.remarkable for state in self.states)

    @property
    def last(self) -> StateSeen | None:
        return self.states[-1] if self.states else None

    @property
    def attempts(self) -> int:
        return sum(state.type == "RUNNING" for state in self.states)


@dataclass(frozen=True, slots=True)
class Happening:
    """An event of ours: `name` without the prefix, `subject` the name of its resource."""

    id: str
    at: float
    name: str
    subject: str
    payload: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The flow run that a summary is of."""

    id: str
    name: str
    flow: str
    state_type: str
    state: str
    message: str = ""
    began: float | None = None
    ended: float | None = None
    times_run: int = 1


@dataclass(frozen=True, slots=True)
class Advice:
    """How to go on after a run that ended badly; `commands` are what to type, each with what it is for."""

    strategy: str
    why: str
    commands: tuple[tuple[str, str], ...] = ()
    by_itself: str = ""


@dataclass(slots=True)
class Seen:
    """All that is known of a flow run and those inside it. Counts are exact where rows are left out.

    `states` counts task runs by their last state, `retried` those that were, `retries` how often.
    `noted` are the ids of the task runs that are counted.
    """

    task_runs: list[TaskRunSeen] = field(default_factory=list[TaskRunSeen])
    happenings: list[Happening] = field(default_factory=list[Happening])
    states: Counter[str] = field(default_factory=Counter[str])
    counts: Counter[str] = field(default_factory=Counter[str])
    retried: int = 0
    retries: int = 0
    outputs: dict[str, Any] = field(default_factory=dict[str, Any])
    outputs_left_out: int = 0
    inner_runs: int = 0
    noted: set[str] = field(default_factory=set[str])
    missing: list[str] = field(default_factory=list[str])

    @property
    def total(self) -> int:
        return sum(self.states.values())

    @property
    def remarkable(self) -> bool:
        return bool(
            self.retries
            or any(self.counts[name] for name in REMARKABLE_HAPPENINGS)
            or any(run.remarkable for run in self.task_runs)
        )
