"""reopen: a person accepts what the ledger has of a batch, after it lost records."""

from __future__ import annotations

from prefect_resilience.durable.batches.audit import Audit, said
from prefect_resilience.durable.batches.batch import check_batch_id
from prefect_resilience.durable.batches.edge.known import check_known
from prefect_resilience.durable.batches.edge.recovery import who
from prefect_resilience.durable.batches.edge.status import BatchStatus, batch_status
from prefect_resilience.durable.effects.ledger import open_ledger
from prefect_resilience.durable.effects.opening import change_batch, is_counted, reopened_batch
from prefect_resilience.stores.base import Store
from prefect_resilience.telemetry.edge.events import emit


def reopen(
    batch_id: str, *, by: str | None = None, reason: str | None = None, store: Store | str | None = None
) -> BatchStatus:
    """Go on with a batch of which the ledger lost records: what it has now is all that counts. The batch's
    status.

    Look at the receivers first: an effect that the ledger does not have is sent by the next run.

    Args:
        by: Who says so; the user and host, or the flow run, when left out.
        reason: Why, for the audit log.

    Raises ConfigurationError for a batch that neither the ledger nor Prefect knows, and StoreUnavailable.

    Example: `reopen("invoices-2026-11", reason="the disk was replaced; the bank has none of them")`
    """
    ledger = open_ledger(store)
    check_known(ledger, check_batch_id(batch_id))
    known = sum(is_counted(effect) for effect, _ in ledger.effects(batch_id))
    now = ledger.store.now()
    change_batch(ledger, batch_id, lambda document: reopened_batch(document, batch_id, known, now))
    audit = Audit(ledger, batch_id)
    why = f"the {known} effects that the ledger has are all that count"
    entry = audit.entry(said(by) or who(), "reopen", reason, outcome="settled", why=why)
    audit.settled(entry)
    emit("batch.reopened", "batch", batch_id, {"effects": known, "by": entry.by, "reason": entry.reason})
    return batch_status(batch_id, store=ledger.store)
