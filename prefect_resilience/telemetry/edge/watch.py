"""What the flow runs of this process come to, noted as it happens (see `notes`)."""

from __future__ import annotations

import functools
import importlib
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, cast
from uuid import UUID, uuid4

from prefect.client.schemas.objects import State, TaskRun
from prefect.context import FlowRunContext, TaskRunContext

from prefect_resilience.errors.classify.shapes import state_data
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.errors.taxonomy import bounded
from prefect_resilience.telemetry import notes
from prefect_resilience.telemetry.model import Happening, StateSeen

MESSAGE = 300
_TOLD = (
    *("task_run_id", "node_id", "code", "category", "message", "circuit", "to", "degraded", "external_id"),
    *("why", "before", "after", "reason", "name"),
)
_watching = False
"""Until somebody wants summaries, nothing is noted."""
Completed = Callable[[TaskRun], None]
_listeners: list[Completed] = []
_ENGINE, _TELLS = "prefect.task_engine", "emit_task_run_state_change_event"


def watch_task_runs() -> bool:
    """Note each state of each task run of this process from now on; False where that cannot be.

    Prefect runs tasks in the client and tells its API some seconds later; the end of a flow run cannot wait
    for that. It has no hook for every task's states, so the function that tells of them is put in an
    envelope, once.
    """
    global _watching
    _watching = True
    engine = importlib.import_module(_ENGINE)
    tells: Any = getattr(engine, _TELLS, None)
    if tells is None:
        return False
    if hasattr(tells, "__wrapped__"):
        return True

    @functools.wraps(tells)
    def told(*args: Any, **kwargs: Any) -> Any:
        # A note that cannot be taken is no reason to fail the work.
        with suppress(Exception):
            _note(
                kwargs["task_run"] if "task_run" in kwargs else args[0],
                kwargs["validated_state"] if "validated_state" in kwargs else args[2],
            )
        return tells(*args, **kwargs)

    setattr(engine, _TELLS, told)
    return True


def on_completed(listener: Completed) -> None:
    """Call this about each task run of this process that completes, in its own context."""
    if listener not in _listeners:
        _listeners.append(listener)


def _note(task_run: TaskRun, state: State[Any]) -> None:
    if state.is_completed():
        for listener in _listeners:
            listener(task_run)
    if task_run.flow_run_id is None:
        return
    seen = StateSeen(
        state.type.value,
        state.name or state.type.value.title(),
        state.timestamp.timestamp(),
        bounded(redact(state.message), MESSAGE) if state.message else "",
    )
    flow_run_id, name = str(task_run.flow_run_id), task_run.name or "task run"
    count = _count_of(task_run)
    noted = notes.task_run_came_to(flow_run_id, str(task_run.id), name, task_run.task_key, seen, count)
    if noted.keeps_outputs and state.is_completed():
        noted.gave(name, _value_of(state))


def _value_of(state: State[Any]) -> Any:
    """The value that a completed state carries, taken out of the record of its result."""
    return state_data(state)


def note_happening(name: str, subject: str, payload: dict[str, Any]) -> UUID:
    """Note an event of ours for the flow run that goes on here; the id under which it is to be sent."""
    event_id = uuid4()
    current = _current_pass() if _watching else None
    if current is not None:
        flow_run_id, count = current
        notes.happened(flow_run_id, happening_of(str(event_id), time.time(), name, subject, payload), count)
    return event_id


def happening_of(event_id: str, at: float, name: str, subject: str, payload: Mapping[str, Any]) -> Happening:
    """An event with as much of its payload as a summary tells."""
    error: Any = payload.get("error")
    given = {**cast("Mapping[str, Any]", error), **payload} if isinstance(error, Mapping) else payload
    told = {key: _short(given[key]) for key in _TOLD if given.get(key) is not None}
    return Happening(event_id, at, name, subject, told)


def _short(value: Any) -> Any:
    return value if isinstance(value, bool | int | float) else bounded(str(value), MESSAGE)


def _count_of(task_run: TaskRun) -> int:
    """How often the flow run of a task run had begun; a task run that waits does not know it."""
    flow = FlowRunContext.get()
    if flow is not None and flow.flow_run is not None and flow.flow_run.id == task_run.flow_run_id:
        return max(flow.flow_run.run_count, 1)
    return max(task_run.flow_run_run_count, 1)


def _current_pass() -> tuple[str, int] | None:
    """The flow run that goes on here, and how often it has begun."""
    task, flow = TaskRunContext.get(), FlowRunContext.get()
    # A flow inside a task is the inner one, although the task's context is still there.
    if flow is not None and flow.flow_run is not None:
        return str(flow.flow_run.id), max(flow.flow_run.run_count, 1)
    if task is not None and task.task_run.flow_run_id is not None:
        return str(task.task_run.flow_run_id), _count_of(task.task_run)
    return None
