"""The flow whose processes are killed: external effects, one after the other, each a message that is posted.

Deployed as it stands here. `mode` says what its receiver can do: "keys" (it honours Idempotency-Key), "asked"
(`verify` can ask it) or "blind" (neither).
"""

from __future__ import annotations

from typing import Any

import httpx
from prefect import flow

from prefect_resilience import resilient_task
from prefect_resilience.effects import Done, Effect, NotDone, idempotency_key, send_idempotency_key
from tests.effects.victim import Victim

client = httpx.Client(
    event_hooks={"request": [send_idempotency_key]},
    limits=httpx.Limits(max_keepalive_connections=0),
    timeout=60,
    verify=False,
)


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


MODES = {
    "keys": send_to_one_that_honours_keys,
    "asked": send_to_one_that_can_be_asked,
    "blind": send_blindly,
}


@flow(persist_result=False)
def invoices(url: str, mode: str, count: int = 20, plot: str | None = None) -> list[str]:
    """Send that many messages; what their receiver calls them. `plot` is where a doom may wait."""
    global victim
    victim = Victim(plot) if plot is not None else None
    sent = []
    for order in range(count):
        if victim is not None:
            victim.begins(order)
        sent.append(MODES[mode](order, url))
    if victim is not None:
        victim.book.write("sent", ids=sent)
    return sent
