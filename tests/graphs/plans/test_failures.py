"""What a failed plan says: PlanFailed, its context, and its way through pickle."""

import pickle
import threading
from datetime import UTC, datetime
from typing import Any

import pytest

from prefect_resilience import ErrorCategory, classify, error_context, register_secret
from prefect_resilience.errors.context import ErrorContext
from prefect_resilience.errors.taxonomy import ErrorInfo
from prefect_resilience.graphs.plans.result import (
    ALL_RESULTS,
    NodeResult,
    PlanFailed,
    PlanResult,
    failure_of,
    partial_results,
    with_cause,
)

NOW = datetime(2026, 11, 21, tzinfo=UTC)


def context(category: ErrorCategory, message: str, **fields: Any) -> ErrorContext:
    return ErrorContext.from_info(ErrorInfo.of(category, "503", message=message), timestamp=NOW, **fields)


def result(**nodes: Any) -> PlanResult:
    made = {
        name: NodeResult(status="failed", error=node)
        if isinstance(node, ErrorContext)
        else NodeResult(status="succeeded", output=node)
        for name, node in nodes.items()
    }
    return PlanResult(succeeded=False, nodes=made)


DOWN = context(ErrorCategory.UNAVAILABLE, "Service Unavailable", node_id="kg_query", retry_after=3.0)


def failed(**nodes: Any) -> PlanFailed:
    made = result(**nodes)
    return failure_of(made, now=NOW, first=next(iter(made.failed), None), flow_run_id="run")


def test_the_message_names_the_nodes_and_their_errors() -> None:
    assert (
        str(failed(kg_query=DOWN, a=1))
        == "1 of 2 nodes failed: 'kg_query' (503 unavailable: Service Unavailable)"
    )
    assert str(failed(**{f"n{i}": DOWN for i in range(8)})).endswith(" and 3 more")
    lone = failure_of(
        PlanResult(succeeded=False, nodes={"a": NodeResult(status="failed")}), now=NOW, first="a"
    )
    assert str(lone) == "1 of 1 node failed: 'a' (without an error)"
    assert str(failure_of(PlanResult(succeeded=False), now=NOW, first=None)) == "the plan failed"


def test_the_context_is_that_of_the_first_node_one_step_up() -> None:
    found = error_context(failed(a={"x": 1}, kg_query=DOWN, other=context(ErrorCategory.AUTH, "no")))
    assert found is not None
    assert (found.category, found.kind, found.retryable) == ("subtask", DOWN.kind, True)
    assert (found.code, found.reason, found.node_id, found.retry_after) == (
        "503",
        "subtask_failure",
        "kg_query",
        3.0,
    )
    assert found.details == {
        "failed_step": "kg_query",
        "failed_steps": ["kg_query", "other"],
        "partial_results": {"a": {"x": 1}},
    }
    assert found.cause == DOWN.model_copy(update={"nesting_depth": 1})
    assert found.nesting_depth == 0


def test_it_is_classified_as_its_first_node() -> None:
    info = classify(failed(kg_query=DOWN))
    assert (info.category, info.retryable, info.retry_after) == ("subtask", True, 3.0)
    assert classify(failed(a=context(ErrorCategory.AUTH, "no"))).retryable is False
    assert classify(PlanFailed("by hand", result())).category == "unexpected"


def test_it_survives_pickle_with_whatever_the_actions_gave() -> None:
    made = failed(kg_query=DOWN, lock=threading.Lock(), fine={"a": (1, 2)})
    made.add_note("a note")
    again = pickle.loads(pickle.dumps(made))
    assert type(again) is PlanFailed
    assert str(again) == str(made)
    assert error_context(again) == made.context == again.context
    assert again.result.nodes["fine"].output == {"a": [1, 2]}
    assert "lock" in again.result.nodes["lock"].output
    assert again.__notes__ == ["a note"]
    assert again.result.model_dump_json() == made.result.model_dump_json()


def test_the_failed_plan_is_found_behind_another_error() -> None:
    own = context(ErrorCategory.TOOL_ERROR, "wrapped")
    error = RuntimeError("wrapped")
    assert with_cause(own, error) is own
    assert with_cause(own, None) is own
    error.__cause__ = failed(kg_query=DOWN)
    found = with_cause(own, error)
    assert found.cause is not None
    assert found.cause.node_id == "kg_query"
    assert with_cause(found, error) is found


def test_partial_results_are_bounded_and_free_of_secrets() -> None:
    register_secret("hunter2-of-the-plan")
    told = partial_results({"a": "the password is hunter2-of-the-plan", "long": "x" * 10_000, "after": 1})
    assert told["a"] == "the password is ***"
    assert told["long"] == {"truncated": True, "original_size": 10_002, "content": "x" * 4_000}
    assert told["after"] == 1
    long = partial_results({"list": list(range(1_000_000))})["list"]
    assert long["truncated"]
    assert long["content"][:3] == [0, 1, 2]
    many = partial_results({f"n{i}": "y" * 1_000 for i in range(100)})
    assert many["…"]["left_out"] == 100 - (len(many) - 1)
    assert len(str(many)) < ALL_RESULTS * 1.2


@pytest.mark.parametrize("output", [1, "x", None, {"a": [1.5, True]}, [], {"b": None}])
def test_a_result_reads_back_from_its_json(output: Any) -> None:
    made = result(kg_query=DOWN, a=output)
    assert PlanResult.model_validate_json(made.model_dump_json()) == made
