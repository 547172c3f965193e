"""Two policies under one name: one window has all calls, and the stricter policy opens the circuit."""

import logging
from typing import Any

import pytest

from prefect_resilience import CircuitBreaker, CircuitPolicy
from prefect_resilience.guards.circuits.machine import CircuitDocument, Record, new, step
from prefect_resilience.guards.circuits.window import IN_USE
from tests.guards.circuits.bench import NOW
from tests.guards.circuits.conftest import HandStore

LENIENT: dict[str, Any] = {"failure_threshold": 1000}


def after_one(document: CircuitDocument, window: int | str, now: float) -> CircuitDocument:
    policy = CircuitPolicy(window=window, **LENIENT)
    return step(document, Record(document["generation"], (("s", 1),)), now, policy)[0]


def test_the_window_is_that_of_the_first_policy_while_it_counts() -> None:
    document = new()
    for number in range(8):
        document = after_one(document, ("60s", 10)[number % 2], NOW)
    assert (document["window"]["seconds"], document["window"]["calls"]) == (60.0, 8)
    document = after_one(document, 10, NOW + IN_USE / 2)
    assert document["window"]["seconds"] == 60.0
    document = after_one(document, 10, NOW + IN_USE)
    assert (document["window"]["last"], document["window"]["calls"]) == (10, 1)


@pytest.mark.parametrize("windows", [("60s", "120s"), (10, "60s"), ("60s", 10)])
def test_calls_through_both_policies_open_it(
    windows: tuple[Any, Any], store: HandStore, caplog: pytest.LogCaptureFixture
) -> None:
    code = CircuitBreaker("service", window=windows[0], store=store, sync_interval=1e-9, **LENIENT)
    block = code.beside(CircuitPolicy(window=windows[1], sync_interval=1e-9, **LENIENT))
    with caplog.at_level(logging.WARNING, "prefect_resilience.circuits"):
        for number in range(100):
            breaker = (code, block)[number % 2]
            if number % 4:
                breaker.record_failure(ConnectionError("down"))
            else:
                breaker.record_success()
    assert {code.state, block.state} == {"open"}
    (warning,) = (record.getMessage() for record in caplog.records if "window" in record.getMessage())
    assert warning.startswith("circuit 'service' has a window of ")
    assert f"by another policy, and {windows[1]} here" in warning
