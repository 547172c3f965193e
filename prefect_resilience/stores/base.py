"""The interface of stores: JSON documents with a version, changed by compare-and-swap."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, runtime_checkable

from prefect_resilience.errors.exceptions import StoreUnavailable


@dataclass(frozen=True, slots=True)
class Document:
    """A JSON value and the version under which the store holds it.

    `version` is opaque and positive. For one key it only grows, also across a deletion or an expiry, so
    that a swap prepared for an earlier document under the key never succeeds. `expires_at` is in
    seconds of the store's own clock.
    """

    value: Any
    version: int
    expires_at: float | None = None


@runtime_checkable
class Store(Protocol):
    """The database operations that circuits, ledgers and dead letters need. Every method is synchronous.

    A method raises `StoreUnavailable` when the database cannot answer. It raises no driver errors.
    """

    url: str

    def load(self, key: str) -> Document | None:
        """The document under `key`, or None if it does not exist or has expired."""

    def swap(
        self,
        key: str,
        expected_version: int,
        value: Any,
        expires_at: float | None = None,
        open: bool = False,
        publish: bool = False,
    ) -> int:
        """Write `value` if the key still has `expected_version` (0: does not exist), atomically.

        Returns the new version, or 0 if the version differs and nothing was written. `open`: `scan_open`
        lists the document until it is written without it; a store without `scan_open` need not take it.
        `publish`: every watch of a prefix of `key` gets News if this call writes; a store without `watch`
        need not take it.
        """
        ...

    def delete(self, key: str, expected_version: int) -> bool:
        """Remove the document if it still has `expected_version`; True when this call removed it."""
        ...

    def scan(self, prefix: str, after: str | None = None, limit: int = 100) -> list[tuple[str, Document]]:
        """Up to `limit` live documents with keys that start with `prefix` and follow `after`, by key."""
        ...

    def now(self) -> float:
        """Seconds since the epoch by the store's clock, the only clock that processes share."""
        ...

    def close(self) -> None:
        """Close connections; the store may not be used afterwards."""


@runtime_checkable
class OpenStore(Store, Protocol):
    """A store that lists its open documents without reading the others."""

    def scan_open(
        self, prefix: str, after: str | None = None, limit: int = 100
    ) -> list[tuple[str, Document]]:
        """As `scan`, only what was swapped with `open`; perhaps with others, which a caller skips."""
        ...


# Watching a store: changes are pushed to the processes that wait for them. A message may be late, doubled or
# lost, so a watcher also reads the documents itself, at long intervals.


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

    def close(self) -> None:
        """Stop watching."""


@runtime_checkable
class WatchedStore(Store, Protocol):
    """A store that pushes its changes: those that a swap was to publish."""

    def watch(self, prefix: str) -> Watch:
        """Watch the keys that start with `prefix`, over one connection. Raises StoreUnavailable."""
        ...


PAGE = 500


def scan_all(
    store: Store, prefix: str, after: str | None = None, *, only_open: bool = False
) -> Iterator[tuple[str, Document]]:
    """Every live document with a key that starts with `prefix` and follows `after`, by key, in pages.

    `only_open`: those that are open, and perhaps others, which the caller skips.
    """
    scan = getattr(store, "scan_open" if only_open and lists_open(type(store)) else "scan")
    while page := scan(prefix, after, PAGE):
        yield from page
        after = page[-1][0]


def write(store: Store, key: str, expected_version: int, value: Any, is_open: bool) -> int:
    """`Store.swap` of a document that may be open, also in a store that does not know of this."""
    if is_open and lists_open(type(store)):
        return store.swap(key, expected_version, value, open=True)
    return store.swap(key, expected_version, value)


@cache
def lists_open(kind: type[Store]) -> bool:
    """Whether a store lists what is open. One that was written against 0.2 does not, nor takes `open`."""
    return hasattr(kind, "scan_open") and "open" in inspect.signature(kind.swap).parameters


MOST_CHANGES = 1_000
"""So many changes of others may come before one's own; then the caller is to try again."""


def change(
    store: Store,
    key: str,
    step: Callable[[Any], Any],
    lasts: float | None = None,
    is_open: Callable[[Any], bool] | None = None,
    now: float | None = None,
) -> Any:
    """The value under `key` after `step`, which gets the current value or None, and may be called repeatedly.

    A `step` that returns None or its argument itself changes nothing. `lasts`: seconds until the value ends.
    `is_open`: whether a value is to be listed among what is open; such values do not expire.
    `now`: the store's time, if the caller knows it well enough for `lasts`.
    """
    for _ in range(MOST_CHANGES):
        document = store.load(key)
        before = None if document is None else document.value
        after = step(before)
        if after is None or after is before:
            return after
        version = 0 if document is None else document.version
        if lasts is not None:
            swapped = store.swap(key, version, after, (store.now() if now is None else now) + lasts)
        else:
            swapped = write(store, key, version, after, is_open is not None and is_open(after))
        if swapped:
            return after
    raise StoreUnavailable(f"too many concurrent changes to the document {key!r}: try again")
