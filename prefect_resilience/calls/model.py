"""The data of a guarded call: the policies, the context of the run, and the record of its attempts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from inspect import Signature, signature
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from prefect_resilience.base.deadlines import CallDeadline, current_deadline, sooner
from prefect_resilience.base.drive import Steps
from prefect_resilience.base.wrapping import Guarding
from prefect_resilience.durable.effects.current import CallStart, EffectSurroundings
from prefect_resilience.durable.effects.recipes import NOWHERE, CodeSource
from prefect_resilience.errors.classify.classify import ErrorInfo, Rule, classify
from prefect_resilience.errors.context import AttemptRecord, ErrorContext
from prefect_resilience.guards.fallbacks import Answer, Fallback, Memory
from prefect_resilience.guards.limits.guarding import Limit
from prefect_resilience.guards.partials import Notes
from prefect_resilience.guards.retries.policy import NO_RETRY, Retry, Verdict
from prefect_resilience.guards.timeouts.timeout import Timeout

if TYPE_CHECKING:
    from prefect_resilience.durable.effects.policy import Effect
    from prefect_resilience.guards.budgets.policy import ErrorBudget
    from prefect_resilience.guards.circuits.breaker import CircuitBreaker
    from prefect_resilience.guards.decomposition import Decompose
    from prefect_resilience.guards.limits.hedge import Hedge
    from prefect_resilience.guards.outputs.promise import Expect
    from prefect_resilience.guards.timeouts.process_mode import Carriage


@dataclass(frozen=True)
class Guard:
    """The policies around one function: small, frozen and picklable."""

    fn: Callable[..., Any]
    isasync: bool
    retry: Retry = NO_RETRY
    circuit: CircuitBreaker | None = None
    limits: tuple[Limit, ...] = ()
    timeout: Timeout | None = None
    deadline: float | None = None
    """Seconds for the whole call: its attempts, delays and fallbacks, and everything inside."""
    hedge: Hedge | None = None
    fallbacks: tuple[Fallback, ...] = ()
    rules: tuple[Rule, ...] = ()
    effect: Effect | None = None
    dead_letter: bool = False
    restart_stream: bool = False
    error_budget: ErrorBudget | None = None
    policy: str | None = None
    """The block with options that override these, under its name in `tasks.edge.live_policy`."""
    expect: Expect | None = None
    decompose: Decompose | None = None
    source: CodeSource = NOWHERE
    """Where the function is defined, determined at decoration. It is part of the keys of effects."""

    @cached_property
    def signature(self) -> Signature:
        return signature(self.fn)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "signature"}

    @property
    def retrying(self) -> Retry:
        """The retries of the policy, and those that the repair of an output needs."""
        return self.retry if self.expect is None else self.expect.with_repair(self.retry)

    @property
    def entered_in_order(self) -> tuple[Guarding, ...]:
        """The circuit and the limits, outermost first."""
        return self.limits if self.circuit is None else (self.circuit, *self.limits)

    @property
    def remembers(self) -> bool:
        return bool(self.fallbacks) and any(fallback.recalls for fallback in self.fallbacks)

    def classify_error(self, error: BaseException) -> ErrorInfo | None:
        """The error, classified by this guard's rules; None for a BaseException such as a cancellation."""
        return classify(error, rules=self.rules) if isinstance(error, Exception) else None


@dataclass(slots=True)
class RunRecord:
    """The failed attempts of one run in this process, and what they share."""

    started: float
    start: CallStart | None = None
    history: list[AttemptRecord] = field(default_factory=list[AttemptRecord])
    counters: dict[str, int] = field(default_factory=dict[str, int])
    """The number of failed attempts by category, if it has a rule of its own; "" for all the others."""
    counted: int = 0
    """The counter of the last error's rule."""
    previous_delay: float | None = None
    verdict: Verdict | None = None
    error: BaseException | None = None
    must_not_restart: bool = False
    """Its stream was cut off after the consumer got a chunk, and may not be restarted."""
    notes: Notes = field(default_factory=Notes)
    """The partial results that the function keeps, and the data of the previous attempt that it can read."""


class RunContext(Memory, EffectSurroundings, Protocol):
    """The context of a guarded call. None of the methods may raise."""

    may_go_on: bool
    """Whether its caller can make a call of a plain function again, to be awaited."""
    guard: Guard
    outer_deadline: CallDeadline | None = None
    """The deadline around a task run that another process submitted."""
    span: Any
    """The OpenTelemetry span of the call, if it is recorded; None in a task run, where Prefect has it."""
    parking: Any
    """The long waits of the flow run around the call; None if it does not park."""

    def record_so_far(self) -> RunRecord | None:
        """The record of this run, or None before its first failure."""

    def record(self, started: float) -> RunRecord:
        """The record of this run, created if there is none."""
        ...

    def close_record(self) -> None:
        """The run is over: forget its record."""

    def retry_refusal(self, error: Exception) -> Steps[str | None]:
        """Why the call may not be repeated, although the policy would retry; None if it may be."""
        return None
        yield  # makes it a generator

    def parks(self, context: ErrorContext, verdict: Verdict) -> Steps[bool]:
        """Whether the run around the call parks after this failure: nothing is reported, and no attempt
        follows in this pass. Only asked with `parking`."""
        return False
        yield  # makes it a generator

    def went_well(self) -> None:
        """The function itself returned a value: the run is over."""

    def leave_request(self, error: BaseException) -> None:
        """Attach the request of this run to the error that ends the run."""

    def carry_into_child(self) -> Carriage | None:
        """The data that the call takes to a child process, so that it finds this run there."""

    def request_attributes(self) -> dict[str, Any]:
        """The HTTP request that an attempt makes, as attributes of its span; empty for other calls."""
        return {}

    def response_status(self) -> int | None:
        """The status of the HTTP response to the latest attempt."""
        return None

    def part(self, changes: Mapping[str, Any], label: str, without_tags: set[str]) -> Callable[[], Any]:
        """A call of the same function with these arguments changed; the UI shows its run with the label."""
        ...

    def tags_with_limit(self) -> set[str]:
        """The tags of this run that have a limit: the run holds a slot of each. May block."""
        return set()


def deadline_of(guard: Guard, run: RunContext) -> CallDeadline | None:
    """The deadline of a call: its own, from the start of its first attempt, or an earlier one around it."""
    around = current_deadline.get() or run.outer_deadline
    if guard.deadline is None:
        return around
    record = run.record_so_far()
    began = monotonic() if record is None else record.started
    return sooner(around, CallDeadline(began + guard.deadline, guard.deadline, str(run.identity["node_id"])))


@dataclass(frozen=True, slots=True)
class Substitute:
    """The outcome of a run in which a fallback was used."""

    answer: Answer
    context: ErrorContext
    message: str


@dataclass(frozen=True, slots=True)
class Decomposed:
    """The outcome of a run whose work was done in parts."""

    value: Any
    message: str
    context: ErrorContext
    replaced: bool = False
    """Whether a fallback was used for a part, so that this is not the function's own result."""
    degraded: bool = False


@dataclass(frozen=True, slots=True)
class Standing:
    """The fallbacks that were used for parts of one decomposed call."""

    fn: Callable[..., Any]
    used: dict[str, bool]
    """For each name whether one of its values is degraded."""


answers: ContextVar[Standing | None] = ContextVar("prefect_resilience_standing", default=None)


def stood_in(fn: Callable[..., Any], name: str, degraded: bool) -> None:
    """Record that a fallback was used in a call of `fn`, if that call is a part."""
    whole = answers.get()
    if whole is not None and whole.fn is fn:
        whole.used[name] = degraded or whole.used.get(name, False)
