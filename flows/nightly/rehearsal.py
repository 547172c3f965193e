"""A day and a night to be rehearsed: orders are charged, then the nightly operation runs.

    prefect-resilience rehearse flows.nightly.rehearsal:day_and_night --receiver flows/nightly/rehearsal.py

Each order is charged once, whether the process dies during the day or during the night.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prefect import flow
from starlette.requests import Request
from starlette.responses import Response

from flows.nightly.operation import nightly
from flows.nightly.shop import Payments, shop
from flows.serving import running


@flow
def day_and_night(payments: str) -> dict[str, str]:
    shop([1, 2, 3], payments)
    return nightly(["shop"], wait=10)


def receiver(took: Callable[[str, str], None]) -> Iterator[dict[str, str]]:
    class CountingPayments(Payments):
        async def receive(self, request: Request) -> Response:
            order = (await request.json())["order"]
            took(f"charge of order {order}", request.headers.get("Idempotency-Key", ""))
            return await super().receive(request)

    with running(CountingPayments()) as address:
        yield {"payments": address}
