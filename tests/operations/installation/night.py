"""The flow of the scene: pages are fetched, invoiced, labelled, priced and published while services fail.

Every call leaves a line in the file `calls`, so that attempts can be counted without the package.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from prefect_resilience import (
    Backoff,
    CircuitBreaker,
    Effect,
    ErrorBudget,
    Fallback,
    Retry,
    resilient,
    resilient_flow,
    resilient_task,
)

QUICK = Backoff.constant(0.1)
PATIENT = Retry(attempts=3, backoff=QUICK, by_category={"circuit_open": Retry(attempts=9, backoff=QUICK)})


def call(folder: str, what: str) -> int:
    """Note the call; how often it was made before."""
    calls = Path(folder, "calls")
    before = calls.read_text().splitlines().count(what) if calls.exists() else 0
    with calls.open("a") as file:
        file.write(f"{what}\n")
    return before


def is_up(folder: str) -> bool:
    return Path(folder, "up").exists()


@resilient(
    retry=Retry(attempts=2, backoff=Backoff.none()),
    circuit=CircuitBreaker("mirror", failure_threshold=2, open_for=600),
    fallback=Fallback.value("not mirrored"),
)
def mirror(folder: str) -> str:
    call(folder, "mirror")
    raise ConnectionError("503 Service Unavailable: the mirror")


@resilient_task(retry=Retry(attempts=3, backoff=QUICK), task_run_name="page {number}")
def page(number: int, folder: str) -> int:
    if call(folder, f"page {number}") == 0 and number % 4 == 1:
        raise ConnectionError("503 Service Unavailable")
    mirror(folder)
    return number


@resilient_task(retry=None, effect=Effect(kind="idempotent", key="invoice:{number}"), persist_result=False)
def invoice(number: int, folder: str) -> str:
    call(folder, f"invoice {number}")
    return f"invoice {number}"


@resilient_task(task_run_name="last page")
def last_page(folder: str) -> None:
    """Its process is killed in its first call."""
    if call(folder, "last page") == 0 and Path(folder).name == "north":
        while not Path(folder, "killed").exists():
            time.sleep(0.05)


@resilient_task(
    retry=None,
    circuit=CircuitBreaker("labels", failure_threshold=2, open_for=600),
    fallback=Fallback.value("unknown", degraded=True),
    error_budget=ErrorBudget(objective=0.5, window="7d", name="labels"),
)
def label(number: int, folder: str) -> str:
    call(folder, f"label {number}")
    if not is_up(folder):
        raise ConnectionError("503 Service Unavailable")
    return f"label {number}"


@resilient_task(retry=PATIENT, circuit=CircuitBreaker("prices", failure_threshold=1, open_for=1))
def price(folder: str) -> float:
    if call(folder, "price") == 0:
        raise ConnectionError("503 Service Unavailable")
    return 9.95


@resilient_task(
    retry=None,
    dead_letter=True,
    circuit=CircuitBreaker("warehouse:{folder}", failure_threshold=2, open_for=600),
    task_run_name="publish {number}",
)
def publish(number: int, folder: str) -> None:
    call(folder, f"publish {number}")
    if not is_up(folder):
        raise ConnectionError("the warehouse is closed")


@resilient_flow(persist_result=True)
def etl(folder: str) -> list[str]:
    Path(folder, "pid").write_text(str(os.getpid()))
    numbers = [page(number, folder) for number in range(9)]
    for number in range(3):
        invoice(number, folder)
    last_page(folder)
    labels = [label(number, folder) for number in range(6)]
    price(folder)
    missing = sum(publish(number, folder, return_state=True).is_failed() for number in numbers[:6])
    if missing:
        raise ValueError(f"{missing} pages are missing")
    return labels
