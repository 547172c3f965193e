"""Answers to Prefect's engine about a resilient task: whether to retry, the delay, and the cache key."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar, cast

from prefect.cache_policies import CacheKeyFnPolicy, CompoundCachePolicy
from prefect.client.schemas.objects import State, TaskRun
from prefect.context import TaskRunContext
from prefect.utilities.asyncutils import run_coro_as_sync

from prefect_resilience.base.deadlines import current_deadline
from prefect_resilience.base.drive import drive
from prefect_resilience.base.edge.current_settings import is_enabled
from prefect_resilience.calls.judging import judge_attempt, report_failure, report_retry
from prefect_resilience.calls.model import Guard
from prefect_resilience.errors.context import attached_context
from prefect_resilience.guards.retries.backoff import pause
from prefect_resilience.guards.retries.policy import Retry
from prefect_resilience.tasks.edge.logs import is_told_of, note_logged_state
from prefect_resilience.tasks.edge.task_options import MOST_RETRIES_BY_POLICY
from prefect_resilience.tasks.edge.task_runs import TaskSurroundings, apply_policy, record_of

if TYPE_CHECKING:
    from prefect_resilience.tasks.edge.task import ResilientTask


@dataclass(frozen=True)
class Answers:
    """The retry settings that the engine reads from a task, in place of those that the user wrote."""

    retries: int
    retry_delay_seconds: PolicyDelays | None
    retry_condition_fn: Callable[..., bool]
    retry_jitter_factor: None = None
    """None: the decided delay already has its jitter."""


class AsWritten:
    """One of Prefect's options for retries. The engine reads our answer, other code what the user wrote.

    The engine reads the option in the context of the task's run, while the run is running.
    """

    name: str

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, task: Any, owner: type | None = None) -> Any:
        if task is None:
            return self
        fields: dict[str, Any] = task.__dict__
        answers: Answers | None = fields.get("_for_engine")
        context = None if answers is None else TaskRunContext.get()
        if context is not None and context.task is task:
            state = context.task_run.state
            if state is not None and state.is_running():
                return getattr(answers, self.name)
        if self.name not in fields:
            raise AttributeError(self.name)
        return fields[self.name]

    def __set__(self, task: Any, value: Any) -> None:
        vars(task)[self.name] = value


class PolicyDelays(list[float]):
    """The delays that the UI shows as a task's policy. The engine gets the delay that was just decided."""

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        context = TaskRunContext.get()
        record = record_of(context.task_run.id) if context is not None else None
        if record is None or record.verdict is None:
            return super().__getitem__(index)
        return pause(record.verdict.delay)


def delays_of(retry: Retry) -> list[float]:
    """The delays of a policy as Prefect takes them, without jitter. Empty if there is no delay."""
    delays = [retry.delay(n) for n in range(min(retry.most_retries, 50))]
    return delays if any(delays) else []


def answers_of(guard: Guard) -> Answers:
    retrying = guard.retrying
    delays = delays_of(retrying)
    # The block may ask for more retries than the code, and Prefect must know the maximum.
    most = retrying.most_retries if guard.policy is None else MOST_RETRIES_BY_POLICY
    if not delays and most and (retrying.respect_retry_after or guard.policy is not None):
        delays = [0.0]
    return Answers(most, PolicyDelays(delays) if delays else None, retry_as_decided)


def retry_as_decided(task: Any, task_run: TaskRun, state: State[Any]) -> bool:
    """Whether to retry: the verdict of the attempt that has just failed."""
    if not is_enabled():
        return _as_without_us(task, task_run, state)
    record = record_of(task_run.id)
    if is_told_of(state):
        return False
    if record is not None and record.error is state.data:
        return record.verdict is not None and record.verdict.retry
    context = attached_context(state.data)
    if context is not None and context.task_run_id == str(task_run.id):
        return False  # the attempt gave up, and its record was dropped
    return _judge_outside_attempt(task, state)


def _judge_outside_attempt(task: ResilientTask[..., Any], state: State[Any]) -> bool:
    """Judge a failure outside the attempt: a result that cannot be stored, or a returned failed state."""
    context = cast(TaskRunContext, TaskRunContext.get())
    run = TaskSurroundings(task.guard, context, task, context.task_run)
    error = (
        state.data if isinstance(state.data, Exception) else RuntimeError(state.message or str(state.name))
    )
    guard = task.guard if task.guard.policy is None else drive(apply_policy(task.guard, run))
    context, verdict = drive(judge_attempt(guard, run, time.monotonic(), error))
    note_logged_state(state)
    if verdict.retry:
        report_retry(run, context, verdict)
    else:
        run.close_record()
        report_failure(run, context, verdict, error)
    return verdict.retry


def _as_without_us(task: ResilientTask[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
    """The answer of plain Prefect, while resilience is switched off."""
    if task_run.run_count > task.own_retries:
        return False
    condition = task.own_retry_condition
    if condition is None:
        return True
    answer: Any = condition(task, task_run, state)
    return bool(run_coro_as_sync(answer) if iscoroutinefunction(condition) else answer)


Policy = TypeVar("Policy")
Task = TypeVar("Task", bound="ResilientTask[..., Any]")


@dataclass(frozen=True)
class KeyOfOwnFunction:
    """A `cache_key_fn` that gets the task with the user's function: `task_input_hash` reads its code."""

    cache_key_fn: Callable[[TaskRunContext, dict[str, Any]], str | None]

    def __call__(self, context: TaskRunContext, arguments: dict[str, Any]) -> str | None:
        task: Any = context.task
        if getattr(task.fn, "__wrapped__", None) is task.guard.fn:
            plain = copy(task)
            plain.fn = task.guard.fn
            context = context.model_copy(update={"task": plain})
        return self.cache_key_fn(context, arguments)


def with_own_function(policy: Policy) -> Policy:
    """The cache policy of a resilient task; the same object if it contains no `cache_key_fn`."""
    if isinstance(policy, CacheKeyFnPolicy):
        if policy.cache_key_fn is None or isinstance(policy.cache_key_fn, KeyOfOwnFunction):
            return policy
        return replace(policy, cache_key_fn=KeyOfOwnFunction(policy.cache_key_fn))
    if isinstance(policy, CompoundCachePolicy):
        policies = [with_own_function(part) for part in policy.policies]
        return policy if policies == policy.policies else replace(policy, policies=policies)
    return policy


def code_without_source(fn: Callable[..., Any]) -> str | None:
    """The text that `TASK_SOURCE` hashes if a function's source cannot be read: its code, or its class."""
    code = getattr(fn, "__code__", None)
    if code is not None:
        return code.co_code.hex()
    try:
        return inspect.getsource(type(fn))
    except (OSError, TypeError):
        return None


# Copies of tasks and flows in the form that Prefect expects.


@functools.cache
def class_of_copy(resilient: type[Any], kind: type[Any], usual: type[Any]) -> type[Any]:
    """The class of a resilient copy. A task or flow of a special kind keeps its kind, such as one that makes
    assets or runs in a work pool."""
    if kind is usual or issubclass(kind, resilient):
        return resilient if kind is usual else kind
    members = {"__module__": resilient.__module__, "__init__": kind.__init__}
    return type(f"Resilient{kind.__name__}", (resilient, kind), members)


BINDING = ("__prefect_self__", "__prefect_cls__", "_isclassmethod", "_isstaticmethod")
"""The marks by which Prefect binds methods: of functions, then of tasks and flows."""


def bound_like(bound: Any, copy_of: Any, *more: str) -> Any:
    """Copy the marks of a function, task or flow to a copy of it: those in BINDING, and `more`."""
    for mark in (*BINDING, *more):
        if hasattr(bound, mark):
            setattr(copy_of, mark, getattr(bound, mark))
    return copy_of


def with_outer_deadline(task: Task) -> Task:
    """The task with the deadline around this code, which travels with it to another process."""
    limit = current_deadline.get()
    if limit is None:
        return task
    task = copy(task)
    vars(task)["outer_deadline"] = limit
    return task
