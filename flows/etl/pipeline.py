"""The orders of a day: from a paged HTTP API into a database, then one webhook.

ETL_DATABASE_URL names the database, as in `postgresql+psycopg://user@host/shop`. Default: a SQLite file.
Loading is an upsert, so it may be repeated. The webhook is a side effect: it is sent once a day.
"""

from __future__ import annotations

import os
from datetime import date
from typing import Any

import httpx
from prefect import unmapped
from pydantic import BaseModel
from sqlalchemy import create_engine, text

from prefect_resilience import (
    Backoff,
    CircuitBreaker,
    Done,
    Effect,
    Expect,
    NotDone,
    Retry,
    batch,
    resilient_flow,
    resilient_task,
    send_idempotency_key,
)

RETRY = Retry(attempts=4, backoff=Backoff.exponential(initial=0.2, maximum=10, jitter=0.2))


class Order(BaseModel):
    id: int
    customer: str
    cents: int


class Page(BaseModel):
    pages: int
    orders: list[Order]


# --- extract: retries, a circuit, a timeout, and a promise about the shape of the answer


@resilient_task(
    retry=RETRY,
    circuit=CircuitBreaker("orders-api", failure_threshold=8, open_for=10),
    timeout=2,
    expect=Expect(Page, repair=True),
    task_run_name="page {number}",
)
def fetch(day: str, number: int, api: str) -> Any:
    """One page. `expect` makes a `Page` of the text."""
    return httpx.get(f"{api}/orders", params={"day": day, "page": number}).raise_for_status().text


# --- load: an upsert


TABLE = """CREATE TABLE IF NOT EXISTS orders
    (id INTEGER PRIMARY KEY, day TEXT NOT NULL, customer TEXT NOT NULL, cents INTEGER NOT NULL)"""
UPSERT = """INSERT INTO orders (id, day, customer, cents) VALUES (:id, :day, :customer, :cents)
    ON CONFLICT (id) DO UPDATE SET day = excluded.day, customer = excluded.customer, cents = excluded.cents"""


def database() -> str:
    return os.environ.get("ETL_DATABASE_URL", "sqlite:///orders.db")


@resilient_task(retry=RETRY)
def create_table() -> None:
    with create_engine(database()).begin() as connection:
        connection.execute(text(TABLE))


@resilient_task(retry=RETRY, task_run_name="load")
def load(day: str, page: Page) -> int:
    rows = [{"day": day, **order.model_dump()} for order in page.orders]
    with create_engine(database()).begin() as connection:
        connection.execute(text(UPSERT), rows)
    return len(rows)


# --- announce: once a day, also if the connection is cut or the flow runs a second time


def was_it_received(key: str, webhook: str) -> Done | NotDone:
    """Asks the receiver, after a call with an unknown outcome."""
    found = httpx.get(webhook, params={"key": key}).raise_for_status().json()
    return Done(found["id"], external_id=found["id"]) if found else NotDone()


@resilient_task(retry=RETRY, effect=Effect(key="orders:{day}", verify=was_it_received), timeout=10)
def announce(day: str, orders: int, webhook: str) -> str:
    with httpx.Client(event_hooks={"request": [send_idempotency_key]}) as client:
        sent = client.post(webhook, json={"day": day, "orders": orders}).raise_for_status()
    return sent.json()["id"]


@resilient_flow(name="etl")
def etl(api: str, webhook: str, day: str | None = None) -> int:
    """Load the orders of a day, today by default, and announce them."""
    day = day or f"{date.today():%Y-%m-%d}"
    create_table()
    first = fetch(day, 1, api)
    pages = fetch.map(unmapped(day), range(2, first.pages + 1), unmapped(api))
    loaded = [load.submit(day, first), *load.map(unmapped(day), pages)]
    pages.result()  # a page that failed for good fails the flow here; the other pages are loaded
    orders = sum(each.result() for each in loaded)
    with batch(f"orders-{day}"):  # what is done in this batch is not repeated by another run
        announce(day, orders, webhook)
    return orders
