"""Where a call stands: the flow runs around it and the number of their start, the root first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext

from prefect_resilience.durable.letters.model import Starts

MOST_KEPT = 2_000
_asked: OrderedDict[tuple[UUID, int], Starts] = OrderedDict()
"""What the API said of flow runs whose callers run elsewhere. It does not change during one start."""


def starts_here() -> Starts | None:
    """The flow runs around this code as far as this process knows, which costs nothing.

    None where the run was called by one in another process, and outside of flows.
    """
    runs = [*_contexts()]
    if not runs or runs[-1].parent_task_run_id is not None:
        return None
    return tuple((str(run.id), run.run_count) for run in reversed(runs))


def starts_of(flow_run: FlowRun) -> Starts:
    """The flow runs around what goes on in this one; the API is asked where only it knows.

    Where it cannot be asked, those that are known.
    """
    here = starts_here()
    if here is not None and here[-1][0] == str(flow_run.id):
        return here
    own = (flow_run.id, flow_run.run_count)
    if own in _asked:
        return _asked[own]
    try:
        found = _asked_of_api(flow_run)
    except Exception:  # noqa: BLE001 - whatever stops the API from answering, the letter is kept
        return ((str(flow_run.id), flow_run.run_count),)
    _asked[own] = found
    while len(_asked) > MOST_KEPT:
        _asked.popitem(last=False)
    return found


def _contexts() -> Iterator[FlowRun]:
    """The flow run that goes on here, the one that called it, and so on.

    Prefect keeps the context around a context for leaving it again, and nowhere else.
    """
    context: Any = FlowRunContext.get()
    last: FlowRun | None = None
    while isinstance(context, FlowRunContext) and context.flow_run is not None:
        if last is None or context.flow_run.id != last.id:  # a thread may have entered a copy of it
            last = context.flow_run
            yield last
        if last.parent_task_run_id is None:
            return
        context = getattr(getattr(context, "_token", None), "old_value", None)


def _asked_of_api(flow_run: FlowRun) -> Starts:
    starts = [(str(flow_run.id), flow_run.run_count)]
    if flow_run.parent_task_run_id is None:
        return tuple(starts)
    with get_client(sync_client=True) as client:
        while flow_run.parent_task_run_id is not None:
            parent = client.read_task_run(flow_run.parent_task_run_id).flow_run_id
            if parent is None:
                break
            flow_run = client.read_flow_run(parent)
            starts.append((str(flow_run.id), flow_run.run_count))
    return tuple(reversed(starts))
