"""What the options of a resilient task may look like, checked against its function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, Literal, cast

from prefect.tasks import Task, TaskOptions
from typing_extensions import TypedDict

from prefect_resilience.attempt import NO_RETRY, Guard
from prefect_resilience.budgets.policy import ErrorBudget
from prefect_resilience.circuits.breaker import CircuitBreaker
from prefect_resilience.configuration import nearest
from prefect_resilience.decomposition.model import Decompose
from prefect_resilience.decomposition.splitters import Split
from prefect_resilience.effects.policy import Effect
from prefect_resilience.errors.classify import Rule
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.fallbacks.model import Fallback, as_fallbacks
from prefect_resilience.limits.guarding import Limit
from prefect_resilience.limits.hedge import Hedge
from prefect_resilience.limits.timeout import Timeout
from prefect_resilience.outputs.promise import Expect
from prefect_resilience.retries.backoff import Backoff
from prefect_resilience.retries.policy import Retry
from prefect_resilience.settings import current_settings

RetryOption = Retry | int | str | Mapping[str, Any] | Literal[False] | None
TimeoutOption = Timeout | float | timedelta | str | Mapping[str, Any] | None
FallbackOption = Fallback | Callable[..., Any] | Iterable[Fallback | Callable[..., Any]] | None
EffectOption = Effect | Literal["idempotent", "conditional", "external"] | Mapping[str, Any] | None
LimitsOption = Limit | Iterable[Limit] | None
ExpectOption = Expect | str | Mapping[str, Any] | type | Callable[[Any], Any] | None
DecomposeOption = Decompose | Split | Mapping[str, Any] | None
BudgetOption = ErrorBudget | Mapping[str, Any] | float | None
ClassifyOption = Rule | Iterable[Rule] | None


class _Unset:
    """Stands for an option that was not written."""

    def __repr__(self) -> str:
        return "unset"

    def __reduce__(self) -> str:
        return "UNSET"


UNSET: Any = _Unset()


class ResilienceOptions(TypedDict, total=False):
    """The options beside those of a Prefect task; `resilient_task` says what they mean."""

    retry: RetryOption
    circuit: CircuitBreaker | str | None
    limits: LimitsOption
    timeout: TimeoutOption
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


class ResilientTaskOptions(ResilienceOptions, TaskOptions, total=False):
    """Every option of a resilient task."""


OPTIONS = tuple(ResilienceOptions.__annotations__)
MOST_RETRIES_BY_POLICY = 100
"""So many retries at most a block may ask for; Prefect counts up to it."""


def split(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Our options and Prefect's. Raises ConfigurationError for one that is neither."""
    known = [*TaskOptions.__annotations__, *OPTIONS]
    for name in options:
        if name not in known:
            raise ConfigurationError(f"a resilient task has no option {name!r}{nearest(name, known)}")
    ours = {name: value for name, value in options.items() if name in OPTIONS}
    return ours, {name: value for name, value in options.items() if name not in OPTIONS}


def written_policy(task: Task[Any, Any], ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Retry:
    """The policy that a decorator's options mean, ours and Prefect's together."""
    for name in ("retries", "retry_delay_seconds", "retry_jitter_factor"):
        if "retry" in ours and theirs.get(name) is not None:
            raise ConfigurationError(
                f"task {task.name!r} has both retry= and {name}={theirs[name]!r}: write it in Retry(...), "
                f"or leave out retry= for Prefect's own retries"
            )
    asked = theirs.get("retries") is not None
    policy = retry_policy(task, ours.get("retry", UNSET), asked=asked)
    return policy if asked else retry_with(policy, task, theirs)


def retry_policy(task: Task[Any, Any], retry: RetryOption, *, asked: bool) -> Retry:
    """`retry=` as a policy. Without it, Prefect's own `retries` if they were asked for, else the defaults."""
    if retry is UNSET:
        return prefects_own(task) if asked else Retry()
    if retry is None or retry is False:
        return NO_RETRY
    if isinstance(retry, Retry):
        return retry
    if isinstance(retry, int):
        return Retry(attempts=retry)
    if isinstance(retry, Mapping):
        return Retry(**retry)
    raise ConfigurationError(
        f"retry={retry!r} is no policy: write Retry(attempts=3), a number of attempts, or None"
    )


def prefects_own(task: Task[Any, Any]) -> Retry:
    """Retries as Prefect makes them: after any exception, with the delays that the task has."""
    return Retry(
        attempts=task.retries + 1,
        backoff=_as_backoff(task.retry_delay_seconds),
        retry_on=Exception,
        respect_retry_after=False,
    )


def retry_with(policy: Retry, made: Task[Any, Any], options: Mapping[str, Any]) -> Retry:
    """A policy changed by Prefect's own options in `with_options`."""
    changes: dict[str, Any] = {}
    if isinstance(options.get("retries"), int):
        changes |= {"attempts": options["retries"] + 1, "by_category": {}}
    if "retry_delay_seconds" in options:
        changes["backoff"] = _as_backoff(made.retry_delay_seconds)
    return policy.model_copy(update=changes) if changes else policy


def _as_backoff(delays: Any) -> Backoff:
    if not delays:
        return Backoff.none()
    written = cast("list[float]", delays if isinstance(delays, list) else [delays])
    return Backoff.schedule([float(delay) for delay in written])


def make_guard(fn: Callable[..., Any], isasync: bool, retry: Retry, ours: Mapping[str, Any]) -> Guard:
    """Check the options against the function, and put them together."""
    circuit = ours.get("circuit")
    circuit = CircuitBreaker(circuit) if isinstance(circuit, str) else circuit
    if circuit is not None:
        if not isinstance(circuit, CircuitBreaker):
            raise ConfigurationError(f"circuit={circuit!r} is no circuit: write CircuitBreaker('name')")
        _check_fields(f"circuit {circuit.name!r}", circuit.fields, fn)
    timeout = Timeout.of(ours.get("timeout"), current_settings().operations)
    if timeout is not None:
        timeout.check_for(fn)
    fallbacks = as_fallbacks(ours.get("fallback"))
    for step in fallbacks:
        step.check_for(fn, isasync=isasync)
    rules: Any = ours.get("classify")
    hedge = _hedge(ours.get("hedge"), fn)
    return Guard(
        fn,
        isasync,
        retry,
        circuit,
        _limits(ours.get("limits"), fn),
        timeout,
        hedge,
        fallbacks,
        (cast(Rule, rules),) if callable(rules) else tuple(rules or ()),
        _effect(ours.get("effect"), fn, isasync, hedge),
        _dead_letter(ours.get("dead_letter", False)),
        _restart_stream(ours.get("restart_stream", False), fn),
        ErrorBudget.of(ours.get("error_budget")),
        policy=_policy_block(ours.get("policy")),
        expect=_expect(ours, fn, isasync),
        decompose=_decompose(ours, fn, isasync),
    )


def _limits(limits: Any, fn: Callable[..., Any]) -> tuple[Limit, ...]:
    written = cast(
        "Iterable[Any]", limits if isinstance(limits, (list, tuple)) else [limits] if limits else []
    )
    for limit in written:
        if not isinstance(limit, Limit):
            raise ConfigurationError(
                f"limits={limit!r} is no limit: write Bulkhead(5) or RateLimit(10, per=1)"
            )
        _check_fields(f"limit {limit.name!r}", limit.fields, fn)
    return tuple(written)


def _hedge(hedge: Any, fn: Callable[..., Any]) -> Hedge | None:
    if hedge is None:
        return None
    name = getattr(fn, "__name__", repr(fn))
    if not isinstance(hedge, Hedge):
        raise ConfigurationError(f"hedge={hedge!r} is no hedge: write Hedge(after=0.8)")
    if not inspect.iscoroutinefunction(fn):
        raise ConfigurationError(
            f"hedge= is for idempotent async reads: write `async def {name}`, or leave it out"
        )
    return hedge


def _effect(value: Any, fn: Callable[..., Any], isasync: bool, hedge: Hedge | None) -> Effect | None:
    effect = Effect.of(value)
    if effect is None:
        return None
    name = getattr(fn, "__name__", repr(fn))
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise ConfigurationError(
            f"effect= is for a call that has one result: {name!r} is a generator, whose chunks cannot be "
            f"recorded: return a list, or leave it out"
        )
    if hedge is not None and effect.kind != "idempotent":
        raise ConfigurationError(
            f"hedge= makes a slow call a second time, "
            f"which effect={effect.kind!r} forbids: leave one of them out"
        )
    _check_fields(f"effect key {effect.key!r}", effect.fields, fn)
    effect.check_for(fn, isasync=isasync)
    return effect


def _expect(ours: Mapping[str, Any], fn: Callable[..., Any], isasync: bool) -> Expect | None:
    expect = Expect.of(ours.get("expect"))
    if expect is None:
        return None
    expect.check_for(fn, isasync=isasync)
    effect = Effect.of(ours.get("effect"))
    if effect is not None and effect.kind != "idempotent" and expect.repair:
        raise ConfigurationError(
            f"Expect(repair=True) makes the call again, which effect={effect.kind!r} forbids: what is done "
            f"stays done, so leave repair out"
        )
    return expect


def _decompose(ours: Mapping[str, Any], fn: Callable[..., Any], isasync: bool) -> Decompose | None:
    decompose = Decompose.of(ours.get("decompose"))
    if decompose is None:
        return None
    name = getattr(fn, "__name__", repr(fn))
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise ConfigurationError(
            f"decompose= is for a call that has one result: {name!r} is a generator, so return a list"
        )
    effect = Effect.of(ours.get("effect"))
    if effect is not None and (effect.kind != "idempotent" or effect.key is not None):
        raise ConfigurationError(
            f"decompose= makes several calls of one, and effect= says that there is one: "
            f"{name!r} can have one of them only"
        )
    decompose.check_for(fn, isasync=isasync)
    return decompose


def _dead_letter(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigurationError(f"dead_letter={value!r} is neither yes nor no: write True or False")
    return value


def _restart_stream(value: Any, fn: Callable[..., Any]) -> bool:
    name = getattr(fn, "__name__", repr(fn))
    if not isinstance(value, bool):
        raise ConfigurationError(f"restart_stream={value!r} is neither yes nor no: write True or False")
    if value and not (inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn)):
        raise ConfigurationError(f"restart_stream= is for generators: {name!r} is none, so leave it out")
    return value


def _policy_block(name: Any) -> str | None:
    if name is not None and (not isinstance(name, str) or not name):
        raise ConfigurationError(
            f"policy={name!r} names no block: write the name of a ResiliencePolicy, as in 'llm-default'"
        )
    return name


def _check_fields(what: str, fields: Iterable[str], fn: Callable[..., Any]) -> None:
    """A name that is a template may name the function's parameters only."""
    parameters = inspect.signature(fn).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for field in fields:
        if field not in parameters:
            raise ConfigurationError(
                f"{what} names {field!r}, which is no parameter of "
                f"{getattr(fn, '__name__', fn)!r}{nearest(field, parameters)}"
            )
