"""What the log says of the attempts that were made: a rejected call is not an attempt."""

import logging

import pytest

from prefect_resilience import CircuitBreaker, CircuitOpenError, Fallback, Retry, error_context, resilient


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


NOT_CALLED = {
    "a circuit": ("Not called: circuit 'orders-api' is open; next probe in 9 s", {}),
    "forced open": ("Not called: circuit 'orders-api' is open until it is closed manually", {"forced": True}),
    "three times": (
        "Not called (3 times): circuit 'orders-api' is open",
        {"retry": Retry(attempts=3, backoff="none", retry_on=["circuit_open"], respect_retry_after=False)},
    ),
}


@pytest.mark.parametrize("name", NOT_CALLED)
def test_a_call_that_was_not_made_is_not_given_up_after_an_attempt(
    name: str, caplog: pytest.LogCaptureFixture, own_store: None
) -> None:
    line, options = NOT_CALLED[name]
    circuit = CircuitBreaker("orders-api", failure_threshold=1, open_for=9)
    if options.get("forced"):
        circuit.force_open("for a test")
    else:
        with pytest.raises(ConnectionError), circuit:
            raise ConnectionError("reset")

    def order() -> None:
        raise AssertionError("it is not called")

    order.__qualname__ = name  # of one name, a line of each kind is logged once in a minute
    retry = options.get("retry", Retry(attempts=3, backoff="none"))

    with (
        caplog.at_level(logging.INFO, logger="prefect_resilience"),
        pytest.raises(CircuitOpenError) as caught,
    ):
        resilient(retry=retry, circuit=circuit)(order)()
    assert line in caplog.text
    assert "attempt" not in caplog.text.partition("Not called")[2].partition("\n")[0]
    context = error_context(caught.value)
    assert context is not None
    assert (context.attempts_made, context.rejected_calls) == (0, context.attempt)
