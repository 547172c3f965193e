"""Effects of functions without a task run: they belong to the batch around them."""

from __future__ import annotations

import asyncio

import pytest

from prefect_resilience import (
    ConfigurationError,
    Done,
    Effect,
    InDoubt,
    NotDone,
    RepeatedEffect,
    batch,
    batch_status,
    idempotency_key,
    resilient,
)
from tests.calls.plain.ways import FAST, Script


@pytest.fixture(autouse=True)
def store(monkeypatch, tmp_path):
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", f"sqlite:///{tmp_path}/effects.db")


def sender(script, **effect):
    keys = []

    @resilient(effect=Effect(kind="external", key="mail:{to}", **effect), retry=FAST)
    def send(to: str):
        keys.append(idempotency_key())
        return script()

    return send, keys


def test_what_is_done_is_replayed_in_the_next_pass_of_the_batch():
    script = Script("sent")
    send, keys = sender(script)
    for _ in range(2):
        with batch("letters"):
            assert send("ada") == "sent"
    assert script.calls == 1
    assert keys == ["mail:ada"]
    (effect,) = batch_status("letters").effects
    assert (effect.key, effect.state, effect.result) == ("mail:ada", "done", "sent")


async def test_a_coroutine_has_effects_too():
    script = Script("sent")

    @resilient(effect=Effect(kind="external", key="mail:{to}"), retry=FAST)
    async def send(to: str):
        await asyncio.sleep(0)
        return script()

    for _ in range(2):
        with batch("letters"):
            assert await send("ada") == "sent"
    assert script.calls == 1


def test_an_attempt_that_proves_to_have_sent_nothing_is_retried():
    script = Script(ConnectionRefusedError("no"), ConnectionRefusedError("no"), "sent")
    send, _ = sender(script, one_request=True)
    with batch("letters"):
        assert send("ada") == "sent"
    assert script.calls == 3


def test_an_unknown_outcome_is_not_retried():
    script = Script(ConnectionResetError("cut"), "sent")
    send, _ = sender(script)
    with batch("letters"), pytest.raises(InDoubt):
        send("ada")
    with batch("letters"), pytest.raises(InDoubt):
        send("ada")
    assert script.calls == 1


@pytest.mark.parametrize(("known", "calls"), [(Done("sent before"), 1), (NotDone(), 2)])
def test_verify_is_asked_about_an_unknown_outcome(known, calls):
    script = Script(ConnectionResetError("cut"), "sent")
    send, _ = sender(script, verify=lambda key: known)
    with batch("letters"):
        assert send("ada") == ("sent before" if calls == 1 else "sent")
    assert script.calls == calls


def test_the_same_key_twice_in_one_pass_is_an_error():
    send, _ = sender(Script("sent"))
    with batch("letters"):
        send("ada")
        with pytest.raises(RepeatedEffect):
            send("ada")
        send("grace")


def test_outside_of_batches_and_runs_an_effect_has_no_place():
    script = Script("sent")
    send, _ = sender(script)
    with pytest.raises(ConfigurationError, match="with batch"):
        send("ada")
    assert script.calls == 0


def test_a_result_that_is_no_json_is_done_and_says_so_when_it_is_asked_for_again():
    script = Script(object())
    send, _ = sender(script)
    with batch("letters"):
        send("ada")
    with batch("letters"), pytest.raises(Exception, match="not JSON"):
        send("ada")
    assert script.calls == 1
