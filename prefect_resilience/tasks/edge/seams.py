"""The parts of Prefect that this package uses without a promise from it. Tested with Prefect 3.8.8 and 3.9.1.

Each seam has a test in `tests/tasks/test_seams.py`, which fails when a new version of Prefect moves it.
Without a seam the package still works, with less: each docstring says what is missing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from prefect import task_engine
from prefect.blocks.system import Secret
from prefect.context import (
    EngineContext,
    FlowRunContext,
    TagsContext,
    TaskRunContext,
    _deployment_id,  # pyright: ignore[reportPrivateUsage]
    _deployment_parameters,  # pyright: ignore[reportPrivateUsage]
)

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import State, TaskRun

ENGINES = ("task_engine", "flow_engine")
"""Prefect's modules that log the progress of a run. Without them a failed attempt is logged twice."""
FAILED_ATTEMPTS = ("handle_retry", "handle_timeout")
"""The functions of the task engine that log a failed attempt."""
REPORTS_STATE = "emit_task_run_state_change_event"
"""The function that the task engine calls, with keyword arguments, for each state of a task run."""


def on_secret_read(listener: Callable[[str], object]) -> None:
    """Pass each text that a Secret block returns to `listener`, which masks it in logs and errors.

    Prefect has no hook for this, and a value that was read looks like any other text. So the public method
    `Secret.get` is wrapped, once in a process. Without it, a Secret block that is not a parameter must be
    named by `register_secret`.
    """
    read: Any = vars(Secret)["get"]
    if hasattr(read, "__wrapped__"):
        return

    @functools.wraps(read)
    def get(self: Secret[Any]) -> Any:
        value = read(self)
        for text in _texts(value):
            listener(text)
        return value

    setattr(Secret, "get", get)  # noqa: B010


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.values() for text in _texts(item)]  # pyright: ignore[reportUnknownVariableType]
    return [str(value)] if isinstance(value, (str, int)) and not isinstance(value, bool) else []


_listeners: list[Callable[[TaskRun, State[Any]], object]] = []


def on_task_run_state(listener: Callable[[TaskRun, State[Any]], object]) -> None:
    """Call `listener(task_run, state)` for each state of each task run of this process, in the run's context.

    Prefect runs tasks in the client and has no hook for the states of plain tasks. Its API receives them some
    seconds later, which is too late for the end of a flow run. So the one function that reports states is
    wrapped, once in a process. Without it, summaries miss plain tasks until the API has them, and dead
    letters of plain tasks stay open until their next replay.
    """
    if listener not in _listeners:
        _listeners.append(listener)
    report: Any = getattr(task_engine, REPORTS_STATE, None)
    if report is None or hasattr(report, "__wrapped__"):
        return

    @functools.wraps(report)
    def report_and_tell(*args: Any, **kwargs: Any) -> Any:
        for hear in _listeners:
            with suppress(Exception):  # a listener never fails the task
                hear(kwargs["task_run"], kwargs["validated_state"])
        return report(*args, **kwargs)

    setattr(task_engine, REPORTS_STATE, report_and_tell)


def has_only_tasks(context: FlowRunContext | None) -> bool:
    """Whether the flow run started nothing but task runs of this process.

    A count in `task_run_dynamic_keys` belongs to a run that was created for something else, such as another
    flow. Without this seam such runs are missing in the summary. A run that was cut off has no context.
    """
    return context is None or not context.task_run_dynamic_keys


def wait_for_submitted(context: FlowRunContext) -> None:
    """Wait for the tasks that a flow run submitted to the threads of its task runner.

    Prefect cancels them when the flow function ends with an exception. Without this seam, a run that parks
    cuts off its independent tasks.
    """
    executor = getattr(context.task_runner, "_executor", None)
    if executor is not None:
        executor.shutdown(wait=True)


def contexts_here() -> dict[str, Any]:
    """The result of `prefect.context.serialize_context` without the settings, which take it 60 ms.

    Without this seam, use `serialize_context`: a call in a child process then starts later.
    """
    contexts = {
        "flow_run_context": EngineContext.get(),
        "task_run_context": TaskRunContext.get(),
        "tags_context": TagsContext.get(),
    }
    deployment = _deployment_id.get()
    return {
        **{name: context.serialize() if context else {} for name, context in contexts.items()},
        "asset_context": {},
        "deployment_id": str(deployment) if deployment else None,
        "deployment_parameters": _deployment_parameters.get(),
    }


def next_page(client: SyncPrefectClient, address: str) -> Any:
    """The next page of events, from the address that the API returned.

    Prefect's client only takes known routes. Without this seam a summary has only the first page of events.
    """
    return client._client.get(address)  # pyright: ignore[reportPrivateUsage]
