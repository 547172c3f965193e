"""A guarded call inside a Prefect task run: where `attempt.py` meets Prefect's engine.

The engine calls the guarded function once per attempt. An attempt that is to be made again raises, and
leaves its verdict here under the task run's id, where the engine's two questions (again? after how many
seconds?) find it.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, SupportsIndex, cast
from uuid import UUID, uuid4

from prefect.client.schemas.objects import State, TaskRun
from prefect.context import TaskRunContext, hydrated_context, serialize_context
from prefect.logging.loggers import task_run_logger
from prefect.states import Completed, Failed
from prefect.utilities.asyncutils import run_coro_as_sync
from prefect.utilities.callables import explode_variadic_parameter
from prefect.utilities.hashing import hash_objects
from pydantic import PrivateAttr

from prefect_resilience.attempt import Guard, RunRecord, Substitute, judged
from prefect_resilience.batches import batch_of
from prefect_resilience.drive import Invoke, Sequence, drive
from prefect_resilience.effects.claim import Replayed
from prefect_resilience.effects.current import EffectInProgress, in_progress
from prefect_resilience.effects.ledger import Ledger, open_ledger, set_ledger_store
from prefect_resilience.errors.context import ErrorContext, attached_context
from prefect_resilience.errors.redact import redact
from prefect_resilience.events import emit, error_payload
from prefect_resilience.fallbacks.chain import Answer
from prefect_resilience.logs import keep_secrets_out_of_logs
from prefect_resilience.retries.policy import Verdict
from prefect_resilience.settings import current_settings, enabled

if TYPE_CHECKING:
    import logging

    from prefect_resilience.tasks import ResilientTask

MOST_RECORDS = 10_000
"""Runs that were cut off between two attempts leave a record behind; the oldest give way to new ones."""

set_ledger_store(lambda: current_settings().store_url)

_records: OrderedDict[UUID, RunRecord] = OrderedDict()


class ReplacedState(State[Any]):
    """`Completed`, under the name `Fallback` or `Degraded` with the error that made it necessary, or under
    the name `Replayed` without one."""

    _error_context: ErrorContext | None = PrivateAttr(default=None)

    @property
    def error_context(self) -> ErrorContext | None:
        return self._error_context


@dataclass(eq=False)
class TaskSurroundings:
    """What one task run gives to an attempt (see `attempt.Surroundings`)."""

    guard: Guard
    context: TaskRunContext

    @property
    def task(self) -> ResilientTask[..., Any]:
        return cast("ResilientTask[..., Any]", self.context.task)

    @property
    def task_run(self) -> TaskRun:
        return self.context.task_run

    @property
    def parameters(self) -> Mapping[str, Any]:
        return explode_variadic_parameter(self.guard.fn, self.context.parameters)

    @property
    def identity(self) -> dict[str, Any]:
        run = self.task_run
        return {
            "node_id": self.task.name,
            "task_run_id": str(run.id),
            "flow_run_id": str(run.flow_run_id) if run.flow_run_id else None,
        }

    @cached_property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        return task_run_logger(task_run=self.task_run, task=self.task)

    def known(self) -> RunRecord | None:
        return _records.get(self.task_run.id) if _records else None

    def record(self, started: float) -> RunRecord:
        record = _records.setdefault(self.task_run.id, RunRecord(started))
        while len(_records) > MOST_RECORDS:
            _records.popitem(last=False)
        return record

    def done(self) -> None:
        _records.pop(self.task_run.id, None)

    def may_retry(self, error: Exception) -> Sequence[bool]:
        condition = self.task.own_retry_condition
        if condition is None:
            return True
        state = Failed(data=error, message=f"Task run encountered unexpected exception: {error!r}")
        asked = (self.task, self.task_run, state)
        try:
            if iscoroutinefunction(condition) and not self.guard.isasync:
                return bool((yield Invoke(run_coro_as_sync, (condition(*asked),))))
            return bool((yield Invoke(condition, asked)))
        except Exception as failure:  # noqa: BLE001 - as in Prefect, a condition that fails means no
            self.logger.error("retry_condition_fn failed, so there is no retry: %s", redact(repr(failure)))
            return False

    # What is told to people, once it has been decided.

    def retrying(self, context: ErrorContext, verdict: Verdict) -> None:
        self.logger.warning(
            "Retrying (%s/%s) in %.1f s: %s",
            context.attempt + 1,
            context.max_attempts,
            verdict.delay,
            context.summary(),
        )
        self._emit("retry.scheduled", context, delay=verdict.delay, why=verdict.why)

    def replaced(self, context: ErrorContext, answer: Answer, attempts: int) -> None:
        fallback = answer.fallback
        self.logger.warning("%s answered instead, after: %s", fallback.name, context.summary())
        self._emit("fallback.used", context, to=fallback.name, degraded=fallback.degraded, attempts=attempts)
        if fallback.degraded:
            self._emit("run.degraded", context, to=fallback.name)

    def recovered(self, record: RunRecord) -> None:
        after = time.monotonic() - record.started
        attempts = len(record.history) + 1
        self.logger.info("Recovered at attempt %s, after %.1f s", attempts, after)
        last = record.history[-1].error
        payload = {
            "attempts": attempts,
            "after": after,
            "error": last.model_dump(mode="json") if last else None,
        }
        emit("run.recovered", "task", self.task.name, {**self.identity, **payload})

    def gave_up(self, context: ErrorContext, verdict: Verdict) -> None:
        attempts = "1 attempt" if context.attempt == 1 else f"{context.attempt} attempts"
        self.logger.error("Giving up after %s (%s): %s", attempts, verdict.why, context.summary())
        self._emit("run.failed", context, why=verdict.why, exhausted=context.retryable)

    def _emit(self, happening: str, context: ErrorContext, **more: Any) -> None:
        emit(happening, "task", self.task.name, {**error_payload(context), **more})

    # Where values are kept.

    def remember(self, value: Any) -> None:
        try:
            self.context.result_store.write({"at": time.time(), "value": value}, key=self._memory_key())
        except Exception as failure:  # noqa: BLE001 - a result that cannot be kept is no reason to fail
            self.logger.warning("The last good result could not be kept: %s", redact(repr(failure)))

    def recall(self, max_age: float | None) -> Any:
        try:
            kept = self.context.result_store.read(self._memory_key()).result
        except Exception:  # noqa: BLE001 - each storage has its own way to say that there is nothing
            raise LookupError("no earlier result is kept for these arguments") from None
        age = time.time() - kept["at"]
        if max_age is not None and age > max_age:
            raise LookupError(f"the last good result is {age:.0f} s old, and may be {max_age:g} s at most")
        return kept["value"]

    def _memory_key(self) -> str:
        hashed = hash_objects(self.task.task_key, dict(self.parameters))
        if hashed is None:
            raise LookupError("the arguments cannot be hashed, so no result is kept for them")
        return f"last-known-good-{hashed}"

    # What effects need.

    def batch_id(self) -> str:
        return batch_of(self.task_run)

    def ledger(self) -> Ledger:
        return open_ledger()

    def keep(self, reference: str, value: Any) -> str | None:
        try:
            self.context.result_store.write(value, key=reference)
        except Exception as failure:  # noqa: BLE001 - the effect is done, whatever becomes of its result
            self.logger.warning("The effect's result is no JSON and could not be kept: %r", failure)
            return redact(f"it is no JSON, and the result storage said {failure!r}")
        return None

    def kept(self, reference: str) -> Any:
        try:
            return self.context.result_store.read(reference).result
        except Exception as failure:  # noqa: BLE001 - each storage has its own way to say no
            said = redact(repr(failure))
            raise LookupError(
                f"it is no JSON, and the result storage does not have it here: {said}"
            ) from None

    def replayed(self, replayed: Replayed) -> None:
        self.logger.info("Replayed: %s", replayed.message)
        self._emit_effect(
            "effect.replayed", replayed.key, replayed.batch_id, external_id=replayed.external_id
        )

    def in_doubt(self, key: str, batch_id: str, why: str) -> None:
        self.logger.error(
            "In doubt: whether %r of batch %r took place is unknown: %s", key, batch_id, redact(why)
        )
        self._emit_effect("effect.in-doubt", key, batch_id, why=redact(why))

    def unrecorded(self, why: str) -> None:
        self.logger.warning("This effect is not in the ledger: %s", redact(why))

    def _emit_effect(self, happening: str, key: str, batch_id: str, **more: Any) -> None:
        payload = {"key": key, "batch_id": batch_id, **self.identity, **more}
        emit(happening, "effect", key, payload)

    def carry_into_child(self) -> Callable[[Callable[[], Any]], Any]:
        return InThisRun(serialize_context(), in_progress.get())


@dataclass(frozen=True)
class InThisRun:
    """Calls something inside a task run, from another process."""

    serialized: dict[str, Any]
    effect: EffectInProgress | None = None

    def __call__(self, call: Callable[[], Any]) -> Any:
        in_progress.set(self.effect)
        with hydrated_context(self.serialized):
            return call()


def surroundings_of(guard: Guard) -> TaskSurroundings | None:
    """The task run that is going on, or None when the function is called as a plain function."""
    context = TaskRunContext.get()
    if context is None or getattr(context.task, "guard", None) is not guard or not enabled():
        return None
    keep_secrets_out_of_logs()
    return TaskSurroundings(guard, context)


def as_state(outcome: Substitute, here: TaskSurroundings) -> State[Any]:
    """A substitute as the engine wants it: a green state with a name.

    Its result has a key of its own, under which the engine stores it if results are kept: a fallback's value
    must not be found under the primary's cache key later on.
    """
    result = here.context.result_store.create_result_record(outcome.answer.value, key=uuid4().hex)
    name = "Degraded" if outcome.answer.fallback.degraded else "Fallback"
    state = Completed(cls=ReplacedState, name=name, message=redact(outcome.message), data=result)
    cast(ReplacedState, state)._error_context = outcome.context  # pyright: ignore[reportPrivateUsage]
    return state


def as_answer(outcome: Any, here: TaskSurroundings) -> Any:
    """What the engine gets: a value, or a state with a name where another one than the function answered."""
    if isinstance(outcome, Substitute):
        return as_state(outcome, here)
    if isinstance(outcome, Replayed):
        # The real result: it may stand under the run's own cache key.
        message = redact(outcome.message)
        return Completed(cls=ReplacedState, name="Replayed", message=message, data=outcome.value)
    return outcome


def value_of(outcome: Any) -> Any:
    """What the caller of a task gets: a substitute's value rather than its state."""
    if isinstance(outcome, ReplacedState):
        return cast(Any, outcome.data).result
    return outcome


class PolicyDelays(list[float]):
    """The delays that the UI shows as a task's policy; when the engine asks, the one decided just now."""

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        context = TaskRunContext.get()
        record = _records.get(context.task_run.id) if context is not None else None
        if record is None or record.verdict is None:
            return super().__getitem__(index)
        return record.verdict.delay


def retry_as_decided(task: Any, task_run: TaskRun, state: State[Any]) -> bool:
    """The engine asks whether to try again: the answer of the attempt that has just failed."""
    if not enabled():
        return _as_without_us(task, task_run, state)
    record = _records.get(task_run.id)
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
    context, verdict = drive(judged(task.guard, here, time.monotonic(), error))
    if verdict.retry:
        here.retrying(context, verdict)
    else:
        here.done()
        here.gave_up(context, verdict)
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
