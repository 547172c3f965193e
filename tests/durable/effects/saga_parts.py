"""What the tests of sagas undo: functions at the top of a module, which other processes find too."""

from __future__ import annotations

import os
from typing import Any

import httpx
from prefect import task
from pydantic import BaseModel

from prefect_resilience import resilient_task
from prefect_resilience.effects import (
    Done,
    Effect,
    NotDone,
    batch_status,
    idempotency_key,
    send_idempotency_key,
)

RECEIVER = "SAGA_RECEIVER"
"""Where messages go; the environment takes it to other processes."""

calls: list[tuple[str, Any]] = []
"""What was called in this process, in order."""

troubles: dict[str, list[Exception]] = {}
"""What the compensation of an order raises, one after the other."""


def client() -> httpx.Client:
    return httpx.Client(
        base_url=os.environ[RECEIVER],
        event_hooks={"request": [send_idempotency_key]},
        limits=httpx.Limits(max_keepalive_connections=0),
        timeout=30,
    )


def post() -> str:
    """One message to the receiver, under the key of the effect that is going on; the receiver's id of it."""
    with client() as opened:
        response = opened.post("/")
    response.raise_for_status()
    return response.json()["id"]


def ask(key: str) -> Done | NotDone:
    with client() as opened:
        return Done(f"m-{key}") if opened.get(f"/{key}").json()["taken"] else NotDone()


def states(batch_id: str) -> dict[str, str]:
    """The states of a batch's effects, without its compensations."""
    return {one.key: one.state for one in batch_status(batch_id).effects if one.compensates is None}


class Receipt(BaseModel):
    order: int
    total: bytes


def undo_send(order: int, result: str, external_id: str | None) -> None:
    """A plain function: it notes its call, raises what it is told to, and posts."""
    calls.append(("undo", order, result, external_id))
    if troubles.get(str(order)):
        raise troubles[str(order)].pop(0)
    post()


async def undo_send_async(order: int, external_id: str) -> None:
    calls.append(("undo", order, external_id))
    post()


@task(retries=3)
def undo_send_task(order: int) -> None:
    calls.append(("undo", order))
    post()


@resilient_task(effect=Effect(verify=ask))
def undo_send_asked(order: int) -> None:
    calls.append(("undo", order))
    post()


@resilient_task
async def undo_send_resilient(order: int) -> str:
    calls.append(("undo", order))
    return idempotency_key()


def undo_receipt(result: Receipt) -> None:
    calls.append(("undo", result))


def undo_with(receipt: Receipt, **others: Any) -> None:
    calls.append(("undo", receipt, others))


def undo_by_token(token: str) -> None:
    calls.append(("undo", token))


@resilient_task(effect=Effect(key="order:{order}", compensate=undo_send))
def send(order: int) -> Done:
    calls.append(("send", order))
    return Done(post(), f"id-{order}")


class Api:
    def undo_here(self, order: int) -> None:
        calls.append(("undo", order))
