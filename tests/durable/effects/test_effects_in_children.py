"""Effects whose function runs in a child process: what left there is known here, and what never began."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from prefect_resilience import AttemptTimeout, Backoff, Effect, InDoubt, Retry, Timeout, batch
from prefect_resilience.effects import send_idempotency_key
from prefect_resilience.guards.timeouts.process_mode import UnpicklableError
from tests.durable.effects.receiver import Receiver

pytestmark = pytest.mark.api

IN_CHILD = Timeout(100, mode="process")
TWICE = Retry(attempts=2, backoff=Backoff.none(), retry_on=["invalid", "agent_crash"])


def sender(url: str, *, witnessed: bool) -> Callable[..., str]:
    """A function that posts once; its client is made in the child."""

    def send(order: int) -> str:
        hooks = {"request": [send_idempotency_key]} if witnessed else {}
        with httpx.Client(event_hooks=hooks) as client:
            answer = client.post(url, headers={"Idempotency-Key": f"order:{order}"})
        answer.raise_for_status()
        return answer.json()["id"]

    return send


def sent(mode: Any, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    effect = Effect(kind="external", key="order:{order}")
    made = mode.task(function, effect=effect, **{"timeout": IN_CHILD, "retry": TWICE, **options})
    with batch(f"b-{os.urandom(4).hex()}"):
        return mode.value(made, *args)


def test_a_refusal_that_the_witness_saw_in_the_child_is_proof(mode, receiver: Receiver):
    receiver.script = [422, 200]
    assert sent(mode, sender(receiver.url, witnessed=True), 1)
    assert receiver.calls == ["order:1", "order:1"]


def test_what_no_witness_saw_in_the_child_is_in_doubt(mode, receiver: Receiver):
    receiver.script = [422, 200]
    with pytest.raises(InDoubt, match=r"422"):
        sent(mode, sender(receiver.url, witnessed=False), 1)
    assert receiver.calls == ["order:1"]


def test_a_child_that_died_leaves_doubt(mode, receiver: Receiver):
    send = sender(receiver.url, witnessed=True)

    def die(order: int) -> None:
        send(order)
        os._exit(3)

    with pytest.raises(InDoubt, match="EXIT_3"):
        sent(mode, die, 1)
    assert receiver.calls == ["order:1"]


def test_a_call_that_never_began_leaves_none(mode, receiver: Receiver):
    """Its arguments cannot travel, or the deadline passes before its child is there."""
    with pytest.raises(UnpicklableError):
        sent(mode, lambda order: None, threading.Lock())
    with pytest.raises(AttemptTimeout, match="the start of the child process"):
        sent(mode, sender(receiver.url, witnessed=True), 1, timeout=Timeout(1e-6, mode="process"))
    assert receiver.calls == []
