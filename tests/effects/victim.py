"""A flow of external effects in a process of its own, which is killed between two lines that it runs."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

import httpx
from prefect import State, flow
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
    PREFECT_LOGGING_LEVEL,
    temporary_settings,
)

import prefect_resilience
from prefect_resilience import resilient_task
from prefect_resilience.effects import (
    Done,
    Effect,
    NotDone,
    batch,
    idempotency_key,
    send_idempotency_key,
)
from prefect_resilience.effects.current import in_progress
from tests.effects.receiver import Receiver

OURS = os.path.dirname(prefect_resilience.__file__)
WATCHED = (os.path.join(OURS, "effects"), os.path.join(OURS, "attempt.py"))
SENDING = (__file__, "httpcore/_sync/")
"""A kill may come before any line of ours, and while an effect is going on also before any of the user's and
of the client's."""

context = get_context("forkserver")
context.set_forkserver_preload([__name__, "prefect_resilience.stores.sqlite"])


@dataclass(frozen=True)
class Orders:
    """What a victim is to send, and whether the receiver may be asked."""

    receiver: str
    store: str
    api: str
    batch_id: str
    count: int
    verify: bool


def run(orders: Orders, kill_at: int, answers: Connection) -> None:
    """The child's life. Sends back how many lines it ran, and what became of each order."""
    os.environ["PREFECT_RESILIENCE_STORE_URL"] = orders.store
    client = httpx.Client(
        base_url=orders.receiver,
        event_hooks={"request": [send_idempotency_key]},
        limits=httpx.Limits(max_keepalive_connections=0),
        timeout=30,
    )

    def verify(key: str) -> Any:
        return Done(f"m-{key}") if client.get(f"/{key}").json()["taken"] else NotDone()

    @resilient_task(effect=Effect(key="{batch_id}.{order}", verify=verify if orders.verify else None))
    def send(order: int) -> str:
        response = client.post("/")
        response.raise_for_status()
        assert response.json()["id"] == f"m-{idempotency_key()}"
        return response.json()["id"]

    @flow
    def invoices() -> list[Any]:
        with batch(orders.batch_id):
            return [send(order, return_state=True) for order in range(orders.count)]

    lines = kill_before_line(kill_at)
    api = {PREFECT_API_URL: orders.api, PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}
    with temporary_settings({**api, PREFECT_LOGGING_LEVEL: "CRITICAL"}):
        states = invoices(return_state=True).data
    sys.settrace(None)
    answers.send((lines[0], [outcome(state) for state in states.result]))


def outcome(state: State[Any]) -> str:
    """The name of a state, or that of the error it failed with."""
    if state.is_completed():
        return str(state.name)
    return type(state.result(raise_on_failure=False)).__name__


def kill_before_line(number: int) -> list[int]:
    """Kill this process before it runs that line of the watched files, by any thread; counts the lines."""
    lines = [0]

    def in_call(frame: FrameType, event: str, arg: Any) -> Any:
        watched = WATCHED if in_progress.get() is None else (*WATCHED, *SENDING)
        return at_line if any(place in frame.f_code.co_filename for place in watched) else None

    def at_line(frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            lines[0] += 1
            if lines[0] == number:
                os.kill(os.getpid(), signal.SIGKILL)
        return at_line

    threading.settrace(in_call)
    sys.settrace(in_call)
    return lines


@dataclass
class Toll:
    """What came of many kills."""

    kills: int = 0
    sent: int = 0
    """Effects that the receiver took exactly once."""
    doubts: int = 0
    """Effects that were left for a person."""
    batches: int = 0
    mistakes: list[str] = field(default_factory=list)


def start(orders: Orders, kill_at: int = 0) -> Callable[[], tuple[int, list[str]] | None]:
    """Start a victim; what is returned waits for its answer, or for its death: None."""
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=run, args=(orders, kill_at, theirs), daemon=True)
    process.start()
    theirs.close()

    def answer() -> tuple[int, list[str]] | None:
        try:
            return ours.recv() if ours.poll(100) else None
        except EOFError:
            return None
        finally:
            process.join(10)
            process.kill()

    return answer


def kill_often(
    receiver: Receiver, store: str, api: str, *, kills: int, verify: bool, count: int = 6, seed: int = 0
) -> Toll:
    """Kill flows of effects until that many have been killed, each restarted until it ends."""
    chance = random.Random(seed)
    toll = Toll()
    lines = 200 * count
    while toll.kills < kills:
        orders = Orders(receiver.url, store, api, f"b{seed}.{verify}.{toll.batches}", count, verify)
        toll.batches += 1
        while (said := start(orders, chance.randint(1, lines))()) is None:
            toll.kills += 1
            twice = [key for key, taken in receiver.taken.items() if taken > 1]
            if twice or toll.kills > kills + 100:
                toll.mistakes.append(f"sent twice: {twice}" if twice else f"{orders} makes no progress")
                return toll
        judge(receiver, orders, said[1], toll)
    return toll


def judge(receiver: Receiver, orders: Orders, said: list[str], toll: Toll) -> None:
    """What the receiver got, beside what the last run of the flow said of each order."""
    for order, outcome in enumerate(said):
        taken = receiver.taken[f"{orders.batch_id}.{order}"]
        toll.sent += taken == 1
        toll.doubts += outcome == "InDoubt"
        done = outcome in ("Completed", "Replayed")
        if taken > 1 or (done and taken != 1) or not (done or (outcome == "InDoubt" and not orders.verify)):
            toll.mistakes.append(f"order {order} of {orders.batch_id}: {outcome}, taken {taken} times")
