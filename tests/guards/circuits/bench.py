"""A circuit on a bench: its document, a clock in hand, and what has happened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prefect_resilience.guards.circuits.machine import (
    PASSING,
    Acquire,
    CircuitDocument,
    Event,
    Record,
    Tick,
    Transition,
    new,
    step,
)
from prefect_resilience.guards.circuits.model import CircuitPolicy
from prefect_resilience.guards.circuits.window import Run

NOW = 1_000_000.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """A call may not be made; in `retry_in` seconds it may ask again, None: after a person did."""

    retry_in: float | None


def refusal(document: CircuitDocument, owner: str, now: float) -> Refusal | None:
    """None when `owner` may call, as the document stands after its Acquire; else how long to wait."""
    if document["state"] in PASSING:
        return None
    if document["state"] == "half_open" and owner in document["leases"]:
        return None
    if document["state"] == "half_open":
        ends = [until for _, until in document["leases"].values()]
        return Refusal(max(0.0, min(ends, default=now) - now))
    retry_at = document["retry_at"]
    return Refusal(None if retry_at is None else max(0.0, retry_at - now))


class Bench:
    """A document, a clock and a policy, and what has happened."""

    def __init__(self, **policy: Any) -> None:
        self.policy = CircuitPolicy(**policy)
        self.document = new()
        self.now = NOW
        self.changes: list[Transition] = []

    def __getitem__(self, key: str) -> Any:
        return self.document[key]

    def does(self, *events: Event, after: float = 0.0) -> Bench:
        self.now += after
        for event in events:
            self.document, changes = step(self.document, event, self.now, self.policy)
            self.changes.extend(changes)
        return self

    def calls(self, *runs: Run, **more: Any) -> Bench:
        more.setdefault("generation", self["generation"])
        return self.does(Record(runs=runs, **more))

    def asks(self, owner: str, after: float = 0.0) -> Refusal | None:
        self.does(Acquire(owner), after=after)
        return refusal(self.document, owner, self.now)

    def opened(self) -> Bench:
        return self.calls(("f", self.policy.failure_threshold))

    def probed(self, outcome: Any, owner: str = "p", **more: Any) -> Bench:
        assert self.asks(owner) is None
        return self.calls((outcome, 1), owner=owner, **more)

    def looked(self, *outcomes: Any) -> Bench:
        """The opening passes, and probes end so, for as long as there are any."""
        self.does(Tick(), after=self.opening)
        for outcome in outcomes:
            self.probed(outcome)
        return self

    @property
    def opening(self) -> float:
        return self["retry_at"] - self["opened_at"]
