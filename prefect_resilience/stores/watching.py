"""Watching a store: changes are pushed to the processes that wait for them, which need not poll.

Optional: a store without `watch` is polled. A message may be late, doubled or lost, so a watcher also reads
the documents itself, at long intervals.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from prefect_resilience.stores.base import Document, Store


@dataclass(frozen=True, slots=True)
class News:
    """A key that changed, and its document at that time; None if the message could not hold it: load it."""

    key: str
    document: Document | None


class Watch(Protocol):
    """The changes under one prefix, from the moment when `WatchedStore.watch` returned. For one thread."""

    def wait(self, seconds: float) -> list[News]:
        """The changes since the last call, in the order of each key; empty if none comes within `seconds`.

        Raises StoreUnavailable when the connection has ended. Messages may be lost then: watch anew.
        """
        ...

    def follow(self, keys: Collection[str]) -> None:
        """From when it returns, only the changes of these keys, which start with the prefix.

        The messages of others are not sent to this process. Raises StoreUnavailable.
        """
        ...

    def close(self) -> None:
        """Stop watching."""
        ...


@runtime_checkable
class WatchedStore(Store, Protocol):
    """A store that pushes its changes: those that a swap was to publish."""

    def watch(self, prefix: str) -> Watch:
        """Watch the keys that start with `prefix`, over one connection. Raises StoreUnavailable."""
        ...
