"""The batch of a run, and how it is passed to runs in other processes."""

from __future__ import annotations

import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit
from uuid import UUID

from prefect_resilience.base.edge.current_settings import run_contexts
from prefect_resilience.base.naming import digest
from prefect_resilience.base.process import setting
from prefect_resilience.durable.batches.batch import batch_block, carry_batches, named_batch
from prefect_resilience.durable.batches.run_passes import passes_of
from prefect_resilience.durable.effects.model import Pass
from prefect_resilience.errors.exceptions import ConfigurationError, StoreUnavailable
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.telemetry.edge.events import state_seen
from prefect_resilience.telemetry.model import StateSeen

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun, State, TaskRun
    from prefect.context import TaskRunContext

K = TypeVar("K")
T = TypeVar("T")

TAG = "effects-batch:"
"""Tags are passed with runs to other processes, Dask and task workers. The UI can filter runs by them."""

EXTERNAL_TAG = "external-effect"
"""On every task run that began an external effect; the UI can filter by it."""

LABEL = "prefect-resilience.ledger"

ARRIVAL_SECONDS = 10.0
MOST_KNOWN = 10_000
WHOLE = 10_000
"""The most characters of a state's message: by the message of a recovery, its pass is known."""
_batches: OrderedDict[UUID, str] = OrderedDict()
"""The batch of each flow run, and of each task run without a flow. It never changes."""


def _client() -> SyncPrefectClient:
    from prefect.client.orchestration import get_client

    return get_client(sync_client=True)


@contextmanager
def tagged(batch_id: str) -> Generator[None, None, None]:
    """Flow runs created inside, and runs in other processes, get the tag of this batch only."""
    if "prefect.context" not in sys.modules:
        yield  # no run can begin before Prefect is imported
        return
    from prefect.context import TagsContext

    with TagsContext(current_tags=other_tags() | {TAG + batch_id}):
        yield


def context_of_calls(*, untag: bool = True) -> AbstractContextManager[None]:
    """The context in which a task's runs are created.

    The runs belong to this attempt of the task run around this code. With `untag` they do not get the tag of
    their batch: Prefect keeps a thread for every set of tags with which a task run begins. `tag_again`
    adds the tag once the run has begun.
    """
    around = run_contexts()[1]
    tags = untag and named_in(_tags()) is not None
    return nullcontext() if around is None and not tags else _calling_context(around, tags)


@contextmanager
def _calling_context(around: TaskRunContext | None, untag: bool) -> Generator[None]:
    from prefect.context import TagsContext

    with ExitStack() as stack:
        if around is not None:
            run = (str(around.task_run.id), around.task_run.run_count)
            outer = outer_tasks.get()
            stack.enter_context(setting(outer_tasks, outer if run in outer else (*outer, run)))
        if untag:
            stack.enter_context(TagsContext(current_tags=other_tags()))
        yield


def tag_again(task_run: TaskRun) -> AbstractContextManager[None]:
    """Add the tag of a named batch to a task run that has begun, and to the runs that it creates in the
    context."""
    named = named_batch.get()
    if named is None:
        return nullcontext()
    batch_id, _ = named
    if named_in(task_run.tags) is None:
        # Prefect sends a run's tags with each of its states, so the server gets this tag too.
        task_run.tags.append(TAG + batch_id)
    return tagged(batch_id)


def _tags() -> set[str]:
    if "prefect.context" not in sys.modules:
        return set()
    from prefect.context import TagsContext

    # `TagsContext.get` makes a new context before it looks for the one that is there. Its parent does not.
    around: Any = super(TagsContext, TagsContext).get()
    return set() if around is None else around.current_tags


def other_tags() -> set[str]:
    """The tags around this code without those of batches."""
    return {tag for tag in _tags() if not tag.startswith(TAG)}


def batch_named_around() -> str | None:
    """The batch named around this code, in this process or in another one."""
    named = named_batch.get()
    return named_in(_tags()) if named is None else named[0]


def named_in(tags: Iterable[str]) -> str | None:
    """The batch in a run's tags."""
    for tag in tags:
        if tag.startswith(TAG):
            return tag.removeprefix(TAG)
    return None


def current_batch() -> str:
    """The batch of the calling code. Raises ConfigurationError outside of any run and batch."""
    around = run_contexts()[1]
    return batch_of(None if around is None else around.task_run)


def batch_of(task_run: TaskRun | None) -> str:
    """The batch of a task run: the one named around it, else that of its root flow run.

    The tags of a flow run above it, such as a replayed one, may name another batch. For a task run without
    a flow, the batch is the outermost task run. Raises StoreUnavailable while the API, which knows the runs
    above, is unavailable. None: the code around, in no task run.
    """
    named = batch_named_around()
    if named is not None:
        return named
    if (flow_run := flow_run_around()) is not None:
        return _batch_known(flow_run.id, partial(batch_of_flow_run, flow_run))
    if task_run is None:
        raise ConfigurationError(
            'this code runs in no flow run and no batch: name the batch, as in rollback("invoices-2026-11"), '
            'or call it inside `with batch("invoices-2026-11"):`'
        )
    if (flow_run_id := task_run.flow_run_id) is not None:
        return _batch_known(flow_run_id, lambda: batch_of_flow_run(_read_flow_run(flow_run_id)))
    return _batch_known(task_run.id, lambda: str(_root_task_run(task_run)))


def flow_run_around() -> FlowRun | None:
    """The flow run of the calling code."""
    context = run_contexts()[0]
    return None if context is None else context.flow_run


def _batch_known(run_id: UUID, find: Callable[[], str]) -> str:
    return _ask(lambda: remember(_batches, run_id, find))


def pass_of(task_run: TaskRun | None) -> Pass:
    """The pass of a task run: the flow runs above it and the task runs that called it, the outermost first,
    each with the number of its pass. None: the code around, in no task run. Raises StoreUnavailable while the
    API is unavailable."""
    if (flow_run := flow_run_around()) is not None:
        return (*_ask(partial(passes_of_runs, flow_run)), *outer_tasks.get())
    if task_run is not None and (flow_run_id := task_run.flow_run_id) is not None:
        return (*_ask(lambda: passes_of_runs(_read_flow_run(flow_run_id))), *outer_tasks.get())
    block = batch_block()
    named: Pass = () if block is None else ((block, 1),)
    own: Pass = () if task_run is None else ((str(task_run.id), task_run.run_count),)
    return (*named, *outer_tasks.get(), *own)


def pass_here() -> Pass:
    """The pass of the calling code, with the task run around it, if there is one."""
    task, flow_run = run_contexts()[1], flow_run_around()
    if task is None or (flow_run is not None and task.task_run.flow_run_id != flow_run.id):
        return pass_of(None)
    around, run = pass_of(task.task_run), (str(task.task_run.id), task.task_run.run_count)
    return around if run in around else (*around, run)


outer_tasks: ContextVar[Pass] = ContextVar("prefect_resilience_outer_tasks", default=())
"""The task runs around this code, each with its number of attempts so far."""


_passes: OrderedDict[tuple[UUID, int], Pass] = OrderedDict()
"""The passes above a flow run, by its id and run count. They do not change while the flow run goes on."""
_numbers: OrderedDict[UUID, int] = OrderedDict()
"""The number of the pass that a state of a flow run belongs to."""


def remember(known: OrderedDict[K, T], key: K, find: Callable[[], T]) -> T:
    """The value of a key, found once; the oldest of more than MOST_KNOWN values goes."""
    if key not in known:
        known[key] = find()
        while len(known) > MOST_KNOWN:
            known.popitem(last=False)
    return known[key]


def runs_above(client: SyncPrefectClient, flow_run: FlowRun) -> Iterator[FlowRun]:
    """The flow runs that called a flow run, the nearest first. A subflow run has a task run in its parent."""
    while flow_run.parent_task_run_id is not None:
        parent = client.read_task_run(flow_run.parent_task_run_id).flow_run_id
        if parent is None:
            return
        flow_run = client.read_flow_run(parent)
        yield flow_run


def passes_of_runs(flow_run: FlowRun) -> Pass:
    """The passes of the flow runs above a flow run and of the run itself. Raises errors of the API."""
    own = _pass_number(flow_run)
    above: Pass = ()
    if flow_run.parent_task_run_id is not None:
        above = remember(_passes, (flow_run.id, own), partial(_passes_above, flow_run))
    return (*above, (str(flow_run.id), own))


def _passes_above(flow_run: FlowRun) -> Pass:
    with _client() as client:
        above = [(str(run.id), _pass_number(run)) for run in runs_above(client, flow_run)]
    return tuple(reversed(above))


def _pass_number(flow_run: FlowRun) -> int:
    """The number of the pass that the flow run is in. Its run count, which a suspended run keeps when it is
    resumed, is too small then: its states show how often it began."""
    state, first = flow_run.state, flow_run.start_time
    if state is None or not state.is_running() or first is None or state.timestamp <= first:
        return flow_run.run_count
    return max(flow_run.run_count, remember(_numbers, state.id, partial(_count_passes, flow_run, state)))


def _count_passes(flow_run: FlowRun, until: State[Any]) -> int:
    with _client() as client:
        states = states_of(client, flow_run.id)
    return len(passes_of(state for state in states if state.at <= until.timestamp.timestamp()))


def states_of(client: SyncPrefectClient, flow_run_id: UUID) -> list[StateSeen]:
    """Every state that a flow run had."""
    return [state_seen(state, WHOLE) for state in client.read_flow_run_states(flow_run_id)]


def _ask(find: Callable[[], T]) -> T:
    try:
        return find()
    except Exception as error:
        raise StoreUnavailable(
            f"the root flow run, which identifies the batch, could not be read: {redact(repr(error))}"
        ) from error


def batch_of_flow_run(flow_run: FlowRun) -> str:
    """The batch of the nearest tags, of the flow run itself or of a run above it, else the outermost run."""
    named = named_in(flow_run.tags)
    if named is None and flow_run.parent_task_run_id is not None:
        with _client() as client:
            for flow_run in runs_above(client, flow_run):  # noqa: B020 - the last one counts
                if (named := named_in(flow_run.tags)) is not None:
                    break
    return named or str(flow_run.id)


def _read_flow_run(flow_run_id: UUID) -> FlowRun:
    with _client() as client:
        return client.read_flow_run(flow_run_id)


def _root_task_run(task_run: TaskRun) -> UUID:
    """The outermost task run above one without a flow."""
    parent = _parent(task_run)
    if parent is None:
        return task_run.id
    with _client() as client:
        while parent is not None:
            task_run = _read_task_run(client, parent)
            parent = _parent(task_run)
    return task_run.id


def _parent(task_run: TaskRun) -> UUID | None:
    from prefect.client.schemas.objects import TaskRunResult

    parents = [
        run.id for run in task_run.task_inputs.get("__parents__", ()) if isinstance(run, TaskRunResult)
    ]
    return parents[0] if parents else None


def _read_task_run(client: SyncPrefectClient, task_run_id: UUID) -> TaskRun:
    """Read a task run. The API knows a task run that has just begun only a moment later."""
    from prefect.exceptions import ObjectNotFound

    until = time.monotonic() + ARRIVAL_SECONDS
    while True:
        try:
            return client.read_task_run(task_run_id)
        except ObjectNotFound:
            if time.monotonic() > until:
                raise
        time.sleep(0.1)


carry_batches(tagged)


@lru_cache(maxsize=100)
def store_name(url: str) -> str:
    """A digest that identifies a store, without its user and password."""
    address = urlsplit(url)
    return digest(f"{address.scheme.partition('+')[0]}://{address.netloc.rpartition('@')[2]}{address.path}")


def mark_external(task_run: TaskRun, store_url: str) -> None:
    """Mark a task run that begins an external effect, with the store in which it is recorded."""
    if EXTERNAL_TAG not in task_run.tags:
        # Prefect sends the tags with the next state, so its server then knows of the effect.
        task_run.tags.append(EXTERNAL_TAG)
        task_run.labels[LABEL] = store_name(store_url)
