"""What a process knows about a circuit: until when its view holds, and which calls it lets through."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from prefect_resilience.base.durations import LONGEST
from prefect_resilience.guards.circuits import machine, sharing, window
from prefect_resilience.guards.circuits.document import rate
from prefect_resilience.guards.circuits.link import StoreLink
from prefect_resilience.guards.circuits.machine import PASSING, CircuitDocument
from prefect_resilience.guards.circuits.model import CircuitEntered, CircuitPolicy, CircuitSnapshot
from prefect_resilience.guards.circuits.pending import Epoch, Permit
from prefect_resilience.guards.circuits.turns import Turn

NEVER = -math.inf
GRACE = 5.0
"""Seconds for which a view is used after it expired, while another thread is asking the store."""


@dataclass(frozen=True, slots=True)
class View:
    """The local view of a circuit. Replaced as a whole, so that reading it needs no lock.

    Times are readings of `monotonic()`. Before `until` the store need not be asked; before `grace` a caller
    may use the view while another thread asks. `permit` is None if calls are rejected or need a lease.
    `refused`: calls are rejected until `retry` (None: until an operator changes it). `waiting`: the next
    success ends a row of failures and must be merged.
    """

    document: CircuitDocument
    until: float = NEVER
    grace: float = NEVER
    permit: Permit | None = None
    refused: bool = False
    retry: float | None = None
    waiting: bool = False


def view_of(
    document: CircuitDocument,
    now: float,
    at: float,
    policy: CircuitPolicy,
    epoch: Epoch,
    link: StoreLink,
    turn: Turn,
    look_at: float,
) -> View:
    """The view of `document` at `now` by the store's clock, which is `at` by `monotonic()`."""
    condition = link.condition
    rests = NEVER if condition == "ready" else link.rest_until
    if document["state"] in PASSING:
        counted = document["state"] == "closed"
        due = (turn.ends if turn.counts else turn.begins) if counted else look_at
        horizon = max(rests, min(look_at, due))
        # In a large fleet the processes that count end the row.
        waiting = document["state"] == "closed" and document["failures_in_row"] > 0 and document["share"] >= 1
        return View(document, horizon, horizon + GRACE, Permit(epoch), waiting=waiting)
    horizon = max(rests, look_at)
    ask_at = _ask_at(document, now, policy)
    retry = None
    if ask_at is not None:
        # From the moment on when a probe was free: whoever looks late does not wait from the beginning.
        retry = at + ask_at - now + sharing.asks_in(document["share"], random.random())
    if retry is not None and condition == "resting":
        # The store works, though slowly, and only the store can decide which process probes.
        retry = max(retry, link.rest_until)
    if retry is not None and retry <= at:
        return View(document, retry=retry)
    return View(document, horizon if retry is None else min(horizon, retry), refused=True, retry=retry)


def _ask_at(document: CircuitDocument, now: float, policy: CircuitPolicy) -> float | None:
    """When a probe may be admitted, by the store's clock; None if only an operator can end the opening."""
    if document["state"] != "half_open":
        return document["retry_at"]
    ends = [until for _, until in document["leases"].values()]
    return min(ends) if len(ends) >= policy.probes else min(now, document["updated_at"])


_ANY_POLICY = CircuitPolicy(open_max=LONGEST, probe_lease=LONGEST)
"""Accepts any length of openings and leases in a document: the circuit's own policy is unknown here."""


def snapshot_of(name: str, document: machine.CircuitDocument, now: float) -> CircuitSnapshot:
    """The state that a call would meet at `now`: the document after the time since it was written."""
    # Under every policy, elapsed time changes a valid document in the same way.
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
        usual_failure_rate=rate(seen["baseline"]),
        # From the stored document: no call has met a state that only elapsed time brought about.
        history=tuple(
            CircuitEntered(generation=generation, at=at, state=state, retry_at=retry_at)
            for generation, at, state, retry_at in document["history"]
        ),
        share_counted=document["share"],
    )
