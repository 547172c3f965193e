"""Two processes run the same batch at the same moment: each effect has one owner, and both get its result."""

from __future__ import annotations

import os
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import httpx
import pytest
from prefect import flow
from prefect.settings import PREFECT_API_URL, PREFECT_LOGGING_LEVEL, temporary_settings

from prefect_resilience import resilient_task
from prefect_resilience.effects import Effect, batch, batch_status, send_idempotency_key
from tests.durable.effects.receiver import Receiver

pytestmark = pytest.mark.api

ORDERS = 5
context = get_context("forkserver")
context.set_forkserver_preload([__name__, "prefect_resilience.stores.sqlite"])


def run(url: str, store: str, api: str, answers: Connection) -> None:
    """The life of one of them: ready, go, and what became of each order."""
    os.environ["PREFECT_RESILIENCE_STORE_URL"] = store

    @resilient_task(effect=Effect(key="order:{order}"), retry=None)
    def send(order: int) -> str:
        with httpx.Client(event_hooks={"request": [send_idempotency_key]}, timeout=20) as client:
            return client.post(url).json()["id"]

    @flow
    def invoices() -> list[Any]:
        answers.send("ready")
        answers.recv()
        with batch("both"):
            states = [send(order, return_state=True) for order in range(ORDERS)]
        return [(state.name, state.result()) for state in states]

    with temporary_settings({PREFECT_API_URL: api, PREFECT_LOGGING_LEVEL: "CRITICAL"}):
        answers.send(invoices())


@pytest.mark.timeout(300)
def test_each_is_sent_once_and_both_get_what_came_of_it(shared: str, receiver: Receiver, api: str) -> None:
    pipes: list[Connection] = []
    for _ in range(2):
        ours, theirs = context.Pipe()
        context.Process(target=run, args=(receiver.url, shared, api, theirs), daemon=True).start()
        pipes.append(ours)
    assert [pipe.recv() for pipe in pipes] == ["ready", "ready"]
    for pipe in pipes:
        pipe.send("go")
    told = [pipe.recv() for pipe in pipes]
    assert receiver.taken == {f"order:{order}": 1 for order in range(ORDERS)}
    for outcomes in zip(*told, strict=True):
        assert sorted(name for name, _ in outcomes) == ["Completed", "Replayed"]
        assert len({result for _, result in outcomes}) == 1
    assert [(one.state, one.attempts) for one in batch_status("both").effects] == [("done", 1)] * ORDERS
