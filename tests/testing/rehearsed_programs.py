"""Programs for rehearsals: five mistakes that people make, and the same five without the mistake.

Each flow pays two orders at a bank, which can be asked what was paid.
"""

from __future__ import annotations

import subprocess
import time
from multiprocessing import get_context
from typing import Any

import httpx
from prefect import flow, task

from prefect_resilience import Done, Effect, NotDone, resilient_task, send_idempotency_key
from prefect_resilience.testing import Reply, ScriptedService

ORDERS = (1, 2)


def bank() -> ScriptedService:
    """A receiver that knows what it got: GET /paid?key=... answers the paths that came under the key."""
    service = ScriptedService()

    def answer() -> Reply:
        key = service.requests[-1].path.partition("key=")[2]
        sent = [one for one in service.requests if one.headers.get("Idempotency-Key") == key]
        return Reply(body=[one.path for one in sent])

    return service.on("/paid", answer)


def was_paid(key: str, url: str) -> Done | NotDone:
    found = httpx.get(f"{url}/paid?key={key}").json()
    return Done(found) if found else NotDone()


def client() -> httpx.Client:
    return httpx.Client(event_hooks={"request": [send_idempotency_key]})


def post(url: str, path: str, order: int) -> None:
    with client() as session:
        session.post(f"{url}/{path}", json={"order": order}).raise_for_status()


def effect(key: str) -> Effect:
    return Effect(key=key, verify=was_paid)


# -- a key with a time in it


@resilient_task(effect=effect("pay-{order}-{at}"))
def pay_at(order: int, url: str, at: float) -> None:
    post(url, "pay", order)


@flow
def time_in_key(url: str) -> None:
    for order in ORDERS:
        pay_at(order, url, time.time())


@resilient_task(effect=effect("pay-{order}"))
def pay(order: int, url: str) -> None:
    post(url, "pay", order)


@flow
def key_of_the_order(url: str) -> None:
    for order in ORDERS:
        pay(order, url)


# -- a POST in a helper without effect


def announce(order: int, url: str) -> None:
    httpx.post(f"{url}/announce", json={"order": order}).raise_for_status()


@task
def prepare(order: int, url: str) -> None:
    announce(order, url)


@flow
def helper_without_effect(url: str) -> None:
    for order in ORDERS:
        prepare(order, url)
        pay(order, url)


@resilient_task(effect=effect("announce-{order}"))
def prepare_once(order: int, url: str) -> None:
    post(url, "announce", order)


@flow
def helper_with_effect(url: str) -> None:
    for order in ORDERS:
        prepare_once(order, url)
        pay(order, url)


# -- retries inside the SDK


class Sdk:
    """A client that sends a request again when its connection is cut, as many SDKs do."""

    def __init__(self, attempts: int) -> None:
        self.attempts = attempts

    def pay(self, order: int, url: str) -> None:
        for attempt in range(1, self.attempts + 1):
            try:
                post(url, "pay", order)
                break
            except httpx.TransportError:
                if attempt == self.attempts:
                    raise


@resilient_task(effect=effect("pay-{order}"))
def pay_by_sdk(order: int, url: str, attempts: int) -> None:
    Sdk(attempts).pay(order, url)


@flow
def sdk_retries(url: str) -> None:
    for order in ORDERS:
        pay_by_sdk(order, url, 3)


@flow
def sdk_without_retries(url: str) -> None:
    for order in ORDERS:
        pay_by_sdk(order, url, 1)


# -- two effects in one task


@resilient_task(effect=effect("pay-{order}"))
def pay_and_ship(order: int, url: str) -> None:
    post(url, "pay", order)
    post(url, "ship", order)


@flow
def two_in_one_task(url: str) -> None:
    for order in ORDERS:
        pay_and_ship(order, url)


@resilient_task(effect=effect("ship-{order}"))
def ship(order: int, url: str) -> None:
    post(url, "ship", order)


@flow
def two_tasks(url: str) -> None:
    for order in ORDERS:
        pay(order, url)
        ship(order, url)


# -- an effect in a `finally`


@task
def work(order: int) -> int:
    return order


@flow
def sent_in_finally(url: str) -> None:
    for order in ORDERS:
        try:
            work(order)
        finally:
            announce(order, url)


@flow
def effect_in_finally(url: str) -> None:
    for order in ORDERS:
        try:
            work(order)
        finally:
            prepare_once(order, url)


MISTAKES: dict[str, tuple[Any, str]] = {
    "a key with a time in it": (time_in_key, "pay_at"),
    "a POST in a helper without effect": (helper_without_effect, "prepare"),
    "retries inside the SDK": (sdk_retries, "pay_by_sdk"),
    "two effects in one task": (two_in_one_task, "pay_and_ship"),
    "an effect in a finally": (sent_in_finally, "sent_in_finally"),
}
"""Each with the function that makes it."""
RIGHT: dict[str, Any] = {
    "a key of the order": key_of_the_order,
    "a helper with an effect": helper_with_effect,
    "an SDK that does not retry": sdk_without_retries,
    "a task for each effect": two_tasks,
    "an effect in a finally, with effect=": effect_in_finally,
}


# -- what a rehearsal refuses


def connect(url: str) -> None:
    httpx.get(url)


@flow
def to_another_host(address: str) -> None:
    connect(address)


@flow
def by_another_program(address: str) -> None:
    subprocess.run(["curl", address], check=True)


@flow
def by_a_driver(address: str) -> None:
    import psycopg

    psycopg.connect(host=address)


@flow
def in_a_child(address: str) -> None:
    child = get_context("spawn").Process(target=connect, args=(address,))
    child.start()
    child.join()
    assert child.exitcode == 0


BY: dict[str, Any] = {"program": by_another_program, "driver": by_a_driver, "child": in_a_child}


@flow
def plain(url: str) -> None:
    prepare(1, url)
