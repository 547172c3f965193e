"""One call with every guard, interrupted somewhere, and what it leaves behind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from prefect_resilience import (
    Bulkhead,
    CircuitBreaker,
    Done,
    Effect,
    ErrorBudget,
    NotDone,
    RateLimit,
    batch,
    resilient,
)
from prefect_resilience.durable.effects import owner
from prefect_resilience.durable.effects.ledger import open_ledger
from prefect_resilience.guards.limits.line import in_line
from prefect_resilience.stores import open_store

assert owner.TICK_SECONDS <= 0.5  # the longest time until a report is made


@dataclass
class World:
    """One call of a task with every guard, as a probe of its circuit, and what it leaves behind."""

    url: str
    name: str
    outcome: str = "returns"
    sent: list[int] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.circuit = CircuitBreaker(
            self.name, failure_threshold=1, open_for=0.001, probes=1, success_threshold=1, store=self.url
        )
        self.circuit.record_failure(ConnectionError("down"))
        while self.circuit.state != "half_open":
            time.sleep(0.001)

    def options(self) -> dict[str, Any]:
        return {
            "circuit": self.circuit,
            "limits": [Bulkhead(2, name=self.name), RateLimit(1_000, name=f"{self.name}-rate", burst=10)],
            "timeout": 30,
            "retry": None,
            "error_budget": ErrorBudget(name=self.name),
            "fallback": [lambda order: self.answered.append(order)],
            "effect": Effect(key="pay:{order}", verify=self.verify),
        }

    def verify(self, key: str) -> Done | NotDone:
        return Done("verified") if self.sent else NotDone()

    def send(self) -> str:
        self.sent.append(1)
        if self.outcome == "fails":
            raise ConnectionResetError("the answer was lost")
        return "sent"

    def asynchronous(self) -> Callable[[], Coroutine[Any, Any, Any]]:
        @resilient(**self.options())
        async def pay(order: int) -> str:
            await asyncio.sleep(0)
            said = self.send()
            await asyncio.sleep(0)
            return said

        async def call() -> Any:
            with batch(self.name):
                return await pay(7)

        return call

    def synchronous(self) -> Callable[[], Any]:
        @resilient(**self.options())
        def pay(order: int) -> str:
            return self.send()

        def call() -> Any:
            with batch(self.name):
                return pay(7)

        return call

    # -- what is left behind

    def unsettled(self) -> list[str]:
        return [
            f"{one['key']} is {one['state']}"
            for one, alive in open_ledger(self.url).effects(self.name)
            if alive or one["state"] == "intended"
        ]

    def is_handed_over(self) -> None:
        """The effect is recorded, or its report is made at the next tick of the owner's thread: nothing waits
        for a heartbeat, a lease or the garbage collector. So it takes half a second and one write."""
        here = owner.owner_in(open_store(self.url))
        assert here._reports or self.unsettled() == []  # a report is dropped after it was made

    def busy(self) -> list[str]:
        found = self.unsettled()
        document = open_store(self.url).load(f"circuit/{self.name}")
        assert document is not None
        found += [f"probe {lease}" for lease in document.value["leases"]]
        for key in (f"bulkhead:{self.name}", f"rate:{self.name}-rate"):
            if in_line(key):
                found.append(f"{key}: {in_line(key)} in line")
        found += [
            f"claim {claim}" for one in owner._owners for claim in one._held if one.store.url == self.url
        ]
        return found

    def comes_to_rest(self) -> None:
        until = time.monotonic() + 20
        while (busy := self.busy()) and time.monotonic() < until:
            time.sleep(0.01)
        assert busy == []
        states = {one["key"]: one["state"] for one, _ in open_ledger(self.url).effects(self.name)}
        allowed = {"done", "unknown", "failed"} if self.outcome == "fails" else {"done", "unknown"}
        if self.sent:
            assert states["pay:7"] in allowed
        else:
            assert states.get("pay:7", "failed") in ("failed", "unknown")
