"""The queue of the configured store."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from prefect.settings import PREFECT_HOME

from prefect_resilience.base.edge.settings import current_settings
from prefect_resilience.durable.letters.queue import DeadLetterQueue
from prefect_resilience.durable.letters.spool import Spool
from prefect_resilience.errors.exceptions import StoreUnavailable
from prefect_resilience.stores import Store, open_store

StoreReference = Store | str | None
"""What `store=` may be: None for the configured store, a URL, or a store that was opened already."""


def queue_of(store: StoreReference = None) -> DeadLetterQueue:
    """The dead letters of a store. Those that this host kept while it was away are handed in first."""
    opened = open_store(store or current_settings().store_url) if not isinstance(store, Store) else store
    queue = DeadLetterQueue(opened)
    with suppress(StoreUnavailable, OSError):
        spool_of(queue).hand_in(queue)
    return queue


def spool_of(queue: DeadLetterQueue) -> Spool:
    """Where letters wait on this host while the store is away."""
    return Spool(Path(PREFECT_HOME.value()) / "dead-letters", queue.store.url)
