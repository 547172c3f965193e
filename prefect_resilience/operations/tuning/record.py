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
FORM = 'write options as in {"retry": {"attempts": 3}, "timeout": 30, "circuit": {"open_for": 60}}'
NOT_REPLAYED = frozenset({"limits", "hedge"})
KNOWN = frozenset({"retry", "timeout", "circuit", "fallback"}) | NOT_REPLAYED


@dataclass(frozen=True, slots=True)
class RecordedAttempt:
    """One attempt, or one rejection: `rejected_by` is the guard that did not let it through.

    retry_after: what the service asked for. circuit: the name of the circuit around it, filled in.
    """

    start: float
    seconds: float
    succeeded: bool
    category: str | None = None
    retry_after: float | None = None
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
    def circuit(self) -> str | None:
        """The name of its circuit, as written in the code (perhaps a template)."""
        circuit = (self.options or {}).get("circuit")
        return cast("dict[str, str]", circuit).get("name") if isinstance(circuit, dict) else None

    @property
    def service(self) -> str:
        """The name of the service behind the task: its circuit's, or the task's own without a circuit.

        A template names one circuit for each of its values; the most frequent one stands for the task.
        """
        named = Counter(one.circuit for run in self.runs for one in run.attempts if one.circuit is not None)
        return max(named, key=named.__getitem__) if named else self.circuit or self.name


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
    unknown = sorted(options.keys() - KNOWN)
    if unknown:
        raise ConfigurationError(f"there is no option {unknown[0]!r}: {FORM}")
    circuit = cast("Options", options.get("circuit") or {})
    timeout = options.get("timeout")
    if isinstance(timeout, Mapping):
        timeout = cast("Options", timeout).get("total")
    seconds = None if timeout is None else seconds_of(timeout)
    if timeout is not None and (seconds is None or seconds <= 0):
        raise ConfigurationError(f"timeout={timeout!r} is not a time: write seconds, as in 30")
    return TaskPolicy(
        retry=Retry(**cast("dict[str, Any]", options.get("retry") or {})),
        timeout=seconds,
        circuit=CircuitPolicy(**{name: value for name, value in circuit.items() if name != "name"})
        if circuit
        else None,
        falls_back=bool(options.get("fallback")),
    )


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


def merge(options: Options, others: Options) -> dict[str, Any]:
    """The options with `others` over them, option by option; a backoff is replaced as a whole."""
    result = dict(options)
    for name, value in others.items():
        old = options.get(name)
        whole = name == "backoff" or not (isinstance(old, Mapping) and isinstance(value, Mapping))
        result[name] = value if whole else merge(cast("Options", old), cast("Options", value))
    return result
