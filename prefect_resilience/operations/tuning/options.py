"""The options of a task as the machines take them, and as a document with other numbers in it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from prefect_resilience.base.durations import seconds_of
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.guards.circuits.model import CircuitPolicy
from prefect_resilience.guards.retries.policy import Retry

Options = Mapping[str, Any]

FORM = (
    'write options as in {"retry": {"attempts": 3}, "timeout": 30, "circuit": {"open_for": 60}, '
    '"limits": {"max_concurrent": 5}}'
)
KNOWN = frozenset({"retry", "timeout", "circuit", "limits", "hedge", "fallback"})


@dataclass(frozen=True)
class TaskPolicy:
    """What stands around one task's function. `places` and `max_wait` are those of its bulkhead.

    falls_back: the task has a fallback.
    """

    retry: Retry
    timeout: float | None = None
    circuit: CircuitPolicy | None = None
    places: int | None = None
    max_wait: float | None = None
    falls_back: bool = False


def policy_of(options: Options) -> TaskPolicy:
    """The policy that a document of options describes. Raises ConfigurationError for what it cannot read."""
    unknown = sorted(options.keys() - KNOWN)
    if unknown:
        raise ConfigurationError(f"there is no option {unknown[0]!r}: {FORM}")
    circuit = cast("Options | None", options.get("circuit"))
    limits = cast("Options", options.get("limits") or {})
    known = {name: value for name, value in (circuit or {}).items() if name != "name"}
    return TaskPolicy(
        retry=Retry(**cast("dict[str, Any]", options.get("retry") or {})),
        timeout=_timeout(options.get("timeout")),
        circuit=CircuitPolicy(**known) if circuit else None,
        places=limits.get("max_concurrent"),
        max_wait=limits.get("max_wait"),
        falls_back=bool(options.get("fallback")),
    )


def _timeout(written: Any) -> float | None:
    value = cast("Options", written).get("total") if isinstance(written, Mapping) else written
    if value is None:
        return None
    seconds = seconds_of(value)
    if seconds is None or seconds <= 0:
        raise ConfigurationError(f"timeout={value!r} is not a time: write seconds, as in 30")
    return seconds


def value_at(options: Options, path: str) -> Any:
    """The value at a path such as "retry.attempts"; None if there is none."""
    value: Any = options
    for part in path.split("."):
        value = cast("Options", value).get(part) if isinstance(value, Mapping) else None
    return value


def value_in(options: Options, path: str) -> Any:
    """The value of a task's timeout or of its circuit's option, which has a default."""
    if path == "timeout":
        return policy_of(options).timeout
    return getattr(policy_of(options).circuit, path.rpartition(".")[2])


def with_value(options: Options, path: str, value: Any) -> dict[str, Any]:
    """A copy of the options with another value at a path."""
    first, _, rest = path.partition(".")
    changed = dict(options)
    if rest:
        value = with_value(cast("Options", options.get(first) or {}), rest, value)
    changed[first] = value
    return changed


def with_values(options: Options, changes: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the options with other values at several paths."""
    changed = dict(options)
    for path, value in changes.items():
        changed = with_value(changed, path, value)
    return changed


def merged(options: Options, others: Options) -> dict[str, Any]:
    """The options with `others` over them, option by option; a backoff is replaced as a whole."""
    result = dict(options)
    for name, value in others.items():
        old = options.get(name)
        whole = name == "backoff" or not (isinstance(old, Mapping) and isinstance(value, Mapping))
        result[name] = value if whole else merged(cast("Options", old), cast("Options", value))
    return result
