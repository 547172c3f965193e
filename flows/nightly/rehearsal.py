"""A day and a night to be rehearsed: orders are charged, then the nightly operation runs.

    prefect-resilience rehearse flows.nightly.rehearsal:day_and_night --receiver flows/nightly/rehearsal.py

The charge of order 2 becomes a dead letter, which the nightly operation replays. Each order is charged once,
whether the process dies during the day or during the night.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from prefect import flow
from starlette.requests import Request
from starlette.responses import Response

from flows.nightly.operation import nightly
from flows.nightly.shop import Payments, shop
from flows.serving import running
from prefect_resilience import batch


def charge_orders(payments: str) -> None:
    with batch("day"):
        shop([1, 2, 3], payments)


@flow
def day_and_night(payments: str) -> dict[str, str]:
    with ThreadPoolExecutor(1) as day:
        # In a thread it is no subflow. A letter is replayed once its flow run has ended.
        day.submit(charge_orders, payments).result()
    return nightly(["shop"], wait=10)


def receiver(took: Callable[[str, str], None]) -> Iterator[dict[str, str]]:
    class CountingPayments(Payments):
        rejections = 2  # as many as a charge has attempts

        async def receive(self, request: Request) -> Response:
            order = (await request.json())["order"]
            if order == 2 and self.rejections:
                self.rejections -= 1
                return Response(status_code=503)
            took(f"charge of order {order}", request.headers.get("Idempotency-Key", ""))
            return await super().receive(request)

    with running(CountingPayments()) as address:
        yield {"payments": address}
