"""Contexts: built, attached, found again, and read back from JSON."""

import pickle
from concurrent.futures import Future
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import cloudpickle
import httpx
import pytest
from prefect.client.schemas.objects import StateDetails
from prefect.states import Cancelled, Completed, Crashed, Failed

from prefect_resilience import (
    AttemptRecord,
    CircuitOpenError,
    ErrorCategory,
    ErrorContext,
    ErrorInfo,
    ErrorKind,
    FailureReason,
    PartialOutput,
    classify,
    error_context,
)
from prefect_resilience.errors.context import attach_context, attached_context, exhausted_since
from prefect_resilience.guards.retries.policy import Retry

THEN = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


def failing() -> BaseException:
    try:
        raise ConnectionError("redis://:hunter2pw@cache refused")
    except ConnectionError as error:
        return error


def full_context() -> ErrorContext:
    info = classify(httpx.Response(503, headers={"Retry-After": "4"}), now=0)
    record = AttemptRecord(attempt=1, started_at=THEN, duration=0.25, error=info, delay=1.5)
    cause = ErrorContext.from_exception(failing(), timestamp=THEN, nesting_depth=1)
    return ErrorContext.from_info(
        info,
        timestamp=THEN,
        node_id="llm",
        task_run_id="t",
        flow_run_id="f",
        attempt=2,
        max_attempts=3,
        circuit="llm:x",
        partial_output=PartialOutput(content={"a": [1]}, truncated=True, original_size=99),
        details={"violations": ["x"], "limit": 3},
        cause=cause,
        history=[record],
    )


@pytest.mark.requirement("002.10")
def test_a_context_survives_json() -> None:
    context = full_context()
    assert ErrorContext.model_validate_json(context.model_dump_json()) == context
    assert context.cause is not None
    assert context.cause.nesting_depth == 1
    assert context.model_dump(mode="json")["category"] == "unavailable"


def test_the_summary_is_one_line() -> None:
    assert full_context().summary() == "503 unavailable: Service Unavailable"
    assert error_context(ValueError("one\ntwo")).summary() == "ValueError unexpected: one"  # type: ignore[union-attr]
    assert error_context(ValueError()).summary() == "ValueError unexpected"  # type: ignore[union-attr]
    bare = ErrorContext.from_info(ErrorInfo.of(ErrorCategory.NO_PROGRESS), timestamp=THEN)
    assert bare.summary() == "no_progress"
    long = ErrorContext.from_exception(ValueError("x" * 900), timestamp=THEN)
    assert len(long.summary()) < 250


def test_the_stack_trace_is_redacted_and_can_be_left_out() -> None:
    context = ErrorContext.from_exception(failing(), timestamp=THEN)
    assert context.stack_trace is not None
    assert "in failing" in context.stack_trace
    assert "hunter2pw" not in context.model_dump_json()
    assert ErrorContext.from_exception(failing(), timestamp=THEN, stack_trace=False).stack_trace is None
    info = ErrorInfo.of(ErrorCategory.TOOL_ERROR, "MINE")
    assert ErrorContext.from_exception(failing(), info, timestamp=THEN).code == "MINE"
    assert ErrorContext.from_exception(CircuitOpenError("c"), timestamp=THEN).circuit == "c"

    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError

        @property
        def __cause__(self) -> Any:  # type: ignore[override]
            raise RuntimeError

    assert ErrorContext.from_exception(Silent(), timestamp=THEN).code == "Silent"


class Frozen(Exception):
    def __setattr__(self, name: str, value: Any) -> None:
        raise TypeError(name)


def test_a_context_goes_with_its_exception() -> None:
    error, context = failing(), full_context().model_copy(update={"stack_trace": "in failing"})
    attach_context(error, context)
    assert error_context(error) is context
    assert attached_context(pickle.loads(pickle.dumps(error))) == context
    assert attached_context(cloudpickle.loads(cloudpickle.dumps(error))) == context
    assert error_context(Failed(data=error)) is context
    frozen = Frozen()
    attach_context(frozen, context)
    assert attached_context(frozen) is context
    attach_context(None, context)  # type: ignore[arg-type]
    assert attached_context(None) is None


def test_a_context_gets_the_stack_trace_of_its_exception_when_it_is_read() -> None:
    for error in (failing(), ConnectionError("never raised")):
        attach_context(error, full_context())
        found = error_context(Failed(data=error))
        assert found is attached_context(error)
        assert found is not None
        assert found.model_copy(update={"stack_trace": None}) == full_context()
        assert ("in failing" in (found.stack_trace or "")) is (error.__traceback__ is not None)
        assert "hunter2pw" not in found.model_dump_json()


def test_a_fresh_context_for_whatever_failed() -> None:
    fresh = error_context(failing())
    assert fresh is not None
    assert (fresh.category, fresh.code) == (ErrorCategory.NETWORK, "NETWORK_ERROR")
    assert abs((datetime.now(UTC) - fresh.timestamp).total_seconds()) < 60
    state = Failed(data=failing())
    of_state = error_context(state)
    assert of_state is not None
    assert of_state.timestamp == state.timestamp
    assert of_state.stack_trace is not None
    assert error_context(Crashed(message="x")).category is ErrorCategory.AGENT_CRASH  # type: ignore[union-attr]
    assert error_context(Cancelled()).category is ErrorCategory.CANCELLED  # type: ignore[union-attr]
    without_time = SimpleNamespace(type="FAILED", name="Failed", message="503 Service Unavailable", data=None)
    assert error_context(without_time).code == "503"  # type: ignore[union-attr]


def test_nothing_failed() -> None:
    for source in (Completed(data=1), None, 3, "text", SimpleNamespace(state=None), object(), Future()):
        assert error_context(source) is None


def test_a_substituted_value_keeps_its_context() -> None:
    state = SimpleNamespace(type="COMPLETED", name="Fallback", message="", error_context=full_context())
    assert error_context(state) == full_context()
    assert error_context(SimpleNamespace(state=state)) == full_context()


def test_it_never_raises() -> None:
    class Broken:
        @property
        def state(self) -> Any:
            return SimpleNamespace(
                type="FAILED", name="x", message="", data=None, state_details=self, timestamp=THEN
            )

        @property
        def task_run_id(self) -> Any:
            class Unprintable:
                def __str__(self) -> str:
                    raise RuntimeError

            return Unprintable()

    assert error_context(Broken()) is None


def test_a_state_says_whose_it_is() -> None:
    ids = {"task_run_id": uuid4(), "flow_run_id": uuid4()}
    state = Failed(data=failing(), state_details=StateDetails(**ids))
    for source in (state, SimpleNamespace(state=state)):
        context = error_context(source)
        assert context is not None
        assert context.category is ErrorCategory.NETWORK
        assert (context.task_run_id, context.flow_run_id) == tuple(map(str, ids.values()))
        assert "hunter2pw" not in context.model_dump_json()


@pytest.mark.requirement("001.04")
def test_the_taxonomy_is_the_table_of_the_design() -> None:
    assert len(ErrorCategory) == 20
    assert len(FailureReason) == 10
    assert len(ErrorKind) == 4
    assert str(ErrorCategory.RATE_LIMIT) == f"{ErrorCategory.RATE_LIMIT}" == "rate_limit"
    retryable = {str(category) for category in ErrorCategory if category.retryable}
    assert retryable == {
        *("rate_limit", "timeout", "network", "unavailable", "server_error", "agent_crash", "infrastructure")
    }
    kinds = {kind: {str(c) for c in ErrorCategory if c.kind is kind} for kind in ErrorKind}
    assert kinds[ErrorKind.TRANSIENT] == {
        *("rate_limit", "timeout", "network", "unavailable", "server_error", "circuit_open")
    }
    assert kinds[ErrorKind.RESOURCE] == {"overflow", "resource_exhausted"}
    assert kinds[ErrorKind.INFRASTRUCTURE] == {"agent_crash", "infrastructure"}
    assert ErrorCategory.SUBTASK.reason is FailureReason.SUBTASK_FAILURE
    unexplained = {str(c) for c in ErrorCategory if c.reason is FailureReason.UNEXPECTED_ERROR}
    assert unexplained == {"unexpected"}
    assert pickle.loads(pickle.dumps(ErrorCategory.AUTH)) is ErrorCategory.AUTH


@pytest.mark.requirement("003.02")
@pytest.mark.parametrize("category", ErrorCategory)
@pytest.mark.parametrize("retry_after", [None, 0.0, 7.0])
def test_the_advice_on_an_error_is_what_the_default_policy_does(category, retry_after):
    info = ErrorInfo.of(category, retry_after=retry_after)
    retry = Retry(budget=None)
    # Where the jitter adds nothing: in the middle, and at the beginning of what only lengthens.
    verdicts = [retry.decide(info, n, random=0.0 if retry_after else 0.5) for n in (1, 2, 3)]
    assert info.max_retries == sum(verdict.retry for verdict in verdicts)
    assert info.suggested_delay == verdicts[0].delay


def test_a_chain_of_causes_is_read_to_a_depth():
    """An error whose causes go in a circle is no endless search."""
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert exhausted_since(first, 0.0) is None
