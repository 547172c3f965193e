"""What this process believes of a circuit between two exchanges with its store."""

from __future__ import annotations

import math
from dataclasses import dataclass

from prefect_resilience.guards.circuits.link import StoreLink
from prefect_resilience.guards.circuits.machine import PASSING, CircuitDocument, new
from prefect_resilience.guards.circuits.model import CircuitPolicy
from prefect_resilience.guards.circuits.permits import Epoch, Permit

NEVER = -math.inf
GRACE = 5.0
"""Seconds beyond its freshness for which a view still serves while another thread is asking the store."""


@dataclass(frozen=True, slots=True)
class View:
    """Replaced as a whole, so that reading it needs no lock. Times are readings of `monotonic()`.

    Before `until` nobody need be asked; before `grace` a caller may go on while another one asks.
    `permit` is None where calls are refused or need a lease; `refused` says that they are refused, until
    `retry` (None: for good). `waiting` says that the next success is news to the fleet.
    """

    document: CircuitDocument
    until: float = NEVER
    grace: float = NEVER
    permit: Permit | None = None
    refused: bool = False
    retry: float | None = None
    waiting: bool = False


def unknown() -> View:
    """The view before anything was heard of the circuit."""
    return View(new())


def view_of(
    document: CircuitDocument, now: float, at: float, policy: CircuitPolicy, epoch: Epoch, link: StoreLink
) -> View:
    """The view of `document`, which holds at `now` by the store's clock and `at` by `monotonic()`."""
    condition = link.condition
    horizon = at + policy.sync_interval
    if condition != "ready":
        horizon = max(horizon, link.rest_until)
    if document["state"] in PASSING:
        waiting = document["state"] == "closed" and document["failures_in_row"] > 0
        return View(document, horizon, horizon + GRACE, Permit(epoch), waiting=waiting)
    ask_at = _ask_at(document, now, policy)
    retry = None if ask_at is None else at + max(0.0, ask_at - now)
    if retry is not None and condition == "resting":
        # The store works, if slowly, and only it can say whose turn it is to probe.
        retry = max(retry, link.rest_until)
    if retry is not None and retry <= at:
        return View(document, retry=retry)
    return View(document, horizon if retry is None else min(horizon, retry), refused=True, retry=retry)


def _ask_at(document: CircuitDocument, now: float, policy: CircuitPolicy) -> float | None:
    """When, by the store's clock, a probe may be let in; None: never by itself."""
    if document["state"] != "half_open":
        return document["retry_at"]
    ends = [until for _, until in document["leases"].values()]
    return min(ends) if len(ends) >= policy.probes else now
