"""A task whose calls fail while the shop is closed."""

from __future__ import annotations

import os
from pathlib import Path

from prefect import flow

from prefect_resilience import resilient_task


@resilient_task(retry=None, dead_letter=True)
def send_invoice(number: int) -> int:
    if os.environ.get("SHOP") == "closed":
        raise ConnectionError("the shop is closed")
    with Path(os.environ["SHOP"]).open("a") as sent:
        sent.write(f"{number}\n")
    return number


@flow
def invoices(numbers: list[int]) -> None:
    for number in numbers:
        send_invoice(number, return_state=True)
    raise RuntimeError("not all invoices were sent")
