"""Open documents: effects without an outcome, and letters that wait. A SQL store and Redis keep an index of
them, and one of the few among them that are in doubt.

In SQL, each is a partial index on the text of the documents. So it also has the documents that a process with
an older version writes, and changes with each of them. redis_open.py is that of Redis. An index may have a
few more documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from prefect_resilience.stores import base
from prefect_resilience.stores.base import Document, Store, prefix_end, scan_all


@dataclass(frozen=True, slots=True)
class OpenDocuments:
    """The documents below `prefix` that have one of the texts `any_of`, and none of `none_of`.

    Each text is a name and a value as `encode` writes them. No string in a document can contain it, since the
    quotation marks of strings are escaped; only another document inside of this one can.
    """

    prefix: str
    any_of: tuple[str, ...] = ()
    none_of: tuple[str, ...] = ()

    def condition(self, contains: Callable[[str], str]) -> str:
        """As a condition of SQL; `contains` is the expression that the column `value` has a text."""
        terms = [f"key >= '{self.prefix}'", f"key < '{prefix_end(self.prefix)}'", "value <> ''"]
        if self.any_of:
            terms.append(f"({' OR '.join(map(contains, self.any_of))})")
        return " AND ".join([*terms, *(f"NOT {contains(text)}" for text in self.none_of)])

    def has(self, text: str) -> bool:
        """Whether a document below the prefix is one of these, by its JSON."""
        for one in self.none_of:
            if one in text:
                return False
        for one in self.any_of:
            if one in text:
                return True
        return not self.any_of


_EFFECTS = OpenDocuments(
    "effects/",
    any_of=tuple(f'"state":"{state}"' for state in ("intended", "unknown", "failed", "compensating")),
)
# A letter that waits has no status in its document: that is the default.
_LETTERS = OpenDocuments("dead-letter:", none_of=('"status":"replayed"', '"status":"settled"'))
_DOUBTFUL = OpenDocuments("dead-letter:", any_of=('"status":"replaying"', '"status":"in_doubt"'))

Which = Literal["open", "in_doubt"]
OPEN_DOCUMENTS: dict[Which, tuple[OpenDocuments, ...]] = {
    "open": (_EFFECTS, _LETTERS),
    # A claim that has expired leaves a letter that is being replayed in doubt.
    "in_doubt": (_DOUBTFUL,),
}


_CONCERNED: dict[str, list[tuple[Which, OpenDocuments]]] = {}
for _which, _those in OPEN_DOCUMENTS.items():
    for _one in _those:
        _CONCERNED.setdefault(_one.prefix, []).append((_which, _one))
PREFIXES = tuple(_CONCERNED)
"""The prefixes of documents that may be open."""


def indexes_of(key: str, text: str) -> dict[Which, bool]:
    """Whether each index for documents with such a key has this one, by its JSON."""
    if not key.startswith(PREFIXES):
        return {}
    for prefix, those in _CONCERNED.items():
        if key.startswith(prefix):
            return {which: one.has(text) for which, one in those}
    return {}


@runtime_checkable
class IndexedStore(Store, Protocol):
    """A store with an index of open documents."""

    def scan_open(
        self, prefix: str, after: str | None = None, limit: int = 100, which: Which = "open"
    ) -> list[tuple[str, Document]]:
        """As `scan`, without documents that are not open. Without its index, the same as `scan`."""
        ...


def scan_open(
    store: Store, prefix: str, after: str | None = None, which: Which = "open"
) -> Iterator[tuple[str, Document]]:
    """Every document below `prefix` that is open, by key; perhaps with others, which the caller skips."""
    if not isinstance(store, IndexedStore):
        yield from scan_all(store, prefix, after)
        return
    while found := store.scan_open(prefix, after, base.PAGE, which):
        yield from found
        after = found[-1][0]
