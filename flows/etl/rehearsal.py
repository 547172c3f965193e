"""The receivers of a rehearsal of the pipeline: its API of orders, and the receiver of its webhook.

    prefect-resilience rehearse flows/etl/pipeline.py:etl --receiver flows/etl/rehearsal.py --kills 30

The webhook is received once, and the orders are loaded into a new database in each case.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from tempfile import TemporaryDirectory

from starlette.requests import Request
from starlette.responses import Response

from flows.etl.service import Shop
from flows.serving import running


def receiver(took: Callable[[str, str], None]) -> Iterator[dict[str, str]]:
    class CountingShop(Shop):
        async def receive(self, request: Request) -> Response:
            await request.body()  # a kill must not come while the request is on its way
            took("webhook", request.headers.get("Idempotency-Key", ""))
            return await super().receive(request)

    with TemporaryDirectory() as folder, running(CountingShop({})) as address:
        os.environ["ETL_DATABASE_URL"] = f"sqlite:///{folder}/orders.db"
        yield {"api": address, "webhook": f"{address}/webhook", "day": "2026-11-23"}
