"""Effects of functions without a task run: they belong to the batch around them."""

import pytest

from prefect_resilience import (
    ConfigurationError,
    Effect,
    InDoubt,
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


def test_an_unknown_outcome_is_not_retried():
    script = Script(ConnectionResetError("cut"), "sent")
    send, _ = sender(script)
    with batch("letters"), pytest.raises(InDoubt):
        send("ada")
    with batch("letters"), pytest.raises(InDoubt):
        send("ada")
    assert script.calls == 1


def test_outside_of_batches_and_runs_an_effect_has_no_place():
    script = Script("sent")
    send, _ = sender(script)
    with pytest.raises(ConfigurationError, match="with batch"):
        send("ada")
    assert script.calls == 0
