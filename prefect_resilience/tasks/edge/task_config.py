"""A retry policy as options of plain Prefect tasks: for libraries that make their tasks themselves."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from prefect import Task

from prefect_resilience.base.durations import seconds
from prefect_resilience.base.policy import nearest
from prefect_resilience.calls.edge.call_options import as_policy
from prefect_resilience.errors.classify.classify import classify
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.guards.retries.policy import Retry

if TYPE_CHECKING:
    from datetime import timedelta

    from prefect.client.schemas.objects import State, TaskRun

    from prefect_resilience.calls.edge.call_options import RetryOption

    MayRetry = Callable[[Task[..., Any], TaskRun, State[Any]], Coroutine[Any, Any, bool]]

OURS = ("retries", "retry_delay_seconds", "retry_condition_fn", "timeout_seconds")
MOST_DELAYS = 50
"""How many delays Prefect takes; the last one holds for further retries."""


def task_config(
    retry: RetryOption | None = Retry(),  # noqa: B008 - a policy cannot be changed
    *,
    timeout: float | str | timedelta | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Options of a plain Prefect task that retries as `retry` says.

    For a library that makes its tasks itself and takes Prefect's options for them, such as the `TaskConfig`
    of pydantic-ai: `PrefectDurability(model_task_config=task_config(Retry(attempts=4), timeout=60))`.
    Errors are classified as in a resilient task: what is not retryable is not retried, and a server's
    `Retry-After` is waited for. Circuits, fallbacks and effects need a task of ours.

    retry: as in `resilient_task`: a `Retry`, a number of attempts, JSON, or None for no retries.
    timeout: the longest time of an attempt.
    options: more options of Prefect's `task`, which stay as they are.

    Raises ConfigurationError for a policy, a timeout or an option that is wrong.

    Example:
        >>> made = task_config(Retry(attempts=3), timeout="1m", persist_result=True)
        >>> made["retries"], made["timeout_seconds"], made["persist_result"]
        (2, 60.0, True)
    """
    accepted = list(inspect.signature(Task[..., Any].with_options).parameters)[1:]
    for name in options:
        if name in OURS:
            raise ConfigurationError(f"{name}= is set by the policy: write retry=Retry(...) and timeout=")
        if name not in accepted:
            raise ConfigurationError(f"a Prefect task has no option {name!r}{nearest(name, accepted)}")
    policy = as_policy(retry)
    delays = [policy.delay(n, random=random.random()) for n in range(min(policy.most_retries, MOST_DELAYS))]
    converted: dict[str, Any] = {"retries": policy.most_retries, "retry_delay_seconds": delays or 0}
    if delays:
        converted["retry_condition_fn"] = _condition(policy, delays)
    if timeout is not None:
        try:
            converted["timeout_seconds"] = seconds("timeout", timeout)
        except ValueError as error:
            raise ConfigurationError(str(error)) from None
    return {**options, **converted}


def _condition(policy: Retry, delays: list[float]) -> MayRetry:
    """Whether the policy retries. Waits here for what a server asks beyond the delay that Prefect knows."""

    async def may_retry(_: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
        error = state.data if isinstance(state.data, Exception) else RuntimeError(state.message)
        info = classify(error)
        verdict = policy.decide(info, task_run.run_count, random=random.random(), exception=error)
        if verdict.retry and info.retry_after is not None:
            await asyncio.sleep(max(0.0, verdict.delay - delays[min(task_run.run_count, len(delays)) - 1]))
        return verdict.retry

    return may_retry
