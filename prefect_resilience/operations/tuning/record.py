"""The record of a period: what each task, circuit and service did, as read from Prefect. Pure.

Times are seconds since the epoch, durations are seconds. What was not recorded is None, not zero.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.dataclasses import dataclass

Positive = Annotated[float, Field(ge=0)]
AtLeastOne = Annotated[float, Field(ge=1)]


class _Recorded(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)


# Of these two there may be 100,000 each. A model takes four times the memory of a dataclass with slots.
@dataclass(frozen=True, slots=True)
class RecordedAttempt:
    """One attempt, or one rejection: `rejected_by` is the guard that did not let it through.

    delay: seconds of delay after it, before the next attempt. retry_after: what the service asked for.
    circuit: the name of the circuit around it, filled in.
    """

    start: float
    seconds: Positive
    succeeded: bool
    category: str | None = None
    code: str | None = None
    retry_after: float | None = None
    delay: float | None = None
    rejected_by: Literal["circuit", "limit"] | None = None
    circuit: str | None = None


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """One task run. `weight`: how many runs it stands for, 1 unless runs were sampled."""

    run_id: str
    start: float
    end: float
    ended: Literal["succeeded", "fallback", "failed", "crashed", "cancelled", "other"]
    attempts: tuple[RecordedAttempt, ...]
    fallback: str | None = None
    weight: AtLeastOne = 1.0


class RecordedTask(_Recorded):
    """The runs of one task in the order of their starts, and the options with which they ran.

    options: in the form of a `ResiliencePolicy` block ({"retry": {"attempts": 3, "backoff": {...}},
    "timeout": 30.0, "circuit": {...}}), with defaults filled in; None: unknown. changed_at: when they last
    changed. block: the name of the ResiliencePolicy block that the task reads, if any. circuit: the name of
    its circuit, as written in the code (perhaps a template).
    """

    name: str
    runs: tuple[RecordedRun, ...]
    options: dict[str, object] | None = None
    changed_at: float | None = None
    block: str | None = None
    circuit: str | None = None


class RecordedOpening(_Recorded):
    """The circuit was open from `start` to `end` (None: still open). `forced`: by an operator."""

    start: float
    end: float | None
    forced: bool = False
    reason: str | None = None


class RecordedCircuit(_Recorded):
    """The openings of one circuit, and its policy if it is known; all tasks behind it share its service."""

    name: str
    openings: tuple[RecordedOpening, ...]
    policy: dict[str, object] | None = None


class RecordedPeriod(_Recorded):
    """What is known of a period. `unknown`: figures that are missing or partial, and why.

    runs: the number of task runs in the period by Prefect's count. read: how many of them are in `tasks`.
    """

    since: float
    until: float
    tasks: tuple[RecordedTask, ...]
    circuits: tuple[RecordedCircuit, ...] = ()
    runs: int = 0
    read: int = 0
    unknown: dict[str, str] = Field(default_factory=dict)
