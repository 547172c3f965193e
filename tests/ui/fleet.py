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
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.client.orchestration import get_client
from prefect.states import Scheduled

from prefect_resilience import (
    Backoff,
    CircuitBreaker,
    Effect,
    ErrorBudget,
    Fallback,
    ResilienceError,
    Retry,
    SpendCap,
    TokenLimit,
    batch,
    resilient,
    resilient_task,
)
from prefect_resilience.durable.batches.edge.parking import keep
from prefect_resilience.durable.batches.parked import PARKED, ParkedRun
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


@resilient(limits=[TokenLimit("openai:gpt", per_minute=200_000), SpendCap(usd=5, per="day", name="research")])
def answer(model: str, max_tokens: int) -> dict[str, Any]:
    return {"model": model, "usage": {"prompt_tokens": 3_000, "completion_tokens": max_tokens}}


def park_runs() -> None:
    now = time.time()
    waits = (
        ("labels of Friday", "the circuit 'drug-labels' is open", "drug-labels"),
        ("orders of the north", "the service asked for it: Retry-After 3600 s", None),
    )
    with get_client(sync_client=True) as client:
        for number, (name, why, circuit) in enumerate(waits, 1):
            state = Scheduled(name=PARKED, scheduled_time=datetime.now(UTC) + timedelta(hours=number))
            run_id = client.create_flow_run(invoices, name=name, state=state).id
            at, until = now - 240 * number, now + 480 * number
            wait = {"why": why, "circuit": circuit, "at": at, "since": at, "until": until}
            keep(ParkedRun(flow_run_id=str(run_id), name=name, flow="labels", **wait))


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
    park_runs()
    for _ in range(12):
        answer("gpt-4o", 7_000)
    print("ready", flush=True)
    use_circuits(float(sys.argv[1]))


if __name__ == "__main__":
    main()
