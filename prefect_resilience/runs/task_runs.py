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
from uuid import UUID

from prefect.client.schemas.objects import State, TaskRun
from prefect.context import TaskRunContext, hydrated_context, serialize_context
from prefect.logging.loggers import task_run_logger
from prefect.states import Failed
from prefect.utilities.asyncutils import run_coro_as_sync
from prefect.utilities.callables import explode_variadic_parameter
from prefect.utilities.hashing import hash_objects

from prefect_resilience.attempt import Guard, RunRecord, judged
from prefect_resilience.decomposition.work import stood_in
from prefect_resilience.drive import Blocking, Invoke, Sequence, drive
from prefect_resilience.effects.batch_tags import batch_of
from prefect_resilience.effects.claim import Replayed
from prefect_resilience.effects.current import EffectInProgress, in_progress
from prefect_resilience.effects.ledger import Ledger, open_ledger, set_ledger_store
from prefect_resilience.errors.context import ErrorContext, attached_context
from prefect_resilience.errors.redact import redact
from prefect_resilience.errors.requests import SubtaskRequest, attach_request
from prefect_resilience.events import attempt_failed, emit, error_payload
from prefect_resilience.fallbacks.chain import Answer
from prefect_resilience.metrics import attempt_succeeded
from prefect_resilience.partials.child import Carried, carried
from prefect_resilience.partials.current import Notes, add_notes_source
from prefect_resilience.retries.pauses import pause
from prefect_resilience.retries.policy import Verdict
from prefect_resilience.runs.again import Again, limited, part_of
from prefect_resilience.runs.logs import keep_secrets_out_of_logs
from prefect_resilience.settings import current_settings, enabled

if TYPE_CHECKING:
    import logging

    from prefect_resilience.tasks import ResilientTask

MOST_RECORDS = 10_000
"""Runs that were cut off between two attempts leave a record behind; the oldest give way to new ones."""

set_ledger_store(lambda: current_settings().store_url)

_records: OrderedDict[UUID, RunRecord] = OrderedDict()


def _notes_here(make: bool) -> Notes | None:
    """The notes of the resilient task run that is going on."""
    context = TaskRunContext.get()
    if context is None or not hasattr(context.task, "guard") or not enabled():
        return None
    run = context.task_run.id
    record = _records.setdefault(run, RunRecord(time.monotonic())) if make else _records.get(run)
    return None if record is None else record.notes


add_notes_source(_notes_here)


@dataclass(eq=False)
class TaskSurroundings:
    """What one task run gives to an attempt (see `attempt.Surroundings`)."""

    guard: Guard
    context: TaskRunContext
    carried: Carried | None = None
    """What a child process has with it."""

    @property
    def task(self) -> ResilientTask[..., Any]:
        return cast("ResilientTask[..., Any]", self.context.task)

    @property
    def task_run(self) -> TaskRun:
        return self.context.task_run

    @property
    def parameters(self) -> Mapping[str, Any]:
        return self._parameters

    @cached_property
    def _parameters(self) -> Mapping[str, Any]:
        given = self.context.parameters
        # Those of a `**kwargs` come as a dict; without any dict, the signature need not be looked at.
        if not any(isinstance(value, dict) for value in given.values()):
            return given
        return explode_variadic_parameter(self.guard.fn, given)

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
        if not record.history:  # code inside may have made it, after the attempt began
            record.started = min(record.started, started)
        if self.carried is not None:
            self.carried.read(record.notes)
            self.carried = None
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

    # What becomes of work that is too big, and of what the run was asked to do.

    def part(self, changes: Mapping[str, Any], label: str, without_tags: set[str]) -> Callable[[], Any]:
        return part_of(self.task, self.context.parameters, changes, label, without_tags)

    def limited_tags(self) -> set[str]:
        return limited(set(self.task_run.tags))

    def leave_request(self, error: BaseException) -> None:
        again = Again(self.task, dict(self.context.parameters))
        attach_request(error, SubtaskRequest(self.task.name, self.parameters, "task", again, self.guard.fn))

    def dividing(self, context: ErrorContext, parts: int, depth: int, most: int) -> None:
        self.logger.warning(
            "Decomposing into %s parts at depth %s of at most %s, after: %s",
            parts,
            depth,
            most,
            context.summary(),
        )
        self._emit("run.decomposed", context, parts=parts, depth=depth, max_depth=most)

    # What is told to people, once it has been decided.

    def went_well(self) -> None:
        attempt_succeeded(self.task.name)

    def retrying(self, context: ErrorContext, verdict: Verdict) -> None:
        self.logger.warning(
            "Retrying (%s/%s) in %.1f s: %s",
            context.attempt + 1,
            context.max_attempts,
            verdict.delay,
            context.summary(),
        )
        attempt_failed(context)
        self._emit("retry.scheduled", context, delay=verdict.delay, why=verdict.why)

    def replaced(self, context: ErrorContext, answer: Answer, attempts: int) -> None:
        fallback = answer.fallback
        stood_in(self.guard.fn, fallback.name, fallback.degraded)
        self.logger.warning("%s answered instead, after: %s", fallback.name, context.summary())
        attempt_failed(context)
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
        attempt_failed(context)
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
        record = self.known()
        self.carried = carried(None if record is None else record.notes, self)
        return InThisRun(serialize_context(), in_progress.get(), self.task_run.id, self.carried)


@dataclass(frozen=True)
class InThisRun:
    """Calls something inside a task run, from another process."""

    serialized: dict[str, Any]
    effect: EffectInProgress | None = None
    task_run_id: UUID | None = None
    carried: Carried | None = None

    def __call__(self, call: Callable[[], Any]) -> Any:
        in_progress.set(self.effect)
        if self.carried is not None and self.task_run_id is not None:
            _records[self.task_run_id] = RunRecord(time.monotonic(), notes=self.carried.unpacked())
        with hydrated_context(self.serialized):
            return call()


def surroundings_of(guard: Guard) -> TaskSurroundings | None:
    """The task run that is going on, or None when the function is called as a plain function."""
    context = TaskRunContext.get()
    if context is None or getattr(context.task, "guard", None) is not guard or not enabled():
        return None
    keep_secrets_out_of_logs()
    return TaskSurroundings(guard, context)


def governed(guard: Guard, here: TaskSurroundings) -> Sequence[Guard]:
    """The guard as its policy block changes it now; the server is asked when what is known of it is old."""
    from prefect_resilience.blocks import live

    policy = live.policy_of(guard)
    answered = policy.looked_at(time.monotonic())
    if answered is not None:
        yield Blocking(answered.wait, (live.PATIENCE,))
    return policy.guard(guard, here.logger)


class PolicyDelays(list[float]):
    """The delays that the UI shows as a task's policy; when the engine asks, the one decided just now."""

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        context = TaskRunContext.get()
        record = _records.get(context.task_run.id) if context is not None else None
        if record is None or record.verdict is None:
            return super().__getitem__(index)
        return pause(record.verdict.delay)


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
    guard = task.guard if task.guard.policy is None else drive(governed(task.guard, here))
    context, verdict = drive(judged(guard, here, time.monotonic(), error))
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
