"""Which batches there are: an id that nobody knows is an error that names the nearest one."""

from __future__ import annotations

from collections.abc import Iterator

from prefect_resilience.base.policy import closest
from prefect_resilience.durable.batches.archive import (
    ARCHIVES,
    SAGA_ARCHIVES,
    archive_place,
    saga_archive_place,
    scanned,
)
from prefect_resilience.durable.batches.audit import AUDITS, Audit
from prefect_resilience.durable.effects.ledger import PREFIX, Ledger, place_of
from prefect_resilience.durable.sagas.saga_log import SAGAS, saga_place
from prefect_resilience.errors.exceptions import ConfigurationError

LISTED = 5


def check_known(ledger: Ledger, batch_id: str) -> None:
    """Raise ConfigurationError for a batch of which there is no trace, and no flow run of that id.

    Raises ApiUnavailable where only the Prefect API could tell, and StoreUnavailable.
    """
    # Only now: what is asked here is Prefect.
    from prefect_resilience.durable.batches.edge.flow_runs import ApiUnavailable, find_run

    if in_ledger(ledger, batch_id):
        return
    try:
        run = find_run(batch_id, ())
    except ApiUnavailable as error:
        raise ApiUnavailable(
            f"The ledger has no batch {batch_id!r}. Whether a flow run has that id is unknown: {error}"
        ) from error
    if run is None:
        raise ConfigurationError(unknown(batch_id, sorted(set(batch_ids(ledger)))))


def in_ledger(ledger: Ledger, batch_id: str) -> bool:
    """Whether the store has anything of a batch: effects, savepoints, an audit log or an archive."""
    store = ledger.store
    places = (Audit(ledger, batch_id).place, saga_place(batch_id), saga_archive_place(batch_id))
    prefixes = (place_of(batch_id), archive_place(batch_id))
    return any(store.load(place) is not None for place in places) or any(
        store.scan(prefix, None, 1) for prefix in prefixes
    )


def batch_ids(ledger: Ledger) -> Iterator[str]:
    """The batches of which the store has anything; one may come several times."""
    for prefix, inside in (
        (PREFIX, None),
        (AUDITS, None),
        (SAGAS, None),
        (ARCHIVES, "effect"),
        (SAGA_ARCHIVES, "saga"),
    ):
        for _, found in scanned(ledger.store, prefix):
            yield (found.value if inside is None else found.value[inside])["batch"]


def unknown(batch_id: str, known: list[str]) -> str:
    """That nobody knows a batch, and which one is meant perhaps."""
    said = f"No batch or flow run {batch_id!r}."
    near = closest(batch_id, known)
    if near is not None:
        return f"{said} Did you mean {near!r}?"
    if not known:
        check = "check that PREFECT_RESILIENCE_STORE_URL names the right store"
        return f"{said} The ledger has no batches: {check}."
    more = f" and {len(known) - LISTED} more" if len(known) > LISTED else ""
    return f"{said} The ledger has {', '.join(map(repr, known[:LISTED]))}{more}."
