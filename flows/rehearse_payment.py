"""One payment, sent in three ways, and killed at every point of each.

`python -m flows.rehearse_payment` rehearses the three flows and prints the table of the README. The bank is a
`ScriptedService` that can be asked which payments it has.
"""

from __future__ import annotations

import httpx
from prefect import flow, task

from prefect_resilience import Done, Effect, NotDone, resilient_task, send_idempotency_key
from prefect_resilience.testing import Reply, ScriptedService, rehearse


def receiver() -> ScriptedService:
    service = ScriptedService()

    def payments() -> Reply:
        return Reply(body=[request.headers.get("Idempotency-Key") for request in service.requests])

    return service.on("/payments", payments)


def send(order: int, bank: str) -> None:
    with httpx.Client(event_hooks={"request": [send_idempotency_key]}) as client:
        client.post(f"{bank}/payments", json={"order": order}).raise_for_status()


def was_it_paid(key: str, bank: str) -> Done | NotDone:
    return Done(None) if key in httpx.get(f"{bank}/payments").json() else NotDone()


pay_plainly = task(name="pay")(send)
pay_once = resilient_task(effect=Effect(key="pay:{order}"))(send)
pay_verified = resilient_task(effect=Effect(key="pay:{order}", verify=was_it_paid))(send)


@flow
def plain(order: int, bank: str) -> None:
    pay_plainly(order, bank)


@flow
def with_effect(order: int, bank: str) -> None:
    pay_once(order, bank)


@flow
def with_verify(order: int, bank: str) -> None:
    pay_verified(order, bank)


WAYS = {"a plain task": plain, "`effect=`": with_effect, "`effect=` and `verify=`": with_verify}


def table() -> list[str]:
    """The lines of the table."""
    lines = ["| the payment is | points | received | first shown by |", "| --- | ---: | --- | --- |"]
    for name, way in WAYS.items():
        result = rehearse(way, 7, "{receiver}", receiver=receiver)
        (row,) = result.rows
        lines.append(f"| {name} | {result.points} | {row.verdict} | {row.kill or '–'} |")
    return lines


if __name__ == "__main__":
    print(*table(), sep="\n")
