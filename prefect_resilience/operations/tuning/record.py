"""The record of a period: what each task did, as read from Prefect, and the options with which it ran. Pure.

Times are seconds since the epoch, durations are seconds. What was not recorded is None, not zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from prefect_resilience.base.durations import seconds_of
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.guards.circuits.model import CircuitPolicy
from prefect_resilience.guards.retries.policy import Retry

Options = Mapping[str, Any]
KNOWN = frozenset({"retry", "timeout", "circuit", "fallback", "limits", "hedge"})
"""The options of a policy. Limits and hedges are not replayed."""


@dataclass(frozen=True, slots=True)
class RecordedAttempt:
    """One attempt; `rejected`: a guard did not let it through.

    retry_after: what the service asked for. circuit: the name of the circuit around it, filled in.
    """

    start: float
    seconds: float
    succeeded: bool
    category: str | None = None
    retry_after: float | None = None
    rejected: bool = False
    circuit: str | None = None


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """One task run. `weight`: how many runs it stands for, 1 unless runs were sampled."""

    run_id: str
    start: float
    end: float
    ended: Literal["succeeded", "fallback", "failed", "crashed", "cancelled", "other"]
    attempts: tuple[RecordedAttempt, ...]
    weight: float = 1.0


@dataclass(frozen=True)
class RecordedTask:
    """The runs of one task in the order of their starts, and the options with which they ran.

    options: in the form of a `ResiliencePolicy` block ({"retry": {"attempts": 3, "backoff": {...}},
    "timeout": 30.0, "circuit": {...}}), with defaults filled in; None: unknown. block: the name of the
    ResiliencePolicy block that the task reads, if any.
    """

    name: str
    runs: tuple[RecordedRun, ...]
    options: dict[str, object] | None = None
    block: str | None = None

    @property
    def service(self) -> str:
        """The name of the service behind the task: its circuit's, or the task's own without a circuit.

        A template names one circuit for each of its values; the most frequent one stands for the task.
        """
        attempts = (attempt for run in self.runs for attempt in run.attempts)
        named = Counter(attempt.circuit for attempt in attempts if attempt.circuit is not None)
        written = value_at(self.options or {}, "circuit.name")
        return max(named, key=named.__getitem__) if named else written or self.name


@dataclass(frozen=True)
class RecordedPeriod:
    """What is known of a period. `unknown`: figures that are missing or partial, and why."""

    since: float
    until: float
    tasks: tuple[RecordedTask, ...]
    unknown: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def runs(self) -> int:
        """The number of runs that were read."""
        return sum(len(task.runs) for task in self.tasks)


@dataclass(frozen=True)
class TaskPolicy:
    """The guards around one task's function that a replay knows. falls_back: the task has a fallback."""

    retry: Retry
    timeout: float | None = None
    circuit: CircuitPolicy | None = None
    falls_back: bool = False


def policy_of(options: Options) -> TaskPolicy:
    """The policy that a document of options describes. Raises ConfigurationError for what it cannot read."""
    for name in options.keys() - KNOWN:
        raise ConfigurationError(
            f"there is no option {name!r}: write options as in "
            '{"retry": {"attempts": 3}, "timeout": 30, "circuit": {"open_for": 60}}'
        )
    timeout: Any = options.get("timeout")
    if isinstance(timeout, Mapping):
        timeout = value_at(options, "timeout.total")
    seconds = seconds_of(timeout)
    if timeout is not None and (seconds is None or seconds <= 0):
        raise ConfigurationError(f"timeout={timeout!r} is not a time: write seconds, as in 30")
    retry, numbers = (dict(cast("Options", options.get(name) or {})) for name in ("retry", "circuit"))
    numbers.pop("name", None)
    circuit = CircuitPolicy(**numbers) if options.get("circuit") else None
    return TaskPolicy(Retry(**retry), seconds, circuit, bool(options.get("fallback")))


def value_at(options: Options, path: str) -> Any:
    """The value at a path such as "retry.attempts"; None if there is none."""
    value: Any = options
    for part in path.split("."):
        value = cast("Options", value).get(part) if isinstance(value, Mapping) else None
    return value


def with_value(options: Options, path: str, value: Any) -> dict[str, Any]:
    """A copy of the options with another value at a path; None leaves the option out."""
    first, _, rest = path.partition(".")
    inner = with_value(cast("Options", options.get(first) or {}), rest, value) if rest else value
    changed = {**options, first: inner}
    if inner is None:
        del changed[first]
    return changed
