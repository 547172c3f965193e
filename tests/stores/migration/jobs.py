"""The flow that filled the store of 0.1, and that goes on with it today.

python -c "from tests.stores.migration.jobs import fill; fill()"  # with 0.1 on the path
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import httpx
from pydantic import BaseModel

from prefect_resilience import CircuitBreaker, Effect, ErrorBudget, Retry, resilient_flow, resilient_task

BATCH = "day-2026-11-22"
ONCE = Retry(attempts=1)
SENT: list[str] = []


class Order(BaseModel):
    number: int
    total: Decimal
    due: date


ORDER = Order(number=7, total=Decimal("1.50"), due=date(2026, 11, 30))
ARGUMENTS = (
    ORDER,
    Path("invoices/7.pdf"),
    datetime(2026, 11, 22, 8, tzinfo=UTC),
    UUID(int=7),
    {"lines": [1, 2.5, None, True], "by": ("a", b"b")},
)


@resilient_task(effect=Effect(key="pay:{who}"), retry=ONCE)
def pay(who: str) -> dict[str, str]:
    SENT.append(f"pay {who}")
    return {"paid": who}


@resilient_task(effect=Effect(), retry=ONCE)
def bill(order: Order, file: Path, at: datetime, mark: UUID, more: dict[str, object]) -> int:
    """Its key is a digest of what it is called with."""
    SENT.append(f"bill {order.number}")
    return order.number


def cancel(who: str) -> None:
    SENT.append(f"cancel {who}")


@resilient_task(effect=Effect(key="book:{who}", compensate=cancel), retry=ONCE)
def book(who: str) -> str:
    SENT.append(f"book {who}")
    return f"room of {who}"


@resilient_task(effect=Effect(key="unclear:{who}"), retry=ONCE)
def unclear(who: str) -> None:
    SENT.append(f"unclear {who}")
    raise httpx.ReadTimeout("no answer")


@resilient_task(
    error_budget=ErrorBudget(name="payments", objective=0.9), circuit=CircuitBreaker("ledger"), retry=ONCE
)
def ask(number: int) -> None:
    raise httpx.ConnectError("refused")


@resilient_task(dead_letter=True, retry=ONCE)
def accept(order: Order) -> int:
    if not MENDED:
        raise ValueError("bad order")
    return order.number


MENDED: list[bool] = []


@resilient_flow(batch=BATCH)
def day() -> None:
    pay("ada")
    bill(*ARGUMENTS)
    book("ada")
    unclear("bob", return_state=True)


@resilient_flow(batch=BATCH)
def book_alone() -> str:
    return book("ada")


@resilient_flow(batch=BATCH)
def unclear_alone() -> None:
    unclear("bob")


@resilient_flow(batch=BATCH)
def pay_to(who: str) -> dict[str, str]:
    return pay(who)


def fill() -> None:
    """Every kind of document, as a day with trouble leaves it."""
    day()
    trouble()
    CircuitBreaker("by-hand").force_open("maintenance")
    CircuitBreaker("off").disable("never mind")


@resilient_flow
def trouble() -> None:
    for number in range(6):
        ask(number, return_state=True)
    accept(ORDER, return_state=True)
