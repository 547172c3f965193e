"""Which letter is of which call: a small document beside each letter, found by what the call is.

It holds the places in runs that the letter is known from. Whoever adds one has the letter for its pass, so
that of two equal calls that fail at the same moment each finds a letter of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from prefect_resilience.durable.letters.ids import batch_prefix, identity_in, same_work_prefix
from prefect_resilience.durable.letters.model import PASSES_KEPT, DeadLetter, Starts
from prefect_resilience.durable.letters.passes import may_be_same
from prefect_resilience.stores import Document, Store

PAGE = 1_000


def note(store: Store, letter: DeadLetter) -> None:
    """Write down what call a new letter is of."""
    store.swap(_key(letter.identity, letter.id), 0, _value(one.starts for one in letter.passes))


def forget(store: Store, letter: DeadLetter) -> None:
    """The letter is gone."""
    key = _key(letter.identity, letter.id)
    if (found := store.load(key)) is not None:
        store.delete(key, found.version)


def of_call(
    store: Store, identity: str, starts: Starts, *, in_replay: bool = False
) -> Iterator[tuple[str, Document]]:
    """The letters that may be of the call in this place, the oldest first: ids, and what `take` needs."""
    for key, document in _below(store, same_work_prefix(identity)):
        if may_be_same(_places(document.value), starts, in_replay=in_replay):
            yield key.rpartition(":")[2], document


def take(store: Store, identity: str, letter_id: str, document: Document, starts: Starts) -> bool:
    """Have the letter for the pass of this place; False when somebody else was faster."""
    known = [*_places(document.value), starts][-PASSES_KEPT:]
    return bool(store.swap(_key(identity, letter_id), document.version, _value(known)))


def in_batch(store: Store, batch: str) -> set[str]:
    """What calls of a batch, named by its digest, there are letters of."""
    return {identity_in(key) for key, _ in _below(store, batch_prefix(batch))}


def _value(places: Iterable[Starts]) -> dict[str, Any]:
    return {"passes": [[[run, count] for run, count in place] for place in places]}


def _key(identity: str, letter_id: str) -> str:
    return f"{same_work_prefix(identity)}{letter_id}"


def _below(store: Store, prefix: str) -> Iterator[tuple[str, Document]]:
    after: str | None = None
    while page := store.scan(prefix, after, PAGE):
        yield from page
        if len(page) < PAGE:
            return
        after = page[-1][0]


def _places(value: Any) -> list[Starts]:
    return [tuple((str(run), int(count)) for run, count in place) for place in value["passes"]]
