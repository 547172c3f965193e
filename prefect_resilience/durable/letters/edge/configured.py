"""The queue of the configured store."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext
from prefect.settings import PREFECT_HOME, get_current_settings

from prefect_resilience.base.edge.settings import current_settings
from prefect_resilience.base.policy import closest
from prefect_resilience.durable.letters import claims
from prefect_resilience.durable.letters.capture import Spool, batch_digest
from prefect_resilience.durable.letters.edge.known import tell_settled
from prefect_resilience.durable.letters.model import DeadLetter, Pass, Starts
from prefect_resilience.durable.letters.queue import DeadLetterQueue, is_of
from prefect_resilience.errors.exceptions import ConfigurationError, StoreUnavailable
from prefect_resilience.stores import Store, open_store

StoreReference = Store | str | None
"""What `store=` may be: None for the configured store, a URL, or a store that was opened already."""


def queue_of(store: StoreReference = None) -> DeadLetterQueue:
    """The dead letters of a store. Those that this host kept while it was unavailable are stored first."""
    opened = open_store(store or current_settings().store_url) if not isinstance(store, Store) else store
    queue = DeadLetterQueue(opened)
    with suppress(StoreUnavailable, OSError):
        spool_of(queue).flush(queue)
    return queue


def spool_of(queue: DeadLetterQueue) -> Spool:
    """The folder for letters on this host while the store is unavailable."""
    return Spool(Path(PREFECT_HOME.value()) / "dead-letters", queue.store.url)


LISTED = 5


def check_task(queue: DeadLetterQueue, task: str | None) -> None:
    """Raise ConfigurationError for a task or flow of which no letter ever was, and no run is known.

    Where there is no letter at all, or the Prefect API knows runs of it, it is one that went well. Without an
    API a name is wrong if there is one like it.
    """
    if task is None:
        return
    names: set[str] = set()
    for letter in queue.letters():
        if is_of(letter, task):
            return
        names.add(letter.name)
    if not names:
        return
    near, ran = closest(task, sorted(names)), _has_run(task)
    if ran or (ran is None and near is None):
        return
    known = sorted(names)
    more = f" and {len(known) - LISTED} more" if len(known) > LISTED else ""
    hint = f"Did you mean {near!r}?" if near else f"Letters are of {', '.join(known[:LISTED])}{more}."
    unseen = "" if ran is None else ", and no run of one is known"
    raise ConfigurationError(f"no dead letter is of a task or flow {task!r}{unseen}. {hint}")


def _has_run(task: str) -> bool | None:
    """Whether the Prefect API knows a run of a task or flow of this name; None where it cannot be asked."""
    if get_current_settings().api.url is None:
        return None
    name = task.rpartition(":")[2].rpartition(".")[2]
    try:
        with get_client(sync_client=True) as client:
            flows = client.request("POST", "/flows/count", json={"flows": {"name": {"any_": [name]}}})
            # Prefect names a run after its task and some letters.
            runs = {"task_runs": {"name": {"like_": f"{name}-"}}}
            return bool(flows.json() or client.request("POST", "/task_runs/count", json=runs).json())
    except Exception:  # noqa: BLE001 - whatever stops it from answering
        return None


MOST_PASSES = 500
_before: OrderedDict[tuple[Starts, str], set[str]] = OrderedDict()
"""What calls there were letters of when a pass of a flow run began here. One that comes later is of a failure
in this very pass, or in another run."""


def settle_call(
    starts: Starts, batch_id: str | None, identity: Callable[[], str], task_run_id: str | None
) -> DeadLetter | None:
    """Settle the letter of a call that has succeeded in this place, where an earlier pass left one.

    The store is asked once in each pass, and `identity` only if the batch has letters. May raise
    StoreUnavailable.
    """
    letters = _letters_before(starts, batch_id)
    if not letters or (call := identity()) not in letters:
        return None
    one = Pass(at=datetime.now(timezone.utc), outcome="succeeded", starts=starts, task_run_id=task_run_id)
    letter = queue_of().call_succeeded(call, one)
    if letter is not None:
        tell_settled(letter)
    return letter


def _letters_before(starts: Starts, batch_id: str | None) -> set[str]:
    key = (starts, batch_digest(batch_id))
    if key not in _before:
        _before[key] = claims.in_batch(queue_of().store, key[1])
        while len(_before) > MOST_PASSES:
            _before.popitem(last=False)
    return _before[key]


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
