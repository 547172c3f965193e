"""Makes the policies around a function from the user's options, and checks that they fit the function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from typing_extensions import TypedDict

from prefect_resilience.base.deadlines import read_deadline
from prefect_resilience.base.durations import Duration
from prefect_resilience.base.edge.current_settings import current_settings
from prefect_resilience.base.naming import UNSET
from prefect_resilience.base.outcomes import generates
from prefect_resilience.base.policy import check_parameters, name_of
from prefect_resilience.calls.model import Guard
from prefect_resilience.durable.effects.recipes import source_of
from prefect_resilience.errors.classify.table import blocks
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.patterns import forms
from prefect_resilience.guards.fallbacks import Fallback, as_fallbacks
from prefect_resilience.guards.limits.guarding import Limit, NamedLimit
from prefect_resilience.guards.retries.policy import NO_RETRY, Retry
from prefect_resilience.guards.timeouts.timeout import Timeout

T = TypeVar("T")

if TYPE_CHECKING:
    from prefect_resilience.durable.effects.policy import Effect
    from prefect_resilience.errors.classify.classify import Rule
    from prefect_resilience.guards.budgets.policy import ErrorBudget
    from prefect_resilience.guards.circuits.breaker import CircuitBreaker
    from prefect_resilience.guards.decomposition import Decompose, Split
    from prefect_resilience.guards.limits.hedge import Hedge
    from prefect_resilience.guards.outputs.promise import Expect

    RetryOption = Retry | int | str | Mapping[str, Any] | Literal[False] | None
    TimeoutOption = Timeout | float | timedelta | str | Mapping[str, Any] | None
    FallbackOption = Fallback | Callable[..., Any] | Iterable[Fallback | Callable[..., Any]] | None
    EffectOption = Effect | Literal["idempotent", "conditional", "external"] | Mapping[str, Any] | None
    LimitsOption = Limit | Iterable[Limit] | None
    ExpectOption = Expect | str | Mapping[str, Any] | type | Callable[[Any], Any] | None
    DecomposeOption = Decompose | Split | Mapping[str, Any] | None
    BudgetOption = ErrorBudget | Mapping[str, Any] | float | None
    ClassifyOption = Rule | Iterable[Rule] | None


class ResilienceOptions(TypedDict, total=False):
    """The options in addition to those of a Prefect task; `resilient_task` explains them."""

    retry: RetryOption
    circuit: CircuitBreaker | str | None
    limits: LimitsOption
    timeout: TimeoutOption
    deadline: Duration | None
    hedge: Hedge | None
    fallback: FallbackOption
    classify: ClassifyOption
    effect: EffectOption
    dead_letter: bool
    policy: str | None
    restart_stream: bool
    error_budget: BudgetOption
    expect: ExpectOption
    decompose: DecomposeOption


OPTIONS = tuple(ResilienceOptions.__annotations__)
DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(OPTIONS),
    **{"retry": UNSET, "dead_letter": False, "restart_stream": False},
}


def as_policy(retry: RetryOption) -> Retry:
    """`retry=` as a policy."""
    if retry is None or retry is False:
        return NO_RETRY
    if isinstance(retry, Retry):
        return retry
    if isinstance(retry, int) and not isinstance(retry, bool):
        return Retry(attempts=retry)
    if isinstance(retry, Mapping):
        return Retry(**retry)
    raise ConfigurationError(
        f"retry={retry!r} is not a retry policy: write Retry(attempts=3), a number of attempts, or None"
    )


def make_guard(fn: Callable[..., Any], isasync: bool, retry: Retry, ours: Mapping[str, Any]) -> Guard:
    """Check the options against the function, and combine them."""
    if retry.park_after is not None:
        raise ConfigurationError(
            "park_after is for flows, because a run parks, not a call: "
            "write @resilient_flow(retry=Retry(park_after=...))"
        )
    # The first error may be that no more files can be opened.
    blocks()
    forms()
    ours = {**DEFAULTS, **ours}
    restart_stream = yes_or_no("restart_stream", ours["restart_stream"])
    if generates(fn):
        _check_stream(ours, fn)
    elif restart_stream:
        raise ConfigurationError(
            f"restart_stream= is for generators, and {name_of(fn)!r} is not one: leave it out"
        )
    timeout = Timeout.of(ours["timeout"], current_settings().operations)
    if timeout is not None:
        timeout.check_for(fn)
    fallbacks = as_fallbacks(ours["fallback"])
    for step in fallbacks:
        step.check_for(fn, isasync=isasync)
    rules: Any = ours["classify"]

    def build(option: str, make: Callable[..., T], *more: Any) -> T | None:
        return None if ours[option] is None else make(ours[option], *more)

    hedge = build("hedge", _hedge, timeout)
    effect = build("effect", _effect, fn, isasync, hedge)
    return Guard(
        fn,
        isasync,
        retry,
        build("circuit", _circuit, fn),
        _limits(ours["limits"], fn),
        timeout,
        read_deadline(ours["deadline"]),
        hedge,
        fallbacks,
        (cast("Rule", rules),) if callable(rules) else tuple(rules or ()),
        effect,
        yes_or_no("dead_letter", ours["dead_letter"]),
        restart_stream,
        build("error_budget", _error_budget),
        policy=build("policy", _policy_block),
        expect=build("expect", _expect, fn, isasync, effect),
        decompose=build("decompose", _decompose, fn, isasync, effect),
        source=source_of(fn),
    )


OF_ONE_RESULT = ("hedge", "effect", "expect", "decompose")


def _check_stream(ours: Mapping[str, Any], fn: Callable[..., Any]) -> None:
    """Raise ConfigurationError for an option that a generator cannot have."""
    for option in OF_ONE_RESULT:
        if ours[option] is not None:
            raise ConfigurationError(
                f"{option}= needs a function with one result, but {name_of(fn)!r} is a generator: return a "
                f"list, or leave {option}= out"
            )


def _circuit(value: Any, fn: Callable[..., Any]) -> CircuitBreaker:
    # Policies that few calls have are imported late.
    from prefect_resilience.guards.circuits.breaker import CircuitBreaker
    from prefect_resilience.guards.circuits.model import CircuitPolicy

    circuit = CircuitBreaker(value) if isinstance(value, str) else value
    if isinstance(circuit, CircuitPolicy):
        raise ConfigurationError(
            "circuit= is a CircuitPolicy, which has no name: write CircuitBreaker.from_policy('name', policy)"
        )
    if not isinstance(circuit, CircuitBreaker):
        raise ConfigurationError(f"circuit={circuit!r} is not a circuit: write CircuitBreaker('name')")
    check_fields(f"circuit {circuit.name!r}", circuit.fields, fn)
    return circuit


def _error_budget(value: Any) -> ErrorBudget | None:
    from prefect_resilience.guards.budgets.policy import ErrorBudget

    return ErrorBudget.of(value)


def _limits(value: Any, fn: Callable[..., Any]) -> tuple[Limit, ...]:
    written = cast(
        "Iterable[Any]", value if isinstance(value, (list, tuple)) else [] if value is None else [value]
    )
    for limit in written:
        if not isinstance(limit, Limit):
            raise ConfigurationError(
                f"limits={limit!r} is not a limit: write Bulkhead(5) or RateLimit(10, per=1)"
            )
        if isinstance(limit, NamedLimit):
            check_fields(f"limit {limit.name!r}", limit.fields, fn)
    return tuple(written)


def _hedge(hedge: Any, timeout: Timeout | None) -> Hedge:
    from prefect_resilience.guards.limits.hedge import Hedge

    if not isinstance(hedge, Hedge):
        raise ConfigurationError(f"hedge={hedge!r} is not a hedge: write Hedge(after=0.8)")
    if timeout is not None and timeout.mode == "process":
        raise ConfigurationError(
            'hedge= cannot repeat a call in a child process: leave Timeout(mode="process") or hedge= out'
        )
    return hedge


def _effect(value: Any, fn: Callable[..., Any], isasync: bool, hedge: Hedge | None) -> Effect:
    from prefect_resilience.durable.effects.policy import Effect

    effect = cast("Effect", Effect.of(value))
    if hedge is not None and effect.kind != "idempotent":
        raise ConfigurationError(
            f"hedge= makes a slow call a second time, "
            f"which effect={effect.kind!r} forbids: leave one of the two out"
        )
    check_fields(f"effect key {effect.key!r}", effect.fields, fn)
    effect.check_for(fn, isasync=isasync)
    return effect


def _expect(value: Any, fn: Callable[..., Any], isasync: bool, effect: Effect | None) -> Expect:
    from prefect_resilience.guards.outputs.promise import Expect

    expect = Expect.of(value)
    expect.check_for(fn, isasync=isasync)
    if effect is not None and effect.kind != "idempotent" and expect.repair:
        raise ConfigurationError(
            f"Expect(repair=True) repeats the call, which effect={effect.kind!r} forbids: leave repair out"
        )
    return expect


def _decompose(value: Any, fn: Callable[..., Any], isasync: bool, effect: Effect | None) -> Decompose:
    from prefect_resilience.guards.decomposition import Decompose

    decompose = Decompose.of(value)
    if effect is not None and (effect.kind != "idempotent" or effect.key is not None):
        raise ConfigurationError(
            f"decompose= splits one call into several, but effect= records a single call: "
            f"{name_of(fn)!r} can have only one of the two"
        )
    decompose.check_for(fn, isasync=isasync)
    return decompose


def yes_or_no(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigurationError(f"{name}={value!r} is not a boolean: write True or False")
    return value


def _policy_block(name: Any) -> str:
    if not isinstance(name, str) or not name:
        raise ConfigurationError(
            f"policy={name!r} is not a name: write the name of a ResiliencePolicy block, as in 'llm-default'"
        )
    return name


def check_fields(what: str, fields: Iterable[str], fn: Callable[..., Any]) -> None:
    """Check that a name with a template only uses the function's parameters."""
    check_parameters(f"{what} names", fields, fn)
