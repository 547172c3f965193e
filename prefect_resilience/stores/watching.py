"""Watching a store: changes are pushed to the processes that wait for them, which need not poll.

Optional: a store without `watch` is polled. A message may be late, doubled or lost, so a watcher also reads
the documents itself, at long intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from prefect_resilience.errors.exceptions import StoreUnavailable
from prefect_resilience.stores.base import Document, Store
from prefect_resilience.stores.connected import ConnectedStore, check_text, read_document

R = TypeVar("R")


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


S = TypeVar("S", bound=ConnectedStore[Any])


class ConnectedWatch(Generic[S]):
    """A watch over a connection of its own. The driver's errors become StoreUnavailable.

    A watch has `_begin`, which sets `_connection`, `_wait` and `_follow`.
    """

    def __init__(self, store: S, prefix: str) -> None:
        self._store = store
        self._prefix = check_text(prefix)
        self._connection: Any = None
        self.closed: bool = False
        store.check_open()
        store.begin()
        try:
            self._translate(self._begin)
        except BaseException:
            self.close()
            raise

    def wait(self, seconds: float) -> list[News]:
        """The changes since the last call, as `Watch.wait`."""
        return self._translate(self._wait, seconds)

    def follow(self, keys: Collection[str]) -> None:
        """Only the changes of these keys, as `Watch.follow`."""
        self._translate(self._follow, keys)

    def close(self) -> None:
        """Stop watching."""
        self.closed = True
        if self._connection is not None:
            with suppress(OSError, *self._store.errors):
                self._connection.close()

    def _translate(self, work: Callable[..., R], *arguments: Any) -> R:
        try:
            return work(*arguments)
        except (OSError, *self._store.errors) as error:
            raise self._store.unavailable(error) from error

    def _begin(self) -> None:
        raise NotImplementedError

    def _wait(self, seconds: float) -> list[News]:
        raise NotImplementedError

    def _follow(self, keys: Collection[str]) -> None:
        raise NotImplementedError


def news_of(key: str, text: str) -> list[News]:
    """The change that a swap published, as `read_document` reads it; none if the message is not ours."""
    try:
        return [News(key, read_document(text, key))]
    except (ValueError, StoreUnavailable):
        return []
