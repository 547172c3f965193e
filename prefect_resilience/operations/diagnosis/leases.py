"""What was begun, and whose owner is gone: effects in doubt, and replays that were cut off."""

from __future__ import annotations

from collections.abc import Iterator

from prefect_resilience.dead_letters import list as list_letters
from prefect_resilience.durable import list_batches
from prefect_resilience.errors.exceptions import ConfigurationError, StoreUnavailable
from prefect_resilience.operations.diagnosis.findings import Finding

SHOWN = 20


def leases() -> Iterator[Finding]:
    """Effects and dead letters that wait for a person."""
    try:
        letters = list_letters(status="in_doubt", limit=SHOWN)
        batches = [batch for batch in list_batches() if batch.open and batch.unknown][:SHOWN]
    except (ConfigurationError, StoreUnavailable):
        return
    for letter in letters:
        yield Finding(
            check="leases",
            where=f"dead letter {letter.id}",
            says=f"a replay of {letter.name!r} was cut off, and nobody knows how far it had come",
            mend=f"Look at the receiver; then `prefect-resilience dead-letters replay {letter.id} --force`.",
            level="note",
        )
    for batch in batches:
        yield Finding(
            check="leases",
            where=f"batch {batch.batch_id}",
            says="an effect of it was begun by a process that is gone, so that its outcome is unknown",
            mend=f"Run `prefect-resilience batches show {batch.batch_id}`, and settle what is in doubt.",
            level="note",
        )
