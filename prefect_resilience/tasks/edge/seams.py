"""What this package uses of Prefect although Prefect does not promise it. Tried with Prefect 3.8.8.

Each seam has a test in `tests/tasks/test_seams.py`, which fails when a new version of Prefect moves it.
Without its seam the package goes on with less: the reason says with what.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from prefect.blocks.system import Secret
from prefect.context import (
    EngineContext,
    FlowRunContext,
    TagsContext,
    TaskRunContext,
    _deployment_id,  # pyright: ignore[reportPrivateUsage]
    _deployment_parameters,  # pyright: ignore[reportPrivateUsage]
)
from prefect.results import ResultStore

from prefect_resilience.telemetry.edge.events import saw_task_run

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

ENGINES = ("task_engine", "flow_engine")
"""The modules of Prefect that log how a run fares. Without them a failed attempt is logged twice."""
FAILED_ATTEMPTS = ("handle_retry", "handle_timeout")
"""The functions of the task engine that log a failed attempt."""


def on_secret_read(listener: Callable[[str], object]) -> None:
    """Hand each text that a Secret block gives out to `listener`, which masks it in logs and errors.

    Prefect has no hook for this, and once the block was read nothing tells its value from any other text.
    So this is the one function of Prefect that is wrapped: `Secret.get`, which is public, and once in a
    process. Without it a Secret block that is not a parameter must be named by `register_secret`.
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


class WatchedResults(ResultStore):
    """The result store of a resilient flow. It notes each task run that uses it.

    Prefect has no hook for the runs of plain tasks. Its engine asks the flow's result store, in the context
    of the task run, for the run's cached result, and to record its new one. Without this a summary learns of
    plain tasks from the Prefect API, some seconds later.
    """

    def exists(self, key: str) -> bool:
        _note_current()
        return super().exists(key)

    async def aexists(self, key: str) -> bool:
        _note_current()
        return await super().aexists(key)

    def create_result_record(self, obj: Any, *args: Any, **kwargs: Any) -> Any:
        _note_current()
        return super().create_result_record(obj, *args, **kwargs)


def _note_current() -> None:
    context = TaskRunContext.get()
    if context is not None:
        saw_task_run(context.task_run)


@contextmanager
def watched_results(context: FlowRunContext) -> Generator[None, None, None]:
    """The task runs that a flow run starts inside are noted."""
    store = context.result_store
    if type(store) is not ResultStore:
        yield
        return
    watched = WatchedResults.model_construct(store.model_fields_set, **dict(store))
    with context.model_copy(update={"result_store": watched}):
        yield


def started_tasks_alone(context: FlowRunContext | None) -> bool:
    """Whether all that the flow run started are task runs of this process.

    A count in `task_run_dynamic_keys` belongs to a run that was created for something else, such as another
    flow. Without it such runs are missing in the summary. There is no context where the run was cut off.
    """
    return context is None or not context.task_run_dynamic_keys


def contexts_here() -> dict[str, Any]:
    """What `prefect.context.serialize_context` gives, without the settings, which take it 60 ms.

    Without it, use `serialize_context`: a call in a child process then begins later.
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
    """One more page of events, at the address that the API named.

    Prefect's client takes known routes only. Without this a summary tells of the first page.
    """
    return client._client.get(address)  # pyright: ignore[reportPrivateUsage]
