"""The options of a circuit (`CircuitPolicy`) and its state (`CircuitSnapshot`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, ClassVar, Literal, Self, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from prefect_resilience.base.durations import Seconds, seconds_of
from prefect_resilience.base.outcomes import UnawaitedResult
from prefect_resilience.base.policy import Policy, nearest, snake_case
from prefect_resilience.errors.classify.classify import classify
from prefect_resilience.errors.classify.reach import error_name, is_class_name, names_of
from prefect_resilience.errors.exceptions import ConfigurationError, NotBegun
from prefect_resilience.errors.taxonomy import ErrorCategory, ErrorInfo
from prefect_resilience.guards.circuits.window import canonical_window, parse_window
from prefect_resilience.guards.limits.guarding import LimitRefused

CircuitState = Literal["closed", "open", "half_open", "forced_open", "disabled"]

MOST = 1_000_000
"""The upper limit of every option that is a number of calls."""

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


class CircuitPolicy(Policy):
    """When a circuit opens, for how long, and how it closes again. Durations are in seconds, or text such as
    "500ms", "1h30m", or a timedelta.

    failure_threshold: opens after this many failures in a row, once `volume_threshold` calls are in `window`.
    volume_threshold: the number of calls in `window` from which failures in a row count.
    failure_rate: opens when this share of the calls in `window` failed, once `minimum_calls` are in it.
    minimum_calls: the number of calls in `window` from which the shares count. A window of fewer calls is
        judged when it is full.
    window: the calls that are judged: a time such as "60s", or a number of calls.
    slow_call: a call that takes longer than this counts as slow.
    slow_rate: opens when this share of the calls in `window` was slow.
    open_for: the time until the first probe.
    open_backoff: the factor by which each further opening lasts longer.
    open_max: the longest opening.
    success_threshold: closes after this many successful probes.
    probes: the probes of the whole fleet that run at the same time.
    probe_lease: the time after which a probe without an outcome gives its place back.
    counts: the error categories and exception classes that count as failures.
    sync_interval: the time after which this process merges its counts. Without news from the store it is
        also the maximum age of the process's view of the circuit.
    adaptive: learns the usual failure rate, and opens on a significant rise over it.
    failure_rate_floor: with `adaptive`, a failure rate below this never opens the circuit.
    baseline_memory: with `adaptive`, the time after which a call weighs 1/e in the usual rate.
    probe_calls: opens again when `success_threshold` is out of reach among this many probes. Default: half
        as many more as the threshold, rounded down (3 for 2).

    The first re-opening, and any after a successful probe, lasts half of `open_for`; the others last longer
    each time. If no probe of a half-open period succeeded, the next failed probe opens the circuit at once.

    `adaptive` learns the usual failure rate, and opens on a significant rise over it. With C calls and F
    failures seen while closed (each weighs exp(-age / baseline_memory)), p = (F + 2) / (C + 4) and
    usual = p + 2 * sqrt(p * (1 - p) / (C + 4)), k failures of the n calls in the window open it when

        k / n >= failure_rate_floor,  odds(k / n) >= 2 * odds(usual),  n * KL(k / n, usual) >= ln(100_000)

    where odds(x) = x / (1 - x) and KL is the Kullback-Leibler divergence. At the usual rate, a check of the
    window opens the circuit by chance at most once in 100,000 checks. This test replaces `failure_rate`,
    which then limits the usual rate. Until 30 calls have left the window, `failure_rate` applies unchanged.
    `failure_threshold` still applies; it is raised where so many consecutive failures could be chance (at a
    usual rate of 20 %, to 8). `probe_calls` is raised where it is too low for a service at its usual rate
    (at 30 %, to 2 of 5). `minimum_calls` and `slow_rate` are unchanged.

    JSON may write the names in camel case (`failureThreshold`). Beside such names, `timeout` is `open_for` in
    milliseconds.

    Raises ConfigurationError, in one sentence that says what to write instead.
    """

    failure_threshold: int = Field(default=5, ge=1, le=MOST)
    volume_threshold: int = Field(default=1, ge=1, le=MOST)
    failure_rate: float = Field(default=0.5, gt=0, le=1)
    minimum_calls: int = Field(default=10, ge=1, le=MOST)
    window: int | str = "60s"
    slow_call: Seconds | None = Field(default=None, gt=0)
    slow_rate: float = Field(default=1.0, gt=0, le=1)
    open_for: Seconds = 30.0
    open_backoff: float = Field(default=2.0, ge=1, le=1000)
    open_max: Seconds = 600.0
    success_threshold: int = Field(default=2, ge=1, le=MOST)
    probes: int = Field(default=1, ge=1, le=MOST)
    probe_lease: Seconds = Field(default=60.0, gt=0)
    counts: tuple[str, ...] = DEFAULT_COUNTS
    sync_interval: Seconds = Field(default=0.5, gt=0)
    adaptive: bool = False
    failure_rate_floor: float = Field(default=0.1, gt=0, le=1)
    baseline_memory: Seconds = Field(default=3600.0, gt=0)
    probe_calls: int | None = Field(default=None, ge=1, le=MOST)

    @model_validator(mode="before")
    @classmethod
    def _in_milliseconds(cls, data: Any) -> Any:
        """`timeout` beside names in camel case: that JSON means `open_for`, in milliseconds."""
        if not isinstance(data, Mapping):
            return data
        options = dict(cast("Mapping[str, Any]", data))
        if "timeout" in options and not all(snake_case(name) == name for name in options):
            options = {"open_for": f"{options.pop('timeout')}ms", **options}
        return options

    @model_validator(mode="after")
    def _can_close(self) -> Self:
        if self.probe_calls is not None and self.probe_calls < self.success_threshold:
            raise ValueError(
                f"probe_calls={self.probe_calls} is less than success_threshold={self.success_threshold}, so "
                f"the circuit could never close: write probe_calls={self.success_threshold} or more"
            )
        return self

    @field_validator("*", mode="before")
    @classmethod
    def _no_flag(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, bool) and info.field_name != "adaptive":
            raise ValueError(f"{value} is not a number: write a number, as in 2")
        return value

    @field_validator("window", mode="before")
    @classmethod
    def _window(cls, value: Any) -> Any:
        return canonical_window(value)

    @field_validator("counts", mode="before")
    @classmethod
    def _categories(cls, value: Any) -> Any:
        if value is None:
            return DEFAULT_COUNTS
        if isinstance(value, str | type) or not hasattr(value, "__iter__"):
            raise ValueError(
                f'counts={value!r} must be a list of error categories, as in ["timeout", "rate_limit"]'
            )
        usual = [category.value for category in ErrorCategory]
        names: set[str] = set()
        for item in value:
            name = error_name(item) if isinstance(item, type) else str(getattr(item, "value", item))
            if name not in usual and not is_class_name(name):
                raise ValueError(f"counts has {name!r}, which is not an error category{nearest(name, usual)}")
            names.add(name)
        if not names:
            raise ValueError(
                "counts is empty, so nothing could open the circuit: name a category or leave it out"
            )
        return tuple(sorted(names))

    @property
    def most_probes(self) -> int:
        """The number of probes among which the successes are counted."""
        return self.probe_calls or self.success_threshold + self.success_threshold // 2

    @property
    def window_size(self) -> int | float:
        """The window as `window.record` takes it: an int is a number of calls, a float a span in seconds."""
        return parse_window(self.window)


DEFAULT_POLICY = CircuitPolicy.model_construct()
"""Not validated, since pydantic takes 20 ms for the validators of a process's first model."""


def circuit_policy(name: object, options: dict[str, Any]) -> CircuitPolicy:
    """The policy with these options. Raises ConfigurationError, in one sentence, for an invalid option."""
    try:
        return CircuitPolicy(**options) if options else DEFAULT_POLICY
    except ConfigurationError as error:
        message = str(error).replace("CircuitPolicy(", f"CircuitBreaker({name!r}, ", 1)
        raise ConfigurationError(message.replace("CircuitPolicy:", f"CircuitBreaker({name!r}):", 1)) from None


CountsAs = Literal["success", "failure", "neither"]

ANSWERED = frozenset({"auth", "invalid", "not_found", "conflict", "overflow", "validation"})
"""Failures that show that the service works: it read the request and rejected it."""


def judge(
    error: BaseException | None, info: ErrorInfo | None, policy: CircuitPolicy
) -> tuple[CountsAs, ErrorInfo | None]:
    """How a call that ended with `error` counts, and the classified error.

    A BaseException that is not an Exception (a cancellation, a KeyboardInterrupt, a closed generator) counts
    as neither. So does a limit of our own or another failure on the caller's side.
    """
    if error is None and info is None:
        return "success", None
    if error is not None and (
        isinstance(error, LimitRefused | NotBegun | UnawaitedResult) or not isinstance(error, Exception)
    ):
        return "neither", None
    if info is None:
        assert error is not None
        info = classify(error)
    category = str(info.category)
    if category in policy.counts or not names_of(info, error).isdisjoint(policy.counts):
        return "failure", info
    return ("success" if category in ANSWERED else "neither"), info


class CircuitEntered(BaseModel):
    """A state that a circuit entered, with its time and generation. `retry_at` is the end of the rejection of
    calls; None if only an operator ends it, or if the state rejects no calls."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, defer_build=True)

    generation: int
    at: float
    state: CircuitState
    retry_at: float | None = None


class CircuitSnapshot(BaseModel):
    """The data of one circuit. Times are seconds since the epoch by the store's clock.

    `state` is the state that a call would meet now: after its open period a circuit is "half_open".
    `retry_at` is None unless the circuit rejects calls until then. `reopenings` counts since the last full
    recovery. `usual_failure_rate` is the rate that an adaptive circuit has learnt, None while it has seen too
    few calls. `history` is the latest states that it entered, at most 24, the newest last. `share_counted` is
    the share of the calls that is counted: a large fleet counts a sample, and the window has its numbers.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, defer_build=True)

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
    share_counted: float = 1.0


LAST_MOMENT = 253_370_764_800.0
"""The beginning of the year 9999: every time zone can show it."""
UNTIL_FORMS = (
    'write a future datetime, a span as text or a timedelta, as in "10m", or seconds since the epoch'
)


def moment_of(until: float | str | datetime | timedelta | None, now: float) -> float | None:
    """`until` in seconds since the epoch. A datetime without an offset is in this host's zone."""
    if until is None:
        return None
    try:
        number = until.timestamp() if isinstance(until, datetime) else seconds_of(until)
    except (OverflowError, ValueError, OSError):  # too far away for a time in seconds
        number = math.inf
    if number is None:
        raise ConfigurationError(f"until={until!r} is not a time: {UNTIL_FORMS}")
    moment = now + number if isinstance(until, str | timedelta) else number
    if not now < moment <= LAST_MOMENT:
        raise ConfigurationError(
            f"until={until!r} is {'in the past' if moment <= now else 'too far away'}: {UNTIL_FORMS}"
        )
    return moment
