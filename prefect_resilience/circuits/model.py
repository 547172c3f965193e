"""What a circuit is told (`CircuitPolicy`), and what it tells: snapshots, transitions, notices."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

from prefect_resilience.circuits.window import canonical_window, parse_window
from prefect_resilience.errors.taxonomy import ErrorCategory

CircuitState = Literal["closed", "open", "half_open", "forced_open", "disabled"]

DEFAULT_COUNTS: tuple[str, ...] = (
    "agent_crash",
    "infrastructure",
    "network",
    "rate_limit",
    "server_error",
    "timeout",
    "unavailable",
    "unexpected",
)


class CircuitPolicy(BaseModel):
    """When a circuit opens, for how long, and how it comes back. Durations are in seconds.

    Opens on `failure_threshold` consecutive failures, or when `failure_rate` of the calls in `window`
    failed (or `slow_rate` of them took longer than `slow_call`) once `minimum_calls` are in it; a window
    of fewer calls than that is judged when it is full. Stays open for `open_for`, each re-opening
    `open_backoff` times longer, up to `open_max`; then lets `probes` calls of the whole fleet through at
    a time, each for at most `probe_lease`, and closes after `success_threshold` successes. `counts` names
    the error categories that are failures. `sync_interval` is how old this process's knowledge may be.

    `adaptive` learns which share of calls usually fails, and opens on a significant rise over it. With C
    calls and F failures seen while closed (each weighs exp(-age / baseline_memory)), p = (F + 2) / (C + 4)
    and usual = p + 2 * sqrt(p * (1 - p) / (C + 4)), k failures of the n calls in the window open it when

        k / n >= failure_rate_floor,  odds(k / n) >= 2 * odds(usual),  n * KL(k / n, usual) >= ln(100_000)

    where odds(x) = x / (1 - x) and KL is the divergence of Kullback and Leibler: at the usual rate that
    happens by accident at one look in 100,000 at most. This takes the place of `failure_rate`, which
    then bounds what may count as usual, and holds as it stands until 30 calls have left the window.
    `failure_threshold` stays in force, lengthened where failures are so usual that such a row might be
    an accident (at 20 %, to 8 in a row). `minimum_calls` and `slow_rate` mean what they always do.

    Raises pydantic's ValidationError, whose messages each say in one sentence what to write instead.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    failure_threshold: int = 5
    failure_rate: float = 0.5
    minimum_calls: int = 10
    window: int | str = "60s"
    slow_call: float | None = None
    slow_rate: float = 1.0
    open_for: float = 30.0
    open_backoff: float = 2.0
    open_max: float = 600.0
    success_threshold: int = 2
    probes: int = 1
    probe_lease: float = 60.0
    counts: tuple[str, ...] = DEFAULT_COUNTS
    sync_interval: float = 0.5
    adaptive: bool = False
    failure_rate_floor: float = 0.1
    baseline_memory: float = 3600.0

    @field_validator("failure_threshold", "minimum_calls", "success_threshold", "probes", mode="before")
    @classmethod
    def _whole_number(cls, value: Any, info: ValidationInfo) -> Any:
        number = _number(value)
        if number is None or number != int(number) or not 1 <= number <= 1_000_000:
            raise ValueError(f"{info.field_name}={value!r} must be a whole number of at least 1")
        return int(number)

    @field_validator("failure_rate", "slow_rate", "failure_rate_floor", mode="before")
    @classmethod
    def _rate(cls, value: Any, info: ValidationInfo) -> Any:
        number = _number(value)
        if number is None or not 0 < number <= 1:
            raise ValueError(
                f"{info.field_name}={value!r} must be above 0 and at most 1, as in 0.5 for half of the calls"
            )
        return number

    @field_validator(
        "open_for", "open_max", "sync_interval", "slow_call", "probe_lease", "baseline_memory", mode="before"
    )
    @classmethod
    def _seconds(cls, value: Any, info: ValidationInfo) -> Any:
        if value is None and info.field_name == "slow_call":
            return None
        number = _number(value)
        must_be_positive = info.field_name in {"slow_call", "probe_lease", "baseline_memory"}
        if number is None or number < 0 or (must_be_positive and number == 0):
            least = "more than 0" if must_be_positive else "0 or more"
            raise ValueError(f"{info.field_name}={value!r} must be {least}, in seconds, as in 30")
        return number

    @field_validator("open_backoff", mode="before")
    @classmethod
    def _factor(cls, value: Any) -> Any:
        number = _number(value)
        if number is None or not 1 <= number <= 1000:
            raise ValueError(
                f"open_backoff={value!r} must be between 1 (each opening as long as the last) and 1000"
            )
        return number

    @field_validator("window", mode="before")
    @classmethod
    def _window(cls, value: Any) -> Any:
        return canonical_window(value)

    @field_validator("counts", mode="before")
    @classmethod
    def _categories(cls, value: Any) -> Any:
        if value is None:
            return DEFAULT_COUNTS
        if isinstance(value, str) or not hasattr(value, "__iter__"):
            raise ValueError(
                f'counts={value!r} must be a list of error categories, as in ["timeout", "rate_limit"]'
            )
        known = [category.value for category in ErrorCategory]
        names: set[str] = set()
        for item in value:
            name = str(getattr(item, "value", item))
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
                hint = f"did you mean {near[0]!r}?" if near else f"write one of {', '.join(known)}"
                raise ValueError(f"counts has {name!r}, which is no error category: {hint}")
            names.add(name)
        if not names:
            raise ValueError(
                "counts is empty, so that nothing could open the circuit: name a category or leave it out"
            )
        return tuple(sorted(names))

    @property
    def window_size(self) -> int | float:
        """The window as `window.record` takes it: an int is calls, a float seconds."""
        return parse_window(self.window)


def _number(value: Any) -> float | None:
    """`value` as a finite number, None when it is none: neither True nor "abc" nor NaN."""
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


class CircuitSnapshot(BaseModel):
    """What is known of one circuit. Times are seconds since the epoch by the store's clock.

    `state` is what a call would meet now: an open circuit whose time has come is "half_open". `retry_at`
    is None unless the circuit refuses calls until then. `reopenings` counts since the last full recovery.
    `usual_failure_rate` is what an adaptive circuit has learnt, None while that is too little.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    name: str
    state: CircuitState = "closed"
    generation: int = 1
    consecutive_failures: int = 0
    window_calls: int = 0
    window_failures: int = 0
    window_slow: int = 0
    opened_at: float | None = None
    retry_at: float | None = None
    reopenings: int = 0
    probes_in_flight: int = 0
    reason: str | None = None
    last_error: str | None = None
    updated_at: float = 0.0
    usual_failure_rate: float | None = None


@dataclass(frozen=True, slots=True)
class Transition:
    """A circuit went from one state to another; told by the one process of the fleet that brought it about.

    `at` and `retry_at` are seconds since the epoch by the store's clock.
    """

    name: str
    before: CircuitState
    after: CircuitState
    at: float
    reason: str
    generation: int
    retry_at: float | None = None
    last_error: str | None = None


@dataclass(frozen=True, slots=True)
class StoreNotice:
    """The store under `url` (redacted) stopped answering, or answers again. Told once each time."""

    url: str
    available: bool
    reason: str
