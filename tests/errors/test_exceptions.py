"""Every exception of the package can travel to another process, and says the same there."""

import pickle

import pytest

from prefect_resilience import classify
from prefect_resilience.base.outcomes import caller_checks_failures, is_answered_for
from prefect_resilience.errors.classify.stops import StreamCut
from prefect_resilience.errors.context import PartialOutput
from prefect_resilience.errors.exceptions import (
    AttemptTimeout,
    CircuitOpenError,
    ConfigurationError,
    EffectBusy,
    EffectKeyReused,
    InDoubt,
    OutputFormatError,
    RepeatedEffect,
    ResilienceError,
    ResourceExhausted,
    ResultNotKept,
    StoreUnavailable,
    SubtaskError,
    TaskFailure,
)
from tests.errors.by_name import made

EXCEPTIONS = [
    AttemptTimeout(2.5, "'ask'"),
    CircuitOpenError("payments", 3.0, "503"),
    EffectBusy("invoice:1", "orders", 1.5),
    EffectKeyReused("invoice:1", "orders", "the task 'shop.charge' uses it"),
    InDoubt("invoice:1", "orders", "the process died"),
    RepeatedEffect("invoice:1", "orders"),
    ResultNotKept("invoice:1", "orders", "it is gone"),
    ConfigurationError("no such option"),
    StoreUnavailable("it is away"),
    ResourceExhausted("turns", 1, 2, partial_output=["x"]),
    TaskFailure("context_matching_failure", success_score=0.5),
    SubtaskError("parse", inputs={"a": 1}),
    OutputFormatError("array", "object", [{"path": "", "message": "m"}], PartialOutput(content=1)),
    StreamCut("half"),
]


@pytest.mark.parametrize("error", EXCEPTIONS, ids=lambda error: type(error).__name__)
def test_it_comes_back_equal(error: ResilienceError) -> None:
    error.add_note("a note")
    back = pickle.loads(pickle.dumps(error))
    assert (type(back), str(back)) == (type(error), str(error))
    assert (back.args, vars(back)) == (error.args, vars(error))


def test_a_child_process_that_died() -> None:
    for code, expected in ((-9, "SIGKILL"), (3, "EXIT_3"), (None, "ProcessDied")):
        info = classify(made("prefect_resilience.guards.timeouts.process_mode.ProcessDied", exit_code=code))
        assert (info.category, info.code, info.retryable) == ("agent_crash", expected, True)


def test_who_answers_for_failures() -> None:
    assert not is_answered_for()
    with caller_checks_failures():
        assert is_answered_for()
    assert not is_answered_for()
