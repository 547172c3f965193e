"""What goes wrong during the day: a flow that charges orders, and a payment service.

POST /charges               charges an order, under its `Idempotency-Key`
GET  /charges?key=..        the charge that was made under this key, or null
"""

from __future__ import annotations

import os
import signal
from typing import Any

import httpx
from prefect.runtime import flow_run
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from prefect_resilience import (
    Backoff,
    CircuitBreaker,
    Done,
    Effect,
    NotDone,
    Retry,
    resilient_flow,
    resilient_task,
    send_idempotency_key,
)


def was_it_charged(key: str, payments: str) -> Done | NotDone:
    """Asks the payment service, after a call with an unknown outcome."""
    found = httpx.get(f"{payments}/charges", params={"key": key}).raise_for_status().json()
    return Done(found["id"], external_id=found["id"]) if found else NotDone()


@resilient_task(
    retry=Retry(attempts=2, backoff=Backoff.constant(0.1)),
    circuit=CircuitBreaker("payments", failure_threshold=3, open_for=2, success_threshold=1),
    effect=Effect(key="charge:{order}", verify=was_it_charged),
    dead_letter=True,
    timeout=5,
)
def charge(order: int, payments: str) -> str:
    with httpx.Client(event_hooks={"request": [send_idempotency_key]}) as client:
        return client.post(f"{payments}/charges", json={"order": order}).raise_for_status().json()["id"]


@resilient_flow(name="shop", flow_run_name="shop {orders}")
def shop(orders: list[int], payments: str, crash_at: int | None = None) -> int:
    """Charge the orders. Returns how many were charged; the others are dead letters."""
    charged = 0
    for order in orders:
        if order == crash_at and flow_run.get_run_count() == 1:
            os.kill(os.getpid(), signal.SIGKILL)  # the machine loses power
        charged += charge(order, payments, return_state=True).is_completed()
    return charged


class Payments:
    """Receives charges, and keeps all of them."""

    def __init__(self) -> None:
        self.charges: list[dict[str, Any]] = []

    async def receive(self, request: Request) -> Response:
        made = {"id": f"charge-{len(self.charges) + 1}", "key": request.headers["Idempotency-Key"]}
        self.charges.append({**made, **await request.json()})
        return JSONResponse(made)

    async def find(self, request: Request) -> Response:
        found = [one for one in self.charges if one["key"] == request.query_params["key"]]
        return JSONResponse(found[0] if found else None)

    def app(self) -> Starlette:
        return Starlette(
            routes=[Route("/charges", self.receive, methods=["POST"]), Route("/charges", self.find)]
        )
