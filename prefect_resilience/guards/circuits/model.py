"""What a circuit is told (`CircuitPolicy`), and what is known of it (`CircuitSnapshot`)."""

from __future__ import annotations

import difflib
import math
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator, model_validator
from typing_extensions import Self

from prefect_resilience.base.durations import FORMS, seconds_of
from prefect_resilience.errors.taxonomy import ErrorCategory
from prefect_resilience.guards.circuits.window import canonical_window, parse_window

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
    """When a circuit opens, for how long, and how it comes back. Durations are in seconds, or text such as
    "500ms", "1h30m", or a timedelta.

    Opens on `failure_threshold` consecutive failures once `volume_threshold` calls are in `window`, or when
    `failure_rate` of them failed (or `slow_rate` of them took longer than `slow_call`) once `minimum_calls`
    are in it; a window of fewer calls than that is judged when it is full. Stays open for `open_for`, each
    re-opening `open_backoff` times longer, up to `open_max`; then lets `probes` calls of the whole fleet
    through at a time, each for at most `probe_lease`. `success_threshold` successes among at most
    `probe_calls` probes close it (2 of 3; half as many more than the threshold by default). When they are
    out of reach it opens again: the first time for half of `open_for`, as it does whenever some of the
    probes succeeded, else longer each time. If none of them succeeded, the next failed probe opens it at
    once. `counts` names the error categories that are failures. `sync_interval` is how old this process's
    knowledge may be.

    `adaptive` learns which share of calls usually fails, and opens on a significant rise over it. With C
    calls and F failures seen while closed (each weighs exp(-age / baseline_memory)), p = (F + 2) / (C + 4)
    and usual = p + 2 * sqrt(p * (1 - p) / (C + 4)), k failures of the n calls in the window open it when

        k / n >= failure_rate_floor,  odds(k / n) >= 2 * odds(usual),  n * KL(k / n, usual) >= ln(100_000)

    where odds(x) = x / (1 - x) and KL is the divergence of Kullback and Leibler: at the usual rate that
    happens by accident at one look in 100,000 at most. This takes the place of `failure_rate`, which
    then bounds what may count as usual, and holds as it stands until 30 calls have left the window.
    `failure_threshold` stays in force, lengthened where failures are so usual that such a row might be
    an accident (at 20 %, to 8 in a row). `probe_calls` is raised where that many are not enough for a service
    that is as usual (at 30 %, to 2 of 5). `minimum_calls` and `slow_rate` mean what they always do.

    Raises pydantic's ValidationError, whose messages each say in one sentence what to write instead.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    failure_threshold: int = 5
    volume_threshold: int = 1
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
    probe_calls: int | None = None

    @model_validator(mode="after")
    def _can_close(self) -> Self:
        if self.probe_calls is not None and self.probe_calls < self.success_threshold:
            raise ValueError(
                f"probe_calls={self.probe_calls} is less than success_threshold={self.success_threshold}, so "
                f"that the circuit could never close: write probe_calls={self.success_threshold} or more"
            )
        return self

    @field_validator(
        *("failure_threshold", "volume_threshold", "minimum_calls"),
        *("success_threshold", "probes", "probe_calls"),
        mode="before",
    )
    @classmethod
    def _whole_number(cls, value: Any, info: ValidationInfo) -> Any:
        if value is None and info.field_name == "probe_calls":
            return None
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
        seconds = seconds_of(value)
        must_be_positive = info.field_name in {"slow_call", "probe_lease", "baseline_memory"}
        if seconds is None or seconds < 0 or (must_be_positive and seconds == 0):
            least = "more than 0" if must_be_positive else "0 or more"
            raise ValueError(f"{info.field_name}={value!r} must be {least}, in seconds, as in {FORMS}")
        return seconds

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
    def most_probes(self) -> int:
        """Among how many probes the successes are counted."""
        return self.probe_calls or self.success_threshold + self.success_threshold // 2

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


class CircuitEntered(BaseModel):
    """A state that a circuit came to, at a time, under a generation; `retry_at`: until when it then refused
    calls, None if nothing but a person ends that, or it refuses none."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    generation: int
    at: float
    state: CircuitState
    retry_at: float | None = None


class CircuitSnapshot(BaseModel):
    """What is known of one circuit. Times are seconds since the epoch by the store's clock.

    `state` is what a call would meet now: an open circuit whose time has come is "half_open". `retry_at`
    is None unless the circuit refuses calls until then. `reopenings` counts since the last full recovery.
    `usual_failure_rate` is what an adaptive circuit has learnt, None while that is too little. `history` is
    the latest states that it came to, at most 24, the newest last.
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
    history: tuple[CircuitEntered, ...] = ()
