"""A guarded call inside a Prefect task run: connects `attempt.py` to Prefect's engine.

The engine calls the guarded function once per attempt. An attempt that must be retried raises, and stores its
verdict here under the task run's id. The engine's questions (`questions.py`) read it there.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from inspect import iscoroutinefunction
from logging import ERROR
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar
from uuid import UUID

from prefect.client.schemas.objects import TaskRun
from prefect.context import FlowRunContext, TaskRunContext
from prefect.logging.loggers import task_run_logger
from prefect.states import Failed
from prefect.utilities.asyncutils import run_coro_as_sync
from prefect.utilities.callables import explode_variadic_parameter
from prefect.utilities.hashing import hash_objects

from prefect_resilience.base.drive import Blocking, Invoke, Steps, adrive, drive
from prefect_resilience.base.edge.current_settings import is_enabled
from prefect_resilience.base.outcomes import PLAIN
from prefect_resilience.base.text import utc_text
from prefect_resilience.calls.attempt import make_attempt
from prefect_resilience.calls.edge.reports import ReportingRun
from prefect_resilience.calls.first import FirstAttempt
from prefect_resilience.calls.model import Guard, RunRecord
from prefect_resilience.calls.streams import Stream, aone_attempt, one_attempt
from prefect_resilience.durable.batches.edge.tags import batch_of, pass_of
from prefect_resilience.durable.effects.current import CallStart
from prefect_resilience.errors.requests import SubtaskRequest, attach_request
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.partials import Carried, Notes, add_notes_source, carry
from prefect_resilience.guards.timeouts.stream import aiterate_with_deadline
from prefect_resilience.tasks.edge import long_waits
from prefect_resilience.tasks.edge.answers import Again, as_answer, part_of, read_limited_tags
from prefect_resilience.tasks.edge.in_child import carriage_of, notes_in_child
from prefect_resilience.tasks.edge.logs import is_expected, keep_secrets_out_of_logs, log_failure
from prefect_resilience.tasks.edge.task_options import options_sent, tell_options
from prefect_resilience.telemetry.edge.call_totals import all_totals, send_totals
from prefect_resilience.telemetry.edge.events import emit
from prefect_resilience.telemetry.metrics import attempt_succeeded
from prefect_resilience.telemetry.payloads import CallReport

if TYPE_CHECKING:
    import logging

    from prefect_resilience.durable.effects.model import Pass
    from prefect_resilience.errors.context import ErrorContext
    from prefect_resilience.guards.retries.policy import Verdict
    from prefect_resilience.guards.timeouts.process_mode import Carriage

MOST_RECORDS = 10_000
"""The most records. Runs that were cut off between two attempts leave theirs; the oldest are dropped."""

_records: OrderedDict[UUID, RunRecord] = OrderedDict()


def record_of(task_run_id: UUID) -> RunRecord | None:
    """The record of the failures so far in a current task run of this process."""
    return _records.get(task_run_id) if _records else None


def _notes_here(make: bool) -> Notes | None:
    """The notes of the current resilient task run."""
    context = TaskRunContext.get()
    guard = None if context is None else getattr(context.task, "guard", None)
    if context is None or guard is None or not is_enabled():
        return None
    return notes_in_child(context.task_run.id) or TaskSurroundings(
        guard, context, context.task, context.task_run
    ).notes(make)


add_notes_source(_notes_here)


@dataclass(eq=False)
class TaskSurroundings(ReportingRun):
    """The context that one task run gives to an attempt (see `calls.model.RunContext`)."""

    guard: Guard
    context: TaskRunContext
    task: Any
    task_run: TaskRun
    carried: Carried | None = None
    may_go_on: bool = False
    wait: long_waits.LongWait | None = None
    """The wait for which the flow run parks."""
    emit: ClassVar[staticmethod[..., None]] = staticmethod(emit)

    @cached_property
    def parameters(self) -> Mapping[str, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        arguments = self.context.parameters
        # The arguments of a `**kwargs` come as one dict. Without any dict, the signature need not be read.
        if dict not in map(type, arguments.values()):
            return arguments
        return explode_variadic_parameter(self.guard.fn, arguments)

    @property
    def identity(self) -> dict[str, Any]:
        run = self.task_run
        fields: dict[str, Any] = {
            "node_id": self.task.name,
            "task_run_id": str(run.id),
            "flow_run_id": str(run.flow_run_id) if run.flow_run_id else None,
        }
        return fields if self.task.action_id is None else {**fields, "action_id": self.task.action_id}

    @cached_property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        return task_run_logger(task_run=self.task_run, task=self.task)

    def record_so_far(self) -> RunRecord | None:
        return _records.get(self.context.task_run.id) if _records else None

    def record(self, started: float) -> RunRecord:
        run = self.task_run.id
        record = _records.setdefault(run, RunRecord(started, CallStart(str(run))))
        while len(_records) > MOST_RECORDS:
            _records.popitem(last=False)
        return self.add_attempt_start(record, started)

    def close_record(self) -> None:
        if _records:
            _records.pop(self.task_run.id, None)
        if all_totals.is_due:  # this process may not be that of the flow, which sends the last ones
            send_totals()

    def retry_refusal(self, error: Exception) -> Steps[str | None]:
        condition = self.task.own_retry_condition
        if condition is None:
            return None
        return None if (yield from self._agrees(condition, error)) else "retry_condition_fn returned false"

    def _agrees(self, condition: Callable[..., Any], error: Exception) -> Steps[bool]:
        state = Failed(data=error, message=f"Task run encountered unexpected exception: {error!r}")
        arguments = (self.task, self.task_run, state)
        try:
            if iscoroutinefunction(condition) and not self.guard.isasync:
                return bool((yield Invoke(run_coro_as_sync, (condition(*arguments),))))
            return bool((yield Invoke(condition, arguments)))
        except Exception as failure:  # noqa: BLE001 - as in Prefect, a condition that fails means no
            self.logger.error("retry_condition_fn failed, so there is no retry: %r", failure)
            return False

    def parks(self, context: ErrorContext, verdict: Verdict) -> Steps[bool]:
        if self.task.isgenerator:  # it has given chunks away
            return False
        opening, circuit = None, self.guard.circuit
        if circuit is not None and context.retryable and not verdict.retry:
            opening = yield Blocking(long_waits.opening_of, (circuit.bind(self.parameters),))
        self.wait = self.parking.wait_of(self.task.name, context, verdict, opening)
        if self.wait is not None:
            self.close_record()
            self.logger.info("Waiting until %s, for which the flow run parks", utc_text(self.wait.until))
        return self.wait is not None

    # Decomposition of work that is too big, and the request of the run.

    def part(self, changes: Mapping[str, Any], label: str, without_tags: set[str]) -> Callable[[], Any]:
        return part_of(self.task, self.context.parameters, changes, label, without_tags)

    def tags_with_limit(self) -> set[str]:
        return read_limited_tags(set(self.task_run.tags))

    def leave_request(self, error: BaseException) -> None:
        again = Again(self.task, dict(self.context.parameters))
        attach_request(error, SubtaskRequest(self.task.name, self.parameters, "task", again, self.guard.fn))

    # Logs, events and metrics of decisions.

    def went_well(self) -> None:
        if _records or all_totals.is_due:
            self.close_record()
        task: Any = self.context.task
        attempt_succeeded(task.name, task.action_id)

    def log(self, report: CallReport) -> None:
        if report.error is None:
            self.logger.log(report.level, "%s", report.line)
        else:
            answered = report.level < ERROR or is_expected(self.task_run.id)
            log_failure(self.logger, report.line, report.error, answered=answered)

    # Stored values.

    def remember(self, value: Any) -> None:
        try:
            self.context.result_store.write({"at": time.time(), "value": value}, key=self._memory_key())
        except Exception as failure:  # noqa: BLE001 - a result that cannot be stored must not fail the run
            self.logger.warning("The last good result could not be kept: %r", failure)

    def recall(self, max_age: float | None) -> Any:
        try:
            entry = self.context.result_store.read(self._memory_key()).result
        except Exception:  # noqa: BLE001 - each storage reports a missing value in its own way
            raise LookupError("no earlier result is kept for these arguments") from None
        age = time.time() - entry["at"]
        if max_age is not None and age > max_age:
            raise LookupError(f"the last good result is {age:.0f} s old, more than max_age={max_age:g} s")
        return entry["value"]

    def _memory_key(self) -> str:
        hashed = hash_objects(self.task.task_key, dict(self.parameters))
        if hashed is None:
            raise LookupError("the arguments cannot be hashed, so no result is kept for them")
        return f"last-known-good-{hashed}"

    # The interface for effects.

    def batch_id(self) -> str:
        return batch_of(self.task_run)

    def passed(self) -> Pass:
        return pass_of(self.task_run)

    def flow(self) -> tuple[str | None, str | None]:
        name = getattr(getattr(FlowRunContext.get(), "flow", None), "name", None)
        run = self.task_run.flow_run_id
        return str(run) if run else None, name

    def keep(self, reference: str, value: Any) -> str | None:
        try:
            self.context.result_store.write(value, key=reference)
        except Exception as failure:  # noqa: BLE001 - the effect is done, even if its result is lost
            self.logger.warning("The effect's result is not JSON and could not be stored: %r", failure)
            return redact(f"it is not JSON, and the result storage failed: {failure!r}")
        return None

    def kept(self, reference: str) -> Any:
        try:
            return self.context.result_store.read(reference).result
        except Exception as failure:  # noqa: BLE001 - each storage reports a missing value in its own way
            reason = redact(repr(failure))
            raise LookupError(
                f"it is not JSON, and the result storage does not have it here: {reason}"
            ) from None

    def carry_into_child(self) -> Carriage:
        record = self.record_so_far()
        self.carried = carry(None if record is None else record.notes)
        return carriage_of(self.context, self.carried)


def surroundings_of(guard: Guard) -> TaskSurroundings | None:
    """The current task run; None if the function is called as a plain function."""
    context = TaskRunContext.get()
    if context is None or getattr(context.task, "guard", None) is not guard or not is_enabled():
        return None
    keep_secrets_out_of_logs()
    run = TaskSurroundings(guard, context, context.task, context.task_run)
    run.outer_deadline = getattr(run.task, "outer_deadline", None)
    run.parking = long_waits.current_parking.get()
    sent = options_sent.get(id(guard))
    if guard.policy is None and (sent is None or sent[0] is not guard or sent[1] < time.monotonic()):
        tell_options(guard, run.task)
    return run


def apply_policy(guard: Guard, here: TaskSurroundings) -> Steps[Guard]:
    """The guard with the current values of its policy block. Asks the server if the known values are old."""

    # Imported late: few tasks have a policy block.
    from prefect_resilience.tasks.edge import live_policy

    policy = live_policy.policy_of(guard)
    answered = policy.refresh(time.monotonic())
    if answered is not None:
        yield Blocking(answered.wait, (live_policy.PATIENCE,))
    current = policy.guard(guard, here.logger)
    tell_options(current, here.task)
    return current


def run_sync(
    first: FirstAttempt, here: TaskSurroundings, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """One attempt of a plain function in its task run."""
    guard = first.guard
    try:
        if first.is_plain:
            outcome = first.call(here, args, kwargs)
        else:
            guard = guard if guard.policy is None else drive(apply_policy(guard, here))
            outcome = drive(make_attempt(guard, here, args, kwargs))
    except (Exception, long_waits.RunParks) as error:
        if here.parking is None or (outcome := long_waits.state_while_parked(here.wait, error)) is None:
            raise
    return outcome if type(outcome) in PLAIN else as_answer(outcome, here)


async def run_async(
    first: FirstAttempt, here: TaskSurroundings, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """One attempt of a coroutine function in its task run."""
    guard = first.guard
    try:
        if first.is_plain:
            outcome = await first.acall(here, args, kwargs)
        else:
            guard = guard if guard.policy is None else await adrive(apply_policy(guard, here))
            outcome = await adrive(make_attempt(guard, here, args, kwargs))
    except (Exception, long_waits.RunParks) as error:
        if here.parking is None or (outcome := long_waits.state_while_parked(here.wait, error)) is None:
            raise
    return outcome if type(outcome) in PLAIN else as_answer(outcome, here)


# -- generator tasks: one attempt in their task run (see `calls.streams`), as Prefect's engine reads it

T = TypeVar("T")

_closing: ContextVar[list[AsyncGenerator[Any, None]] | None] = ContextVar("closing", default=None)


class EngineStream(AsyncGenerator[Any, None]):
    """An async generator with the `throw` that Prefect's engine calls when the reader has stopped."""

    def __init__(self, chunks: AsyncGenerator[Any, None]) -> None:
        self._chunks = chunks

    def asend(self, value: None, /) -> Any:
        return self._chunks.asend(value)

    def athrow(self, *error: Any) -> Any:
        return self._chunks.athrow(*error)

    def aclose(self) -> Any:
        return self._chunks.aclose()

    def throw(self, error: BaseException) -> None:
        """Raise the error for the engine. The chunks are closed at the end, by `_closing_what_is_left`."""
        waiting = _closing.get()
        if waiting is not None:
            waiting.append(self._chunks)
        raise error


def in_one_task(source: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """The same async generator, run from start to close in one asyncio task of its own.

    A reader that leaves its loop early closes the generator from another asyncio task. Prefect could not
    leave its contexts there, and the run would fail although nothing went wrong. Here every step, including
    the close, takes place in the task in which the generator began, and ends before the reader's `aclose()`
    returns.
    """
    return aiterate_with_deadline(source, around=_closing_what_is_left())


@asynccontextmanager
async def _closing_what_is_left() -> AsyncGenerator[None, None]:
    generators: list[AsyncGenerator[Any, None]] = []
    _closing.set(generators)
    try:
        yield
    finally:
        for chunks in generators:
            await chunks.aclose()


def stream(guard: Guard, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Generator[Any, Any, Any]:
    """Run one attempt of a generator function in its task run."""
    run = surroundings_of(guard)
    if run is None:
        alone: Generator[Any, Any, Any] = guard.fn(*args, **kwargs)
        return (yield from alone)
    if guard.policy is not None:
        guard = drive(apply_policy(guard, run))
    attempt = Stream(guard, run, time.monotonic())
    return as_answer((yield from one_attempt(attempt, args, kwargs)), run)


def astream(guard: Guard, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AsyncGenerator[Any, None]:
    """Run one attempt of an async generator function in its task run."""
    run = surroundings_of(guard)
    if run is None:
        return EngineStream(guard.fn(*args, **kwargs))

    async def open_stream() -> Stream:
        now = guard if guard.policy is None else await adrive(apply_policy(guard, run))
        return Stream(now, run, time.monotonic())

    return EngineStream(aone_attempt(open_stream, args, kwargs))
