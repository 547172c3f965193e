"""Hooks for plain Prefect tasks and flows.

`@task(on_failure=[dead_letter])`, `@flow(on_completion=[run_summary], on_failure=[run_summary])`.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from prefect import Flow, Task
from prefect.client.schemas.objects import FlowRun, State, TaskRun
from prefect.context import FlowRunContext, TaskRunContext
from prefect.logging.loggers import task_run_logger
from prefect.utilities.engine import resolve_inputs_sync

from prefect_resilience.base.edge.current_settings import is_enabled
from prefect_resilience.base.plain import is_fixed, snapshot
from prefect_resilience.durable.batches.edge.tags import batch_named_around, batch_of
from prefect_resilience.durable.letters.claims import run_again
from prefect_resilience.durable.letters.codec import encode_parameters
from prefect_resilience.durable.letters.edge.known import keep_on_host, queue_of, settle_call, starts_around
from prefect_resilience.durable.letters.edge.replay import in_replay, is_replay_itself
from prefect_resilience.durable.letters.kinds import source_of
from prefect_resilience.durable.letters.model import Contents, DeadLetter, identity_of, letter_of, loss
from prefect_resilience.errors.context import ErrorContext, error_context
from prefect_resilience.errors.exceptions import ConfigurationError, StoreUnavailable
from prefect_resilience.errors.secrets.redact import learn_secrets
from prefect_resilience.tasks.edge.logs import keep_secrets_out_of_logs
from prefect_resilience.tasks.edge.seams import on_task_run_state
from prefect_resilience.telemetry.edge.events import emit

MOST_GIVEN = 1_000
Log = logging.LoggerAdapter[Any]


def dead_letter(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> None:
    """Keep a call that failed for good as a dead letter, to be replayed once its cause is fixed.

    For `@task(on_failure=[dead_letter])`. The letter is settled when the flow run runs again and the call
    succeeds. A letter that cannot be kept is logged. Raises ConfigurationError as the hook of a flow.
    """
    if isinstance(task, Flow):
        raise ConfigurationError("dead_letter is a hook of tasks: put it on the tasks of the flow")
    if not is_enabled():
        return
    log = task_run_logger(task_run=task_run, task=task)
    try:
        if not is_replay_itself(task_run.id):  # its letter exists, and the replay records the outcome
            _keep(*_make_letter(task, task_run, state), log)
    except Exception as failure:  # noqa: BLE001 - the run has failed already, and its error must stay
        log.error("The dead letter could not be created: %r", failure)
    _given.pop(task_run.id, None)


def keep_dead_letter(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> None:
    """The hook of `dead_letter=True`. A user's own `dead_letter` hook does not cause a second letter."""
    if dead_letter not in task.on_failure_hooks:
        dead_letter(task, task_run, state)


def _make_letter(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> tuple[DeadLetter, Contents]:
    arguments = _parameters_of(task_run)
    keep_secrets_out_of_logs()
    learn_secrets(arguments)
    error, flow_run, begun = error_context(state), _flow_run(), max(task_run.run_count, 1)
    return letter_of(
        arguments,
        error and _with_run(error, task, task_run),
        now=datetime.now(UTC),
        name=task.name,
        key=task.task_key,
        source=source_of(task),
        batch_id=_batch_of(task_run),
        flow_run_id=str(task_run.flow_run_id) if task_run.flow_run_id else None,
        task_run_id=str(task_run.id),
        run_count=flow_run.run_count if flow_run is not None else 1,
        starts=starts_around(flow_run),
        # By the error's history, or by Prefect's count of starts.
        attempts=begun if error is None else max(error.attempt, begun) - error.rejected_calls,
    )


def _keep(letter: DeadLetter, contents: Contents, log: Log) -> None:
    """Store the letter. If that fails, write it to this host's disk; if that fails too, log what is lost."""
    queue = None
    try:
        queue = queue_of()
        stored = queue.put(letter, contents, in_replay=in_replay())
    except (StoreUnavailable, ConfigurationError) as failure:
        emit("store.unavailable", "store", "dead-letters", {"reason": str(failure)})
        try:
            if queue is None:
                raise
            stored = keep_on_host(queue, letter, contents)
        except (OSError, ValueError, StoreUnavailable) as worse:
            log.error(loss(letter, worse))
            return
        log.warning(
            "The store is unavailable; dead letter %s is kept on this host until it answers: %s",
            stored.id,
            failure,
        )
    else:
        if stored.failures > 1:
            log.warning("Dead letter %s failed in another pass: %s", stored.id, stored.summary())
        else:
            log.warning("Kept as dead letter %s: %s", stored.id, stored.summary())
    happening = "dead-letter.failed-again" if stored.failures > 1 else "dead-letter.created"
    emit(happening, "dead-letter", stored.id, _payload_of(stored))


# -- calls that succeed when their flow run is run again


def settle_for_task(task_run: TaskRun) -> None:
    """Settle the letter that an earlier pass of the flow run left for a call that has just succeeded.

    In a first pass no store is read, except in a batch with a name. Never raises.
    """
    context = TaskRunContext.get()
    if context is None or context.task_run.id != task_run.id or not _leaves_letters(context.task):
        return
    if not is_enabled() or in_replay():
        return
    log = task_run_logger(task_run=task_run, task=context.task)
    try:
        letter = _settle(context.task, task_run)
    except Exception as failure:  # noqa: BLE001 - the call has succeeded, and its run must not fail
        log.warning("Whether this call has a dead letter is unknown: %r", failure)
        return
    if letter is not None:
        log.info("Settled dead letter %s: its call succeeded in this pass of the flow run", letter.id)


def _settle(task: Task[..., Any], task_run: TaskRun) -> DeadLetter | None:
    starts = starts_around(_flow_run())
    named = bool(starts) and batch_named_around() is not None
    # Dask and Ray run a task run again if its worker died.
    twice = getattr(FlowRunContext.get(), "detached", False)
    if not (twice or named or run_again(starts)):
        return None
    batch_id = _batch_of(task_run)

    def identity() -> str:
        parameters = _parameters_of(task_run)
        # The digest in a letter is made after its secrets are known, so this one must be too.
        learn_secrets(parameters)
        encoded = encode_parameters(parameters).parameters
        return identity_of(batch_id, task.name, source_of(task), task.task_key, encoded)

    return settle_call(starts, batch_id, identity, str(task_run.id), twice)


def _payload_of(letter: DeadLetter) -> dict[str, Any]:
    """The payload for an event about a letter, without its parameters."""
    return letter.model_dump(
        mode="json", exclude={"left_out", "claim", "replays", "size", "identity"}, exclude_none=True
    )


def _with_run(error: ErrorContext, task: Task[..., Any], task_run: TaskRun) -> ErrorContext:
    """The error with the task's run. The error of a plain task does not contain it."""
    if error.node_id is not None:
        return error
    fields = {
        "node_id": task.name,
        "task_run_id": str(task_run.id),
        "flow_run_id": str(task_run.flow_run_id) if task_run.flow_run_id else None,
        "attempt": max(task_run.run_count, 1),
    }
    return error.model_copy(update=fields)


def _parameters_of(task_run: TaskRun) -> dict[str, Any]:
    """The arguments of the current task run, with the results of the task runs that it waited for."""
    context = TaskRunContext.get()
    if context is None or context.task_run.id != task_run.id:
        raise LookupError("the parameters of a task run are known only in that run")
    if (arguments := _given.get(task_run.id)) is not None:
        return arguments
    return resolve_inputs_sync(context.parameters, return_data=True)


def _flow_run() -> FlowRun | None:
    context = FlowRunContext.get()
    return context.flow_run if context is not None else None


def _batch_of(task_run: TaskRun) -> str | None:
    try:
        return batch_of(task_run)
    except StoreUnavailable:
        return str(task_run.flow_run_id) if task_run.flow_run_id else None


def _leaves_letters(task: Task[..., Any]) -> bool:
    return any(hook in task.on_failure_hooks for hook in (dead_letter, keep_dead_letter))


_given: OrderedDict[UUID, dict[str, Any]] = OrderedDict()
"""The arguments of current task runs that may leave a letter, as they were before the functions began."""


def _watch_task_run(task_run: TaskRun, state: State[Any]) -> None:
    if state.is_running() and task_run.id not in _given:
        _take_parameters(task_run)
    elif state.is_completed():
        settle_for_task(task_run)
        _given.pop(task_run.id, None)


def _take_parameters(task_run: TaskRun) -> None:
    context = TaskRunContext.get()
    if context is None or context.task_run.id != task_run.id or not _leaves_letters(context.task):
        return
    if not all(map(is_fixed, context.parameters.values())):
        _given[task_run.id] = snapshot(_parameters_of(task_run))
    while len(_given) > MOST_GIVEN:
        _given.popitem(last=False)


on_task_run_state(_watch_task_run)
