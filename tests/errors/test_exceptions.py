"""Every exception of the package can travel to another process, and says the same there."""

from __future__ import annotations

import pickle

import pytest

from prefect_resilience.errors.exceptions import (
    AttemptTimeout,
    CircuitOpenError,
    EffectBusy,
    InDoubt,
    ResilienceError,
    ResultNotKept,
)

EXCEPTIONS = [
    AttemptTimeout(2.5, "'ask'"),
    CircuitOpenError("payments", 3.0, "503"),
    EffectBusy("invoice:1", "orders", 1.5),
    InDoubt("invoice:1", "orders", "the process died"),
    ResultNotKept("invoice:1", "orders", "it is gone"),
]


@pytest.mark.parametrize("error", EXCEPTIONS, ids=lambda error: type(error).__name__)
def test_it_comes_back_equal(error: ResilienceError) -> None:
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert (back.args, vars(back)) == (error.args, vars(error))
