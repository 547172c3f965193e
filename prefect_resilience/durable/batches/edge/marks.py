"""A batch's records in Prefect: the mark on its root flow run, and the task runs that completed its effects.

The mark is a label of the flow run, `prefect-resilience.ledger`; for a batch with a name it ends in a digest
of the name. The same label on a task run names the store in which its effect was recorded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, TaskRunFilter
from prefect.client.schemas.objects import TaskRun
from prefect.client.schemas.responses import OrchestrationResult, SetStateStatus
from prefect.exceptions import ObjectNotFound

from prefect_resilience.base.naming import digest
from prefect_resilience.durable.batches.batch import run_id_of
from prefect_resilience.durable.batches.edge.tags import EXTERNAL_TAG, LABEL, TAG, named_in
from prefect_resilience.durable.effects.opening import batch_document, is_counted, lost, missing
from prefect_resilience.errors.exceptions import StoreUnavailable
from prefect_resilience.errors.secrets.redact import redact

if TYPE_CHECKING:
    from prefect_resilience.durable.effects.ledger import Ledger

PAGE = 200
DEEPEST = 20
T = TypeVar("T")


class PrefectMarks:
    """The marks of one batch in Prefect's API (see `opening.BatchMarks`)."""

    def __init__(self, batch_id: str, root: tuple[str, int] | None, store: str) -> None:
        self.batch_id = batch_id
        self.store = store
        """The store's `store_name`."""
        self._around: UUID | None = None if root is None else UUID(root[0])
        # A replay runs outside of the flow run that carries the mark of its batch.
        self.root: UUID | None = run_id_of(batch_id) or self._around
        self.begins: bool = root is not None and root[0] == batch_id and root[1] <= 1

    @property
    def _own(self) -> bool:
        """Whether the batch is named after its root flow run."""
        return self.root is not None and str(self.root) == self.batch_id

    @property
    def _label(self) -> str:
        return LABEL if self._own else f"{LABEL}.{digest(self.batch_id)}"

    def token(self) -> str | None:
        with _asking() as client:
            while self.root is not None:
                try:
                    return self.token_in(client.read_flow_run(self.root).labels)
                except ObjectNotFound:  # its id is that of a task run without a flow
                    self.root = self._around if self._own else None
        return None

    def token_in(self, labels: Mapping[str, Any]) -> str | None:
        """The token of the batch among a flow run's labels."""
        token = labels.get(self._label)
        return None if token is None else str(token)

    def leave(self, token: str) -> None:
        if self.root is None:
            return
        with _asking() as client:
            client.update_flow_run_labels(self.root, {self._label: token})

    def completed(self) -> dict[str, float]:
        with _asking() as client:
            runs = [*self._runs(client)]
        return {str(run.id): 0.0 if run.end_time is None else run.end_time.timestamp() for run in runs}

    def missing_from(self, ledger: Ledger) -> str | None:
        """Why the ledger does not have all records that Prefect has of the batch; None: it has them."""
        # Prefect is read before the ledger, which a process that still runs writes first.
        token, completed = self.token(), self.completed()
        document = batch_document(ledger, self.batch_id)
        effects: list[Any] = [
            {"runs": row.get("runs") or ()} for row, _ in ledger.each_effect(self.batch_id) if is_counted(row)
        ]
        return lost(document, token) or missing(document, effects, {}, completed)

    def _runs(self, client: SyncPrefectClient) -> Iterator[TaskRun]:
        """Task runs whose function returned; replays, fallbacks and cached results have other state names."""
        tags = [EXTERNAL_TAG] if self._own else [EXTERNAL_TAG, TAG + self.batch_id]
        wanted: dict[str, Any] = {"state": {"name": {"any_": ["Completed"]}}, "tags": {"all_": tags}}
        if self._own:
            wanted["flow_run_id"] = {"any_": runs_below(client, self.root)}
        for run in _search(client, wanted):
            # A batch with a name may be spread over several stores.
            elsewhere = not self._own and run.labels.get(LABEL, self.store) != self.store
            if not elsewhere and (named_in(run.tags) or self.batch_id) == self.batch_id:
                yield run


def flow_run_of_name(client: SyncPrefectClient, batch_id: str) -> UUID | None:
    """A flow run that began external effects in the batch of this name."""
    task_runs = _search(client, {"tags": {"all_": [EXTERNAL_TAG, TAG + batch_id]}})
    return next((run.flow_run_id for run in task_runs if run.flow_run_id is not None), None)


def _search(client: SyncPrefectClient, wanted: dict[str, Any]) -> Iterator[TaskRun]:
    chosen = TaskRunFilter.model_validate(wanted)
    return pages(partial(client.read_task_runs, task_run_filter=chosen))


def runs_below(client: SyncPrefectClient, root: UUID | None, most: int = sys.maxsize) -> list[UUID]:
    """The root and the subflow runs below it, at most so many on each level."""
    level: list[UUID] = [] if root is None else [root]
    run_ids = list(level)
    for _ in range(DEEPEST):
        if not level:
            break
        below = FlowRunFilter.model_validate({"parent_flow_run_id": {"any_": level}})
        level = [run.id for run in pages(partial(client.read_flow_runs, flow_run_filter=below), most)]
        run_ids += level
    return run_ids


def pages(read: Callable[..., list[T]], most: int = sys.maxsize) -> Iterator[T]:
    """All results of `read(limit=, offset=)`, page by page; at most `most`."""
    offset = 0
    while offset < most:
        limit = min(PAGE, most - offset)
        page = read(limit=limit, offset=offset)
        yield from page
        offset += len(page)
        if len(page) < limit:
            return


@contextmanager
def asking(
    failure: Callable[[str], Exception],
    what: str,
    passing: tuple[type[Exception], ...] = (),
    own: bool = False,
) -> Generator[SyncPrefectClient, None, None]:
    """A client of the Prefect API. Its errors become a `failure` that begins with `what`. `own`: not the
    client of the current run, which is closed at the end of that run."""
    try:
        with get_client(sync_client=True, httpx_settings={} if own else None) as client:
            yield client
    except passing:
        raise
    except Exception as error:
        raise failure(f"{what}: {redact(repr(error))}") from error


def refusal_of(answer: OrchestrationResult[Any]) -> str | None:
    """Why the API rejected a new state of a run; None if it accepted it."""
    if answer.status is SetStateStatus.ACCEPT:
        return None
    return redact(str(getattr(answer.details, "reason", None) or f"the API answered {answer.status.value}"))


_asking = partial(
    asking, StoreUnavailable, "the records of the batch could not be read or written in Prefect"
)
