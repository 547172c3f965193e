"""What Prefect's engine asks about a failed attempt: again? after how many seconds?"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, SupportsIndex, cast

from prefect.client.schemas.objects import State, TaskRun
from prefect.context import TaskRunContext
from prefect.utilities.asyncutils import run_coro_as_sync

from prefect_resilience.base.drive import drive
from prefect_resilience.base.edge.settings import enabled
from prefect_resilience.calls.judging import judged
from prefect_resilience.errors.context import attached_context
from prefect_resilience.guards.retries.backoff import pause
from prefect_resilience.tasks.edge.logs import told_of_state
from prefect_resilience.tasks.edge.task_runs import TaskSurroundings, governed, record_of

if TYPE_CHECKING:
    from prefect_resilience.tasks.edge.task import ResilientTask


@dataclass(frozen=True)
class Answers:
    """What the engine finds in a task for its retries, in place of what the user wrote there."""

    retries: int
    retry_delay_seconds: PolicyDelays | None
    retry_condition_fn: Callable[..., bool]
    retry_jitter_factor: None = None
    """A decided delay has its jitter already."""


class AsWritten:
    """One of Prefect's options for retries: it reads as the user wrote it, but for the engine.

    The engine asks in the context of the task's run, while that is running.
    """

    name: str

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, task: Any, owner: type | None = None) -> Any:
        if task is None:
            return self
        fields = cast("dict[str, Any]", vars(task))
        answers: Answers | None = fields.get("_for_engine")
        if answers is not None and _is_running(task):
            return getattr(answers, self.name)
        if self.name not in fields:
            raise AttributeError(self.name)
        return fields[self.name]

    def __set__(self, task: Any, value: Any) -> None:
        vars(task)[self.name] = value


def _is_running(task: Any) -> bool:
    """Whether a run of this very task is going on here."""
    context = TaskRunContext.get()
    if context is None or context.task is not task:
        return False
    state = context.task_run.state
    return state is not None and state.is_running()


class PolicyDelays(list[float]):
    """The delays that the UI shows as a task's policy; when the engine asks, the one decided just now."""

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        context = TaskRunContext.get()
        record = record_of(context.task_run.id) if context is not None else None
        if record is None or record.verdict is None:
            return super().__getitem__(index)
        return pause(record.verdict.delay)


def retry_as_decided(task: Any, task_run: TaskRun, state: State[Any]) -> bool:
    """The engine asks whether to try again: the answer of the attempt that has just failed."""
    if not enabled():
        return _as_without_us(task, task_run, state)
    record = record_of(task_run.id)
    if record is not None and record.error is state.data:
        return record.verdict is not None and record.verdict.retry
    context = attached_context(state.data)
    if context is not None and context.task_run_id == str(task_run.id):
        return False  # the attempt gave up, and its record is gone
    return _judge_outside_attempt(task, state)


def _judge_outside_attempt(task: ResilientTask[..., Any], state: State[Any]) -> bool:
    """Something failed around the attempt: a result that cannot be stored, or a failed state was returned."""
    here = TaskSurroundings(task.guard, cast(TaskRunContext, TaskRunContext.get()))
    error = (
        state.data if isinstance(state.data, Exception) else RuntimeError(state.message or str(state.name))
    )
    guard = task.guard if task.guard.policy is None else drive(governed(task.guard, here))
    context, verdict = drive(judged(guard, here, time.monotonic(), error))
    told_of_state(state)
    if verdict.retry:
        here.retrying(context, verdict)
    else:
        here.done()
        here.gave_up(context, verdict, error)
    return verdict.retry


def _as_without_us(task: ResilientTask[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
    """Plain Prefect's answer, while resilience is switched off."""
    if task_run.run_count > task.own_retries:
        return False
    condition = task.own_retry_condition
    if condition is None:
        return True
    said: Any = condition(task, task_run, state)
    return bool(run_coro_as_sync(said) if iscoroutinefunction(condition) else said)
