"""What the options of a resilient task may look like, checked against its function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, Literal, cast

from prefect.tasks import Task, TaskOptions

from prefect_resilience.attempt import NO_RETRY, Guard
from prefect_resilience.circuits.breaker import CircuitBreaker
from prefect_resilience.configuration import nearest
from prefect_resilience.errors.classify import Rule
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.fallbacks.model import Fallback, as_fallbacks
from prefect_resilience.limits.timeout import Timeout
from prefect_resilience.retries.backoff import Backoff
from prefect_resilience.retries.policy import Retry
from prefect_resilience.settings import current_settings

RetryOption = Retry | int | str | Mapping[str, Any] | Literal[False] | None
TimeoutOption = Timeout | float | timedelta | str | Mapping[str, Any] | None
FallbackOption = Fallback | Callable[..., Any] | Iterable[Fallback | Callable[..., Any]] | None
ClassifyOption = Rule | Iterable[Rule] | None


class _Unset:
    """Stands for an option that was not written."""

    def __repr__(self) -> str:
        return "unset"

    def __reduce__(self) -> str:
        return "UNSET"


UNSET: Any = _Unset()
OPTIONS = ("retry", "circuit", "timeout", "fallback", "classify")


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


def make_guard(
    fn: Callable[..., Any],
    isasync: bool,
    retry: Retry,
    circuit: CircuitBreaker | str | None,
    timeout: TimeoutOption,
    fallback: FallbackOption,
    classify: ClassifyOption,
) -> Guard:
    """Check the options against the function, and put them together."""
    circuit = CircuitBreaker(circuit) if isinstance(circuit, str) else circuit
    if circuit is not None:
        _check_circuit(circuit, fn)
    limit = Timeout.of(timeout, current_settings().operations)
    if limit is not None:
        limit.check_for(fn)
    fallbacks = as_fallbacks(fallback)
    for step in fallbacks:
        step.check_for(fn, isasync=isasync)
    rules = (classify,) if callable(classify) else tuple(classify or ())
    return Guard(fn, isasync, retry, circuit, limit, fallbacks, rules)


def _check_circuit(circuit: CircuitBreaker, fn: Callable[..., Any]) -> None:
    if not isinstance(circuit, CircuitBreaker):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"circuit={circuit!r} is no circuit: write circuit=CircuitBreaker('name')")
    parameters = inspect.signature(fn).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for field in circuit.fields:
        if field not in parameters:
            raise ConfigurationError(
                f"circuit {circuit.name!r} names {field!r}, which is no parameter of "
                f"{getattr(fn, '__name__', fn)!r}{nearest(field, parameters)}"
            )


def refuse_unknown(options: Mapping[str, Any]) -> None:
    known = [*TaskOptions.__annotations__, *OPTIONS]
    for name in options:
        if name not in known:
            raise ConfigurationError(f"a resilient task has no option {name!r}{nearest(name, known)}")
