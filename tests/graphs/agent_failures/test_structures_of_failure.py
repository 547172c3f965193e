"""What agent task systems tell of a failure, each example with its facts, out of real runs."""

import asyncio
import json

import pytest
from prefect import flow, task

from prefect_resilience import (
    Backoff,
    ErrorContext,
    FailureReason,
    ResourceExhausted,
    Retry,
    SubtaskError,
    TaskFailure,
    aiterate,
    iterate,
    keep_partial,
    resilient_flow,
    resilient_task,
    subtask_request,
)
from tests.contexts import context_of

pytestmark = pytest.mark.api


def failure_of(mode, made, *args, **kwargs):
    """The error of one run and its structure, which is JSON and survives the way through it."""
    with pytest.raises(Exception) as caught:  # noqa: PT011
        mode.value(made, *args, **kwargs)
    context = context_of(caught.value)
    assert ErrorContext.model_validate_json(context.model_dump_json()) == context
    told = context.to_task_error()
    assert json.loads(json.dumps(told)) == told
    return caught.value, told


@pytest.mark.requirement("001.01")
@pytest.mark.parametrize("resource", ["turns", "context", "output"])
def test_resource_exhaustion(mode, resource):
    def work():
        raise ResourceExhausted(resource, usage=12, limit=10, partial_output="half a sentence")

    _, told = failure_of(mode, mode.task(work))
    assert told == {
        "type": "RESOURCE_EXHAUSTION",
        "resource": resource,
        "metrics": {"usage": 12, "limit": 10},
        "message": f"{resource} exhausted: 12 used of 10",
        "details": {"partialOutput": "half a sentence"},
    }


@pytest.mark.requirement("001.11")
def test_output_format_validation(mode):
    _, told = failure_of(mode, mode.task(lambda: '{"a": 1}', name="ask", expect="array"))
    assert (told["type"], told["reason"]) == ("TASK_FAILURE", "output_format_failure")
    assert told["details"] == {
        "expectedType": "array",
        "actualType": "object",
        "originalOutput": '{"a": 1}',
        "violations": [],
        "partialOutput": '{"a": 1}',
    }
    assert "'array'" in told["message"]
    assert "'object'" in told["message"]


@pytest.mark.smoke
@pytest.mark.requirement("001.17")
def test_subtask_failure(mode):
    @resilient_task(name="Process complex data", retry=None)
    def process(data, mode="full", api_key="k"):
        keep_partial("Partial processing results before failure")
        raise TaskFailure("execution_halted", "the data format cannot be processed")

    def analyse(data):
        return process(data, api_key="sk-proj-abcdefghijklmnopqrstuvwxyz012345")

    _, told = failure_of(mode, mode.task(analyse, name="analyse", retry=None), [1, 2])
    assert (told["type"], told["reason"]) == ("TASK_FAILURE", "subtask_failure")
    assert told["message"].startswith("Process complex data failed")
    details = told["details"]
    assert details["subtaskRequest"] == {
        "type": "task",
        "description": "Process complex data",
        "inputs": {"data": [1, 2], "mode": "full", "api_key": "***"},
    }
    inner = details["subtaskError"]
    assert (inner["type"], inner["reason"]) == ("TASK_FAILURE", "execution_halted")
    assert inner["message"] == "the data format cannot be processed"
    assert details["nestingDepth"] == 1
    assert details["partialOutput"] == "Partial processing results before failure"
    assert details["failedStep"] == "Process complex data"


@pytest.mark.requirement("001.18")
def test_subtask_failure_with_a_changed_request(mode):
    asked = []

    def process(data, mode="full"):
        asked.append((data, mode))
        if mode == "full":
            raise ValueError("too complex")
        return f"{mode}: {data}"

    inner = mode.task(process, retry=None)

    def simplified(error):
        request = subtask_request(error)
        assert (request.name, request.kind, dict(request.inputs)) == (
            "process",
            "task",
            {"data": "d", "mode": "full"},
        )
        return request.replace(mode="simple")

    if mode.isasync:

        @resilient_task(retry=None)
        async def parent():
            try:
                return await inner("d")
            except ValueError as error:
                return await simplified(error).call()

        @flow
        async def scenario():
            return await parent()

        assert asyncio.run(scenario()) == "simple: d"
    else:

        @resilient_task(retry=None)
        def parent():
            try:
                return inner("d")
            except ValueError as error:
                return simplified(error).call()

        assert flow(lambda: parent())() == "simple: d"
    assert asked == [("d", "full"), ("d", "simple")]


def test_the_request_of_a_failed_run_is_found_by_its_future_and_its_state(mode):
    inner = mode.task(lambda data, mode="full": 1 / 0 if mode == "full" else (mode, data), name="inner")

    @flow
    def scenario():
        future = inner.submit("d")
        future.wait()
        by_future, by_state = subtask_request(future), subtask_request(future.state)
        assert by_future == by_state
        assert (by_future.name, by_future.inputs["data"]) == ("inner", "d")
        return inner.with_options(retry=None).submit("d", mode="simple").result(), subtask_request("x")

    assert scenario() == (("simple", "d"), None)


@pytest.mark.requirement("001.19")
def test_depth_of_nesting(mode):
    @resilient_task(retry=None)
    def innermost():
        raise PermissionError("not yours")

    @resilient_task(retry=None)
    def middle():
        return innermost()

    def outer():
        return middle()

    error, told = failure_of(mode, mode.task(outer, name="outer", retry=None))
    assert isinstance(error, PermissionError)
    context = context_of(error)
    chain = [context, context.cause, context.cause.cause]
    assert [each.node_id for each in chain] == ["outer", "middle", "innermost"]
    assert [each.nesting_depth for each in chain] == [0, 1, 2]
    assert [each.category.value for each in chain] == ["subtask", "subtask", "auth"]
    assert {each.code for each in chain} == {context.code}
    assert (context.kind, context.retryable) == ("permanent", False)
    assert told["details"]["subtaskError"]["details"]["subtaskError"]["message"] == "not yours"
    assert context.stack_trace
    assert chain[2].stack_trace is None


def test_a_sub_step_is_tried_again_as_its_cause_would_be(mode):
    calls = []

    @resilient_task(retry=None)
    def inner():
        calls.append(1)
        if len(calls) < 3:
            raise ConnectionResetError("cut")
        return "there"

    def outer():
        return inner()

    retry = Retry(attempts=3, backoff=Backoff.none(), retry_on="network")
    assert mode.value(mode.task(outer, retry=retry)) == "there"
    assert len(calls) == 3


@pytest.mark.requirement("001.21")
def test_failure_of_a_subflow():
    @resilient_task(retry=None)
    def fetch(page):
        if page == 2:
            raise FileNotFoundError("no such page")
        return f"page {page}"

    @resilient_flow
    def read(pages):
        return [fetch(page) for page in pages]

    @resilient_task(retry=None)
    def report(pages):
        return read(pages)

    with pytest.raises(FileNotFoundError) as caught:
        flow(lambda: report([1, 2]))()
    context = context_of(caught.value)
    names = [each.node_id for each in (context, context.cause, context.cause.cause)]
    assert names == ["report", "read", "fetch"]
    assert context.details["subtask_request"]["type"] == "flow"
    assert context.details["subtask_request"]["inputs"] == {"pages": [1, 2]}
    assert "page 1" in json.dumps(context.cause.details["partial_results"])
    assert context.cause.cause.category == "not_found"


@pytest.mark.requirement("001.05")
def test_context_retrieval_failure(mode):
    def work():
        raise TaskFailure(
            "context_retrieval_failure",
            "the index of the memory cannot be read",
            error="corrupt index",
            partial_context=["one file"],
            context_metrics={"files": 1},
        )

    _, told = failure_of(mode, mode.task(work))
    assert told == {
        "type": "TASK_FAILURE",
        "reason": "context_retrieval_failure",
        "message": "the index of the memory cannot be read",
        "details": {
            "error": "corrupt index",
            "partial_context": ["one file"],
            "context_metrics": {"files": 1},
        },
    }


@pytest.mark.requirement("001.05", "001.16")
def test_context_matching_failure_is_tried_again_with_its_score(mode):
    calls = []

    def match():
        calls.append(1)
        raise TaskFailure(
            "context_matching_failure", "too little", partial_output=["a.py"], success_score=0.2
        )

    _, told = failure_of(mode, mode.task(match, retry=Retry(attempts=3, backoff=Backoff.none())))
    assert len(calls) == 3
    assert told["reason"] == "context_matching_failure"
    assert told["details"] == {"success_score": 0.2, "partialOutput": ["a.py"]}


@pytest.mark.requirement("001.03")
@pytest.mark.parametrize("reason", list(FailureReason))
def test_every_reason_can_be_given(reason):
    context = context_of(TaskFailure(reason, violations=["one"]))
    assert (context.reason, context.code) == (reason, reason.value)
    assert context.to_task_error()["details"]["violations"] == ["one"]
    assert context.message == reason.value.replace("_", " ")


def test_a_sub_step_that_is_no_task(mode):
    def work():
        try:
            raise TimeoutError("the parser hangs")
        except TimeoutError as error:
            raise SubtaskError("parse", inputs={"text": "abc"}, failed_step=2) from error

    error, told = failure_of(mode, mode.task(work, retry=None))
    context = context_of(error)
    assert (context.category, context.kind, context.retryable) == ("subtask", "transient", True)
    assert (context.cause.category, context.cause.nesting_depth) == ("timeout", 1)
    assert told["details"]["failedStep"] == 2
    assert told["details"]["subtaskRequest"] == {
        "type": "step",
        "description": "parse",
        "inputs": {"text": "abc"},
    }
    assert told["details"]["subtaskError"]["reason"] == "execution_timeout"


@pytest.mark.requirement("001.14")
def test_failure_in_a_step_of_a_director_evaluator_loop(mode):
    seen = []

    def director(evaluation=None, *, round):
        return {"plan": round, "after": evaluation}

    def execution(instructions):
        if instructions["plan"] == 2:
            raise RuntimeError("the script failed")
        return {"draft": instructions["plan"]}

    def evaluator(draft, *, director):
        seen.append((draft, director["plan"]))
        return {"good": False, "round": draft["draft"]}

    steps = {"director": director, "execution": execution, "evaluator": evaluator}
    if mode.isasync:

        async def loop():
            return await aiterate(steps, lambda value: value["good"], 9)

        made = resilient_task(name="loop", retry=None)(loop)
    else:
        made = mode.task(lambda: iterate(steps, lambda value: value["good"], 9), name="loop", retry=None)
    error, told = failure_of(mode, made)
    assert isinstance(error, RuntimeError)
    assert seen == [({"draft": 1}, 1)]
    assert told["reason"] == "subtask_failure"
    assert told["message"].startswith("execution in round 2 failed")
    details = told["details"]
    assert (details["failedStep"], details["failed_round"]) == ("execution", 2)
    assert details["subtaskError"]["message"] == "the script failed"
    seen_before = {"good": False, "round": 1}
    history = details["iteration_history"]
    assert [each["round"] for each in history] == [1, 2]
    assert sorted(history[0]["steps"]) == ["director", "evaluator", "execution"]
    assert list(history[1]["steps"]) == ["director"]
    assert details["subtaskRequest"]["type"] == "step"
    assert details["subtaskRequest"]["description"] == "execution"
    assert details["subtaskRequest"]["inputs"] == {"instructions": {"plan": 2, "after": seen_before}}
    assert [made.number for made in error.iteration_history] == [1, 2]
    context = context_of(error)
    assert (context.node_id, context.task_run_id is not None) == ("loop", True)
    assert len(context.history) == 1


@pytest.mark.requirement("001.09")
def test_partial_results_of_a_flow_that_failed():
    @task
    def bind(name):
        return f"value of {name}"

    @resilient_flow
    def workflow():
        x = bind.with_options(name="x")("x")
        raise ValueError(f"the second step failed after {x}")

    with pytest.raises(ValueError, match="second step") as caught:
        workflow()
    environment = context_of(caught.value).to_task_error()["details"]["partialResults"]
    assert "value of x" in json.dumps(environment)


@pytest.mark.requirement("001.10")
def test_a_cut_partial_output_says_so(mode):
    def work():
        keep_partial("x" * 100_000)
        raise ValueError("no")

    _, told = failure_of(mode, mode.task(work, retry=None))
    assert told["details"]["partialOutputTruncated"] is True
    assert len(told["details"]["partialOutput"]) == 64_000
