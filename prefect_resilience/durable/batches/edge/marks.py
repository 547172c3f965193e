"""A batch's records in Prefect: the mark on its root flow run, and the task runs that completed its effects.

The mark is a label of the flow run, `prefect-resilience.ledger`; for a batch with a name it ends in a digest
of the name. The same label on a task run names the store in which its effect was recorded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, TaskRunFilter
from prefect.client.schemas.objects import TaskRun

from prefect_resilience.base.naming import digest
from prefect_resilience.durable.batches.edge.tags import TAG, named_in
from prefect_resilience.errors.exceptions import StoreUnavailable
from prefect_resilience.errors.secrets.redact import redact

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

EXTERNAL_TAG = "external-effect"
"""On every task run that began an external effect; the UI can filter by it."""

LABEL = "prefect-resilience.ledger"
PAGE = 200
DEEPEST = 20
T = TypeVar("T")


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


class PrefectMarks:
    """The marks of one batch in Prefect's API (see `opening.BatchMarks`)."""

    def __init__(self, batch_id: str, root: tuple[str, int] | None, store: str) -> None:
        self.batch_id = batch_id
        self.store = store
        """The store's `store_name`."""
        self.root: UUID | None = None if root is None else UUID(root[0])
        self._count: int = 0 if root is None else root[1]

    @property
    def _own(self) -> bool:
        """Whether the batch is named after its root flow run."""
        return self.root is not None and str(self.root) == self.batch_id

    @property
    def begins(self) -> bool:
        return self._own and self._count <= 1

    @cached_property
    def _label(self) -> str:
        return LABEL if self._own else f"{LABEL}.{digest(self.batch_id)}"

    def token(self) -> str | None:
        if self.root is None:
            return None
        with _asking("the mark of the batch on its flow run") as client:
            token = client.read_flow_run(self.root).labels.get(self._label)
        return None if token is None else str(token)

    def leave(self, token: str) -> None:
        if self.root is None:
            return
        with _asking("the mark of the batch on its flow run") as client:
            client.update_flow_run_labels(self.root, {self._label: token})

    def completed(self) -> dict[str, float]:
        with _asking("the task runs of the batch") as client:
            return {str(run.id): _ended_at(run) for run in self._runs(client)}

    def _runs(self, client: SyncPrefectClient) -> Iterator[TaskRun]:
        """Task runs whose function returned; replays, fallbacks and cached results have other state names."""
        tags = [EXTERNAL_TAG] if self._own else [EXTERNAL_TAG, TAG + self.batch_id]
        asked: dict[str, Any] = {"state": {"name": {"any_": ["Completed"]}}, "tags": {"all_": tags}}
        if self._own:
            asked["flow_run_id"] = {"any_": _flow_runs(client, self.root)}
        wanted = TaskRunFilter.model_validate(asked)
        for run in pages(partial(client.read_task_runs, task_run_filter=wanted)):
            # A batch with a name may be spread over several stores.
            elsewhere = not self._own and run.labels.get(LABEL, self.store) != self.store
            if not elsewhere and (named_in(run.tags) or self.batch_id) == self.batch_id:
                yield run


def _ended_at(run: TaskRun) -> float:
    return 0.0 if run.end_time is None else run.end_time.timestamp()


def _flow_runs(client: SyncPrefectClient, root: UUID | None) -> list[UUID]:
    """The root and the subflow runs below it."""
    level: list[UUID] = [] if root is None else [root]
    found = list(level)
    for _ in range(DEEPEST):
        if not level:
            break
        below = FlowRunFilter.model_validate({"parent_flow_run_id": {"any_": level}})
        level = [run.id for run in pages(partial(client.read_flow_runs, flow_run_filter=below))]
        found += level
    return found


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
def _asking(what: str) -> Generator[SyncPrefectClient, None, None]:
    try:
        with get_client(sync_client=True) as client:
            yield client
    except Exception as error:
        raise StoreUnavailable(
            f"{what} could not be read or written in Prefect: {redact(repr(error))}"
        ) from error
