"""What leaves the ledger: archived first, and only then removed. Archives end by themselves after a year."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prefect_resilience.durable.effects.ledger import MOST_TRIES, PAGE, PREFIX, Ledger, place_of
from prefect_resilience.durable.effects.model import EffectDocument
from prefect_resilience.durable.effects.opening import change_batch, is_counted, removed_effects
from prefect_resilience.durable.sagas.saga_log import SAGAS, saga_place
from prefect_resilience.errors.exceptions import StoreUnavailable
from prefect_resilience.stores.base import Document, Store

ARCHIVES = "effects-archive/"
SAGA_ARCHIVES = "effects-saga-archive/"
ARCHIVE_SECONDS = 365 * 86_400.0


def effect_documents(store: Store, batch_id: str) -> list[tuple[str, Document]]:
    """Every document of a batch in the ledger, with its place and version."""
    return list(scanned(store, place_of(batch_id)))


def scanned(store: Store, prefix: str) -> Iterator[tuple[str, Document]]:
    """Every document whose key begins like this, page by page."""
    after: str | None = None
    while page := store.scan(prefix, after, PAGE):
        yield from page
        after = page[-1][0]


def archive(store: Store, batch_id: str, found: Document, why: str, by: str) -> None:
    """Keep a copy of an effect. The same call of it is kept once, as it was at the last time."""
    place = f"{archive_place(batch_id)}{found.value['claim']}"
    _kept_for_a_year(store, place, {"archived_at": store.now(), "why": why, "by": by, "effect": found.value})


def _kept_for_a_year(store: Store, place: str, value: dict[str, Any]) -> None:
    until = value["archived_at"] + ARCHIVE_SECONDS
    for _ in range(MOST_TRIES):
        before = store.load(place)
        if store.swap(place, 0 if before is None else before.version, value, until):
            return
    raise StoreUnavailable(f"the archive at {place!r} keeps being changed by others")


def archived_effects(ledger: Ledger, batch_id: str) -> list[dict[str, Any]]:
    """What was archived of a batch: {"archived_at", "why", "by", "effect"}, the oldest first."""
    found = [document.value for _, document in scanned(ledger.store, archive_place(batch_id))]
    return sorted(found, key=lambda one: (one["archived_at"], one["effect"]["first_at"]))


def clear(ledger: Ledger, batch_id: str, *, why: str, by: str, forget_doubts: bool) -> tuple[int, list[str]]:
    """Archive every effect of a batch, then remove those that certainly were not done, or may be done again.

    What is done stays, so that it is not done again; what is external and in doubt stays too, unless doubts
    are forgotten. Returns how many were removed, and the keys that are still in doubt. Killed in between and
    done again, it comes to the same.
    """
    found = effect_documents(ledger.store, batch_id)
    for _, document in found:
        archive(ledger.store, batch_id, document, why, by)
    removed, counted, doubts = 0, 0, list[str]()
    for place, document in found:
        if _may_go(ledger, document.value, forget_doubts):
            # One that was changed meanwhile is somebody's again, and stays.
            gone = ledger.store.delete(place, document.version)
            removed += gone
            counted += gone and is_counted(document.value)
        elif document.value["state"] in ("intended", "unknown", "compensating"):
            doubts.append(document.value["key"])
    removed_effects(ledger, batch_id, counted)
    return removed, doubts


def _may_go(ledger: Ledger, document: EffectDocument, forget_doubts: bool) -> bool:
    if document["state"] not in ("intended", "unknown", "failed"):
        return False
    if document["state"] == "intended" and ledger.owner.lives(document["owner"], document["claim"]):
        return False
    return document["state"] == "failed" or document["kind"] != "external" or forget_doubts


def remove(ledger: Ledger, batch_id: str, *, why: str, by: str) -> int:
    """Archive the effects of a batch, its savepoints and rollbacks, then remove them; how many effects."""
    found = effect_documents(ledger.store, batch_id)
    for _, document in found:
        archive(ledger.store, batch_id, document, why, by)
    removed = sum(ledger.store.delete(place, document.version) for place, document in found)
    # As long as the archive stays, a later run of the batch is refused: its records are not in the ledger.
    change_batch(ledger, batch_id, lambda document: document, ledger.store.now() + ARCHIVE_SECONDS)
    saga = ledger.store.load(saga_place(batch_id))
    if saga is not None:
        kept = {"archived_at": ledger.store.now(), "why": why, "by": by, "saga": saga.value}
        _kept_for_a_year(ledger.store, saga_archive_place(batch_id), kept)
        ledger.store.delete(saga_place(batch_id), saga.version)
    return removed


def archived_saga(ledger: Ledger, batch_id: str) -> dict[str, Any] | None:
    """What was archived of a batch's rollbacks the last time: {"archived_at", "why", "by", "saga"}."""
    found = ledger.store.load(saga_archive_place(batch_id))
    return None if found is None else found.value


def archive_place(batch_id: str) -> str:
    """What the places of a batch's archived effects begin with."""
    return ARCHIVES + place_of(batch_id)[len(PREFIX) :]


def saga_archive_place(batch_id: str) -> str:
    return SAGA_ARCHIVES + saga_place(batch_id)[len(SAGAS) :]
