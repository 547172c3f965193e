"""What the log says of the attempts that were made: a rejected call is no attempt."""

from __future__ import annotations

import logging

import pytest

from prefect_resilience import CircuitBreaker, Fallback, Retry, resilient


@pytest.mark.parametrize(
    ("threshold", "told"),
    [(5, "used after 2 attempts: "), (1, "used after 1 attempt and 1 rejected call: circuit_open")],
)
def test_a_rejected_call_is_no_attempt(
    threshold: int, told: str, caplog: pytest.LogCaptureFixture, own_store: None
) -> None:
    circuit = CircuitBreaker(f"told-{threshold}", failure_threshold=threshold)
    made = 0

    @resilient(
        retry=Retry(attempts=2, backoff="none", retry_on=["network", "circuit_open"]),
        circuit=circuit,
        fallback=Fallback.value("unknown"),
    )
    def ask() -> str:
        nonlocal made
        made += 1
        raise ConnectionError("reset")

    with caplog.at_level(logging.INFO, logger="prefect_resilience"):
        assert ask() == "unknown"
    assert made == (2 if threshold == 5 else 1)
    assert told in caplog.text
