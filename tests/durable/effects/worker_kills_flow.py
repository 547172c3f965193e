"""The flow whose processes are killed: external effects, one after the other, each a message that is posted.

Deployed as it stands here. `mode` says what its receiver can do: "keys" (it honours Idempotency-Key), "asked"
(`verify` can ask it) or "blind" (neither). "changed" is "asked" by a function that changes its arguments, and
that fails once before it sends; "native" writes a row by libpq, and then a request of it may be refused. In a
"late" mode every fourth message is sent when its attempt is over, by the thread that the deadline left
behind; in an "async" one, by a thread that outlives its coroutine.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

import httpx
import psycopg
from prefect import flow

from prefect_resilience import Backoff, Retry, Timeout, resilient_task
from prefect_resilience.durable.effects import owner
from prefect_resilience.durable.effects.current import in_progress
from prefect_resilience.durable.effects.ledger import open_ledger, place_of
from prefect_resilience.effects import Done, Effect, NotDone, idempotency_key, send_idempotency_key
from prefect_resilience.errors.exceptions import NotSent
from tests.durable.effects.victim import Victim

client = httpx.Client(
    event_hooks={"request": [send_idempotency_key]},
    limits=httpx.Limits(max_keepalive_connections=0),
    timeout=60,
    verify=False,
)


SHORT = {"LEASE_SECONDS": 2.0, "QUIET_SECONDS": 6.0, "RENEW_SECONDS": 0.5, "TICK_SECONDS": 0.25}
"""An owner's times in a plot: its process is stopped for longer than its lease."""

victim: Victim | None = None
"""This process, if it is one that may die."""


def post(url: str) -> str:
    response = client.post(url, headers=victim.headers() if victim is not None else {})
    response.raise_for_status()
    assert response.json()["id"] == f"m-{idempotency_key()}"
    return response.json()["id"]


def verify(key: str, url: str) -> Any:
    return Done(f"m-{key}") if client.get(f"{url}/{key}").json()["taken"] else NotDone()


KEY = "{batch_id}.{order}"


@resilient_task(effect=Effect(kind="idempotent", key=KEY), persist_result=False)
def send_to_one_that_honours_keys(order: int, url: str) -> str:
    return post(url)


@resilient_task(effect=Effect(key=KEY, verify=verify), persist_result=False)
def send_to_one_that_can_be_asked(order: int, url: str) -> str:
    return post(url)


@resilient_task(effect=Effect(key=KEY), persist_result=False)
def send_blindly(order: int, url: str) -> str:
    return post(url)


CHANGES = Effect(key="{batch_id}.{order[n]}", verify=verify)


@resilient_task(effect=CHANGES, retry=Retry(backoff=Backoff.none(), retry_on=NotSent), persist_result=False)
def send_what_it_changes(order: dict[str, Any], url: str) -> str:
    order["status"] = "sending"
    if order["lines"].pop() == "first" and order["n"] % LATE_EVERY == 0:
        raise NotSent("once")
    return post(url)


def written(key: str, rows: str) -> int:
    """How often the row was written."""
    with psycopg.connect(rows) as connection:
        found = connection.execute("SELECT count(*) FROM till WHERE key = %s", (key,)).fetchone()
    assert found is not None
    return found[0]


def is_written(key: str, rows: str) -> Any:
    return Done(f"m-{key}") if written(key, rows) else NotDone()


@resilient_task(effect=Effect(key=KEY, verify=is_written), persist_result=False)
def write_a_row(order: int, url: str, rows: str) -> str:
    key = idempotency_key()

    def post() -> None:
        with psycopg.connect(rows) as connection:
            connection.execute("INSERT INTO till VALUES (%s)", (key,))

    post()
    if order % LATE_EVERY == LATE_EVERY - 1:
        client.post(f"{url}/busy").raise_for_status()  # answered 429, which says nothing about the row
    return f"m-{key}"


# -- calls that outlive their attempts

LATE_EVERY = 4


def post_late(url: str) -> str:
    wait_until_overdue()
    return post(url)


def wait_until_overdue(seconds: float = 30.0) -> None:
    """Wait until the ledger says that the call that is going on is overdue, or something worse about it; in
    a process that is watched, also until the next attempt waits for its end."""
    now = in_progress.get()
    assert now is not None
    place, until = place_of(now.batch_id, now.key), time.monotonic() + seconds
    sys.settrace(None)  # what is done here is not to be killed
    mine = found = open_ledger().store.load(place)
    while found is not None and found == mine and found.value["overdue_at"] is None:
        assert time.monotonic() < until, "the attempt does not end"
        time.sleep(0.02)
        found = open_ledger().store.load(place)
    if victim is not None:
        victim.overdue()
        if victim.watching:
            victim.another_waits.wait(5)
        victim.watch_this_thread()


SOON = Timeout(0.2, mode="thread")
ONCE_MORE = Retry(attempts=3, backoff=Backoff.none())


@resilient_task(effect=Effect(key=KEY, verify=verify), timeout=SOON, retry=ONCE_MORE, persist_result=False)
def send_late_to_one_that_can_be_asked(order: int, url: str) -> str:
    return post_late(url)


@resilient_task(effect=Effect(key=KEY), timeout=SOON, retry=ONCE_MORE, persist_result=False)
def send_late_and_blindly(order: int, url: str) -> str:
    return post_late(url)


@resilient_task(effect=Effect(key=KEY, verify=verify), timeout=0.2, retry=ONCE_MORE, persist_result=False)
async def send_beside_to_one_that_can_be_asked(order: int, url: str) -> str:
    return await asyncio.to_thread(post_late, url)


@resilient_task(effect=Effect(key=KEY), timeout=0.2, retry=ONCE_MORE, persist_result=False)
async def send_beside_and_blindly(order: int, url: str) -> str:
    return await asyncio.to_thread(post_late, url)


MODES: dict[str, Any] = {
    "keys": send_to_one_that_honours_keys,
    "asked": send_to_one_that_can_be_asked,
    "blind": send_blindly,
    "changed": send_what_it_changes,
    "native": write_a_row,
    "late asked": send_late_to_one_that_can_be_asked,
    "late blind": send_late_and_blindly,
    "async asked": send_beside_to_one_that_can_be_asked,
    "async blind": send_beside_and_blindly,
}


def send(mode: str, order: int, url: str, rows: str = "") -> str:
    """One message, in the way of the mode, which in the modes of two words is for every fourth message."""
    if mode == "changed":
        return send_what_it_changes({"n": order, "status": "new", "lines": ["second", "first"]}, url)
    if mode == "native":
        return write_a_row(order, url, rows)
    if not is_late(mode, order):
        return MODES[mode.rpartition(" ")[2]](order, url)
    sent = MODES[mode](order, url)
    return asyncio.run(sent) if mode.startswith("async") else sent


def is_late(mode: str, order: int) -> bool:
    return " " in mode and order % LATE_EVERY == LATE_EVERY - 1


@flow(persist_result=False)
def invoices(
    url: str, mode: str, count: int = 20, plot: str | None = None, rows: str = "", apart: bool = False
) -> list[str]:
    """Send that many messages; what their receiver calls them. `plot` is where a doom may wait. `apart`: each
    process is as if on a machine of its own."""
    global victim
    if plot is not None:
        for name, value in SHORT.items():
            setattr(owner, name, value)
    if apart:
        owner._machine = lambda: [f"machine {os.getpid()}", "pid:[1]"]
    victim = Victim(plot) if plot is not None else None
    sent = []
    for order in range(count):
        if victim is not None:
            victim.begins(order)
        sent.append(send(mode, order, url, rows))
    if victim is not None:
        victim.book.write("sent", ids=sent)
    return sent
