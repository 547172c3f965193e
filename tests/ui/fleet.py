"""A fleet with its troubles, for the dashboard to show: runs on a Prefect server, and 40 circuits in use.

python -m tests.ui.fleet SECONDS

Prints "ready" when the runs are over, and then calls services for so many seconds.
"""

from __future__ import annotations

import os
import random
import sys
import time
from contextlib import suppress
from pathlib import Path

from prefect import flow

from prefect_resilience import (
    Backoff,
    CircuitBreaker,
    Effect,
    ErrorBudget,
    Fallback,
    ResilienceError,
    Retry,
    batch,
    resilient_task,
)
from prefect_resilience.guards.budgets.policy import flush
from prefect_resilience.guards.circuits.breaker import get_circuit
from prefect_resilience.guards.circuits.registry import flush_all

QUICK = Retry(attempts=3, backoff=Backoff.constant(initial=0.05))
NAMES = (
    "llm:primary",
    "llm:secondary",
    "drug-labels",
    "knowledge-graph",
    "orders",
    "billing",
    "mail",
    "search",
)
TICK = 0.25


@resilient_task(retry=QUICK, fallback=Fallback.value("unknown", degraded=True))
def label(drug: str) -> str:
    raise ConnectionError("503 Service Unavailable")


@resilient_task(retry=None, dead_letter=True)
def send_invoice(number: int) -> int:
    sent = os.environ.get("SENT")
    if sent is None:
        raise ConnectionError("the mail server refused the connection")
    with Path(sent).open("a") as file:
        file.write(f"{number}\n")
    return number


@resilient_task(effect=Effect(key="payment:{order}"), retry=None)
def pay(order: str) -> None:
    raise TimeoutError("the bank did not answer in 30 s")


@flow(name="invoices", flow_run_name="invoices of the day")
def invoices() -> None:
    label.map(["aspirin", "ibuprofen", "naproxen"]).wait()
    for number in range(1, 6):
        send_invoice(number, return_state=True)
    with batch("payments-2026-11"):
        for order in ("A-17", "A-18"):
            pay(order, return_state=True)
    raise RuntimeError("not all invoices were sent")


def spend_budgets() -> None:
    for name, objective, bad in (("labels", 0.99, 12), ("send-invoice", 0.9, 4)):
        budget = ErrorBudget(objective=objective, window="7d", name=name)
        for number in range(200):
            budget.count(number >= bad)
    flush()


class Service:
    """A service behind a circuit: so many calls a second, and a share of them that fails."""

    def __init__(self, name: str, rate: float, failing: float) -> None:
        self.breaker = CircuitBreaker(name, failure_threshold=10, failure_rate=0.6, open_for=300)
        self.rate = rate
        self.failing = failing

    def call(self) -> None:
        if random.random() < self.failing:
            raise ConnectionError("503 Service Unavailable: no healthy upstream")

    def tick(self) -> None:
        calls = self.rate * TICK
        for _ in range(int(calls) + (random.random() < calls % 1)):
            with suppress(ConnectionError, ResilienceError):
                self.breaker.call(self.call)


def use_circuits(seconds: float) -> None:
    names = [*NAMES, *(f"http:service-{number:02}.internal" for number in range(40 - len(NAMES)))]
    trouble = {"llm:primary": 0.02, "drug-labels": 0.02, "knowledge-graph": 0.3}
    services = [
        Service(name, 12 if name in trouble else 2 ** random.uniform(-1, 5), trouble.get(name, 0.004))
        for name in names
    ]
    get_circuit("orders").force_open("the order database is being moved, until 18:00")
    get_circuit("mail").disable("it trips on test data")
    begun = time.monotonic()
    while (passed := time.monotonic() - begun) < seconds:
        for service in services:
            if service.breaker.name in ("llm:primary", "drug-labels") and passed > seconds / 2:
                service.failing = 1.0
            service.tick()
        time.sleep(TICK)
    flush_all()


def main() -> None:
    random.seed(11)
    invoices(return_state=True)
    spend_budgets()
    print("ready", flush=True)
    use_circuits(float(sys.argv[1]))


if __name__ == "__main__":
    main()
