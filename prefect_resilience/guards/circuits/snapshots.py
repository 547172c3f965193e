"""A circuit's document as people read it."""

from __future__ import annotations

from prefect_resilience.base.durations import LONGEST
from prefect_resilience.guards.circuits import adaptive, machine, window
from prefect_resilience.guards.circuits.model import CircuitEntered, CircuitPolicy, CircuitSnapshot

_ANY_POLICY = CircuitPolicy(open_max=LONGEST, probe_lease=LONGEST)
"""It believes whatever a document says of openings and leases: the circuit's own policy is not known here."""


def snapshot_of(name: str, document: machine.CircuitDocument, now: float) -> CircuitSnapshot:
    """What a call would meet at `now`: the document after the time that has passed since it was written."""
    # What time alone does to a believable document is the same under every policy.
    seen, _ = machine.step(document, machine.Tick(), now, _ANY_POLICY)
    counted = window.totals(seen["window"], now)
    return CircuitSnapshot(
        name=name,
        state=seen["state"],
        generation=seen["generation"],
        consecutive_failures=seen["failures_in_row"],
        window_calls=counted.calls,
        window_failures=counted.failures,
        window_slow=counted.slow,
        opened_at=seen["opened_at"],
        retry_at=seen["retry_at"],
        reopenings=max(0, seen["openings"] - 1),
        probes_in_flight=len(seen["leases"]),
        reason=seen["reason"],
        last_error=seen["last_error"],
        updated_at=document["updated_at"],
        usual_failure_rate=adaptive.rate(seen["baseline"]),
        # As it is written: what time alone did to it since then, nobody has met yet.
        history=tuple(
            CircuitEntered(generation=generation, at=at, state=state, retry_at=retry_at)
            for generation, at, state, retry_at in document["history"]
        ),
    )
