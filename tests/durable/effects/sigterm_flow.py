"""The flows that SIGTERM strikes: two effects, in the main thread, in a thread, or in a coroutine."""

from __future__ import annotations

import os

import httpx

from prefect_resilience import Done, Effect, NotDone, resilient_flow, resilient_task, send_idempotency_key

URL = os.environ.get("RECEIVER", "")
HOOKS = {"request": [send_idempotency_key]}


def ask(key: str) -> Done | NotDone:
    taken = httpx.get(f"{URL}/{key}").json()["taken"]
    return Done(key) if taken else NotDone()


def post(n: int) -> str:
    with httpx.Client(event_hooks=HOOKS, timeout=30) as client:
        return client.post(URL).raise_for_status().json()["id"]


async def apost(n: int) -> str:
    async with httpx.AsyncClient(event_hooks=HOOKS, timeout=30) as client:
        return (await client.post(URL)).raise_for_status().json()["id"]


VERIFIED = Effect(key="send-{n}", verify=ask)
send = resilient_task(effect=VERIFIED, name="send")(post)
asend = resilient_task(effect=VERIFIED, name="asend")(apost)
blind_send = resilient_task(effect=Effect(key="send-{n}"), name="blind_send")(post)
blind_asend = resilient_task(effect=Effect(key="send-{n}"), name="blind_asend")(apost)


@resilient_flow(recovery="auto")
def in_main(verified: bool = True, threads: bool = False) -> list[str]:
    own = send if verified else blind_send
    if threads:
        return [future.result() for future in [own.submit(n) for n in range(2)]]
    return [own(n) for n in range(2)]


@resilient_flow(recovery="auto")
async def in_loop(verified: bool = True) -> list[str]:
    own = asend if verified else blind_asend
    return [await own(n) for n in range(2)]


@resilient_flow
def by_hand() -> list[str]:
    return [send(n) for n in range(2)]
