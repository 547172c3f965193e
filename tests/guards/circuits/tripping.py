"""Failures that open a circuit."""

from typing import Any

import pytest

from prefect_resilience import CircuitBreaker


def failing(error: BaseException) -> Any:
    def fail() -> None:
        raise error

    return fail


def trip(breaker: CircuitBreaker, error: BaseException | None = None, times: int = 5) -> None:
    for _ in range(times):
        with pytest.raises(BaseException):  # noqa: B017, PT011
            breaker.call(failing(error or TimeoutError("no answer")))
