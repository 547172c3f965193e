"""The storage idea: JSON documents with a version, changed by compare-and-swap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class Document:
    """A JSON value and the version under which the store holds it.

    `version` is opaque and positive; for one key it only ever grows, also over a deletion or an expiry,
    so that a swap prepared against an earlier life of the key never succeeds. `expires_at` is in
    seconds of the store's own clock.
    """

    value: Any
    version: int
    expires_at: float | None = None


@runtime_checkable
class Store(Protocol):
    """What circuits, ledgers and dead letters need of a database. Every method is synchronous.

    A method raises `StoreUnavailable` when the database cannot answer, and nothing else of the driver's.
    """

    url: str

    def load(self, key: str) -> Document | None:
        """The document under `key`, or None when there is none or it has expired."""
        ...

    def swap(self, key: str, expected_version: int, value: Any, expires_at: float | None = None) -> int:
        """Write `value` if the key still has `expected_version` (0: does not exist), atomically.

        Returns the new version, or 0 when somebody else was first and nothing was written.
        """
        ...

    def delete(self, key: str, expected_version: int) -> bool:
        """Remove the document if it still has `expected_version`; True when this call removed it."""
        ...

    def scan(self, prefix: str, after: str | None = None, limit: int = 100) -> list[tuple[str, Document]]:
        """Up to `limit` live documents whose keys start with `prefix`, by key, from beyond `after`."""
        ...

    def now(self) -> float:
        """Seconds since the epoch by the store's clock, the only clock that processes share."""
        ...

    def close(self) -> None:
        """Give back connections; the store may not be used afterwards."""
        ...
