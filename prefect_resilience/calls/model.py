"""The data of a guarded call: the policies around the function, where it runs, and what happened so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from prefect_resilience.base.drive import Steps
from prefect_resilience.base.wrapping import Guarding
from prefect_resilience.durable.effects.current import EffectSurroundings
from prefect_resilience.durable.effects.recipes import NOWHERE, CodeSource
from prefect_resilience.errors.classify.classify import ErrorInfo, Rule, classify
from prefect_resilience.errors.context import AttemptRecord, ErrorContext
from prefect_resilience.guards.fallbacks import Answer, Fallback, Memory
from prefect_resilience.guards.limits.guarding import Limit
from prefect_resilience.guards.limits.hedge import Hedge
from prefect_resilience.guards.partials import Notes
from prefect_resilience.guards.retries.policy import Retry, Verdict
from prefect_resilience.guards.timeouts.timeout import Timeout

if TYPE_CHECKING:
    from prefect_resilience.durable.effects.policy import Effect
    from prefect_resilience.guards.budgets.policy import ErrorBudget
    from prefect_resilience.guards.circuits.breaker import CircuitBreaker
    from prefect_resilience.guards.decomposition.model import Decompose
    from prefect_resilience.guards.outputs.promise import Expect
    from prefect_resilience.guards.timeouts.process import Carriage

NO_RETRY = Retry(attempts=1)


@dataclass(frozen=True)
class Guard:
    """The policies around one function: small, frozen and picklable."""

    fn: Callable[..., Any]
    isasync: bool
    retry: Retry = NO_RETRY
    circuit: CircuitBreaker | None = None
    limits: tuple[Limit, ...] = ()
    timeout: Timeout | None = None
    hedge: Hedge | None = None
    fallbacks: tuple[Fallback, ...] = ()
    rules: tuple[Rule, ...] = ()
    effect: Effect | None = None
    dead_letter: bool = False
    restart_stream: bool = False
    error_budget: ErrorBudget | None = None
    policy: str | None = None
    """The block whose options override these, as `blocks.live` knows it."""
    expect: Expect | None = None
    decompose: Decompose | None = None
    source: CodeSource = NOWHERE
    """Where the function is defined, determined at decoration: keys of effects name it."""

    @property
    def retrying(self) -> Retry:
        """The retries of the policy, and those that the repair of an output needs."""
        return self.retry if self.expect is None else self.expect.joined(self.retry)

    @property
    def entered_in_order(self) -> tuple[Guarding, ...]:
        """The circuit and the limits, outermost first."""
        return self.limits if self.circuit is None else (self.circuit, *self.limits)

    @property
    def remembers(self) -> bool:
        return bool(self.fallbacks) and any(fallback.recalls for fallback in self.fallbacks)

    def classified(self, error: BaseException) -> ErrorInfo | None:
        """What went wrong by this guard's rules; None for what is no Exception, such as a cancellation."""
        return classify(error, rules=self.rules) if isinstance(error, Exception) else None


@dataclass(slots=True)
class RunRecord:
    """What has happened to one run so far, in this process. Made when something first goes wrong."""

    started: float
    history: list[AttemptRecord] = field(default_factory=list[AttemptRecord])
    counters: dict[str, int] = field(default_factory=dict[str, int])
    """Failed attempts by the category whose own rule counts them, "" for the policy itself."""
    counted: int = 0
    """The counter of the last error's rule."""
    previous_delay: float | None = None
    verdict: Verdict | None = None
    error: BaseException | None = None
    must_not_restart: bool = False
    """Its stream was cut off after a chunk was handed on, and may not begin again."""
    notes: Notes = field(default_factory=Notes)
    """The partial results that the function keeps, and what it can read about the attempt before."""


class RunContext(Memory, EffectSurroundings, Protocol):
    """Where a guarded call takes place. None of these may raise."""

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The call's arguments by name, those of a `**kwargs` beside the others."""
        ...

    @property
    def identity(self) -> dict[str, Any]:
        """`node_id`, `task_run_id` and `flow_run_id`, as texts or None."""
        ...

    def known(self) -> RunRecord | None:
        """The record of this run, if something went wrong in it before."""
        ...

    def record(self, started: float) -> RunRecord:
        """The record of this run, made now if there is none."""
        ...

    def done(self) -> None:
        """The run is over: forget its record."""
        ...

    def may_retry(self, error: Exception) -> Steps[bool]:
        """The answer of the user's own condition, asked when the policy would retry."""
        ...

    def went_well(self) -> None:
        """The function itself returned a value."""
        ...

    def leave_request(self, error: BaseException) -> None:
        """Attach to the error that ends this run the request that the run had."""
        ...

    def retrying(self, context: ErrorContext, verdict: Verdict) -> None: ...

    def replaced(self, context: ErrorContext, answer: Answer, error: BaseException) -> None: ...

    def recovered(self, record: RunRecord) -> None: ...

    def gave_up(self, context: ErrorContext, verdict: Verdict, error: BaseException) -> None: ...

    def carry_into_child(self) -> Carriage | None:
        """What the call takes along to a child process, so that it finds this run there."""
        ...


@dataclass(frozen=True, slots=True)
class Substitute:
    """The outcome of a run that a fallback answered."""

    answer: Answer
    context: ErrorContext
    message: str
