"""Failures that users raise, resources that are used up, and the structures made of them."""

import asyncio
import errno
import pickle
import subprocess
from datetime import UTC, datetime

import httpx
import pytest

from prefect_resilience import (
    CircuitOpenError,
    ConfigurationError,
    ErrorContext,
    ErrorInfo,
    NoProgress,
    OutputFormatError,
    PartialOutput,
    ProcessDied,
    ResourceExhausted,
    RoundsExhausted,
    StoreUnavailable,
    SubtaskError,
    TaskFailure,
    classify,
)
from prefect_resilience.errors.context import MOST_LEVELS
from prefect_resilience.errors.requests import (
    SubtaskRequest,
    attach_request,
    is_sub_step,
    subtask_request,
    with_inner,
)
from prefect_resilience.errors.taxonomy import ErrorCategory
from tests.contexts import context_of

NOW = datetime(2026, 1, 31, tzinfo=UTC)


@pytest.mark.requirement("001.01")
@pytest.mark.parametrize(
    ("usage", "limit", "says"),
    [
        (12_000, 10_000, "turns exhausted: 12,000 used of 10,000"),
        (3, None, "turns exhausted: 3 used"),
        (None, 2, "turns exhausted: the limit is 2"),
        (None, None, "turns exhausted"),
    ],
)
def test_an_exhausted_resource(usage, limit, says):
    error = ResourceExhausted("turns", usage, limit)
    assert str(error) == says
    assert str(ResourceExhausted("turns", message="no more")) == "no more"
    info = classify(error)
    assert (info.category, info.kind, info.retryable) == ("resource_exhausted", "resource", False)
    details = {"resource": "turns", "usage": usage, "limit": limit}
    assert info.details == {name: value for name, value in details.items() if value is not None}


def test_a_reason_that_there_is_not():
    with pytest.raises(ConfigurationError, match="write one of context_retrieval_failure"):
        TaskFailure("bored")


def test_messages_of_a_broken_promise():
    record = [{"path": f"/{number}", "message": "wrong"} for number in range(5)]
    assert str(OutputFormatError("array", "array", record)).endswith(
        "the array does not match expect=: at /0: wrong; at /1: wrong; at /2: wrong; and 2 more"
    )
    assert OutputFormatError("array", "object").original_output is None
    long = OutputFormatError("array", "object", (), PartialOutput(content=["x" * 5_000]))
    assert len(classify(long).details["original_output"]) == 2_000
    short = OutputFormatError("array", "object", (), PartialOutput(content={"a": 1}))
    assert classify(short).details["original_output"] == {"a": 1}
    assert "original_output" not in classify(OutputFormatError("array", "object")).details


# Resources, in the words of the providers.

OPENAI = (
    "This model's maximum context length is 128,000 tokens. However, your messages resulted in 150000 tokens."
)


@pytest.mark.parametrize(
    ("text", "usage", "limit"),
    [
        (OPENAI, 150_000, 128_000),
        ("maximum context length is 4097 tokens, however you requested 5000 tokens", 5_000, 4_097),
        ("prompt is too long: 210000 tokens > 200000 maximum", 210_000, 200_000),
        ("input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000", 210_000, 200_000),
        (
            "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
            1_200_000,
            1_048_576,
        ),
        ("This model's maximum context length is 8192 tokens", None, 8_192),
        ("context window is full", None, None),
    ],
)
def test_usage_and_limit_of_an_overflow(text, usage, limit):
    details = classify(text).details
    assert details["resource"] == "context"
    assert (details.get("usage"), details.get("limit")) == (usage, limit)


class MaxTurnsExceeded(Exception):
    """As agent frameworks name it."""


class GraphRecursionError(RecursionError):
    """As another one names it."""


@pytest.mark.parametrize(
    ("error", "resource"),
    [
        (MemoryError(), "memory"),
        (OSError(errno.ENOSPC, "disk full"), "disk"),
        (OSError(errno.EMFILE, "too many"), "files"),
        (MaxTurnsExceeded("Max turns (10) exceeded"), "turns"),
        (GraphRecursionError("Recursion limit of 25 reached"), "turns"),
        (type("UsageLimitExceeded", (MaxTurnsExceeded,), {})("the output_tokens_limit of 5"), "output"),
        (
            type("UsageLimitExceeded", (MaxTurnsExceeded,), {})("exceed the total_tokens_limit of 5"),
            "context",
        ),
        ("the process was OOMKilled: out of memory", "memory"),
        ("insufficient_quota", "quota"),
        (MaxTurnsExceeded(), "unknown"),
        (RoundsExhausted(5, None, ()), "turns"),
    ],
)
def test_other_resources(error, resource):
    info = classify(error)
    assert (info.kind, info.details["resource"]) == ("resource", resource)


# Sub-steps.


def context(**fields):
    info = ErrorInfo.of(fields.pop("category", ErrorCategory.NETWORK), "NETWORK_ERROR", message="cut")
    return ErrorContext.from_info(info, timestamp=NOW, **fields)


def test_what_is_a_sub_step():
    own = context(task_run_id="t", flow_run_id="f")
    assert is_sub_step(context(task_run_id="other", flow_run_id="f"), own)
    assert is_sub_step(context(flow_run_id="sub"), own)
    assert not is_sub_step(context(task_run_id="t", flow_run_id="f"), own)
    assert not is_sub_step(context(flow_run_id="f"), own)
    assert not is_sub_step(context(), own)


def test_a_sub_step_is_the_cause_and_its_category_counts():
    inner = context(
        task_run_id="i", node_id="inner", stack_trace="s", partial_output=PartialOutput(content=1)
    )
    outer = with_inner(context(task_run_id="o", node_id="outer"), inner, SubtaskRequest("inner", {"a": 1}))
    assert (outer.category, outer.kind, outer.code) == ("subtask", "transient", "NETWORK_ERROR")
    assert outer.message == "inner failed: cut"
    assert (outer.cause.nesting_depth, outer.cause.stack_trace) == (1, None)
    assert outer.partial_output.content == 1
    assert outer.details["subtask_request"] == {"type": "task", "name": "inner", "inputs": {"a": 1}}
    outermost = with_inner(context(task_run_id="x"), outer)
    assert outermost.categories == ("subtask", "subtask", "network")
    assert "subtask_request" not in outermost.details
    assert context().categories == ("network",)
    assert with_inner(context(), None) == context()


def test_what_the_run_itself_said_is_taken_over():
    own = context(task_run_id="t", attempt=2, node_id="task")
    loop = context(
        task_run_id="t", node_id="step", category=ErrorCategory.SUBTASK, details={"failed_step": 3}
    )
    taken = with_inner(own, loop)
    assert (taken.category, taken.node_id, taken.attempt, taken.kind) == ("subtask", "task", 2, "transient")
    assert taken.details == {"failed_step": 3}
    kept = with_inner(context(task_run_id="t", partial_output=PartialOutput(content="own")), loop)
    assert kept.partial_output.content == "own"
    still = context(task_run_id="t", category=ErrorCategory.NO_PROGRESS, details={"rounds": 3})
    assert with_inner(own, still).details == {"rounds": 3}


def test_the_levels_are_bounded():
    deep = context()
    for _ in range(MOST_LEVELS + 10):
        deep = context(cause=deep.deeper())
    levels = 0
    while deep is not None:
        deep, levels = deep.cause, levels + 1
    assert levels == MOST_LEVELS + 1


def test_a_sub_step_raised_from_its_cause():
    outer, inner, cause = SubtaskError("outer"), SubtaskError("inner"), PermissionError("no key")
    outer.__cause__, inner.__cause__ = inner, cause
    cause.partial_output = "x" * 70_000
    record = context_of(outer)
    categories = [record.category, record.cause.category, record.cause.cause.category]
    assert categories == ["subtask", "subtask", "auth"]
    assert (record.kind, record.cause.cause.nesting_depth) == ("permanent", 2)
    assert record.cause.cause.partial_output.truncated
    assert record.details["failed_step"] == "outer"
    assert context_of(SubtaskError("alone")).cause is None


def test_a_known_cause_keeps_its_context():
    from prefect_resilience.errors.context import attach_context

    cause = ValueError("x")
    attach_context(cause, context(node_id="known"))
    error = SubtaskError("outer")
    error.__cause__ = cause
    assert context_of(error).cause.node_id == "known"


# Requests.


@pytest.mark.requirement("001.18")
def test_a_request_is_made_again_with_changes():
    def work(a, b=2):
        return a, b

    request = SubtaskRequest(
        "work", {"a": 1, "b": 2}, "task", lambda changes: work(**{"a": 1, **changes}), work
    )
    assert request.call() == (1, 2)
    assert request.replace(a=5).replace(b=6).call() == (5, 6)
    assert dict(request.replace(a=5).inputs) == {"a": 5, "b": 2}
    with pytest.raises(
        ConfigurationError, match="'work' cannot change 'c', which is not a parameter of 'work'; write one"
    ):
        request.replace(c=1)
    anything = SubtaskRequest("any", {}, "flow", dict, lambda **more: None)
    assert anything.replace(c=1).call() == {"c": 1}


def test_what_travels_is_a_record_without_secrets():
    class Odd:
        def __str__(self):
            return "odd"

    inputs = {"password": "hunter2-hunter2", "text": "x" * 2_000, "odd": Odd(), "n": float("nan"), "l": [1]}
    request = SubtaskRequest("work", inputs, "task", lambda changes: None)
    back = pickle.loads(pickle.dumps(request))
    assert back.as_data()["inputs"] == request.as_data()["inputs"]
    assert back.inputs["password"] == "***"
    assert (len(back.inputs["text"]), back.inputs["odd"], back.inputs["l"]) == (500, "odd", [1])
    with pytest.raises(ConfigurationError, match="comes from another process"):
        back.replace(n=1).call()

    circle = []
    circle.append(circle)
    assert SubtaskRequest("work", {"c": circle}).as_data()["inputs"]["c"] == "[[...]]"

    class Bad:
        def __str__(self):
            raise RuntimeError("no text")

    assert SubtaskRequest("work", {"bad": Bad(), 1: {(1, 2): 3}}).as_data()["inputs"]["bad"] == ""


def test_requests_on_errors():
    error = ValueError("x")
    assert subtask_request(error) is None
    request = SubtaskRequest("work", {})
    attach_request(error, request)
    assert subtask_request(error) is request
    attach_request("no exception", request)


@pytest.mark.requirement("001.10")
@pytest.mark.parametrize(
    ("left", "kept", "size"),
    [
        ("half of it", "half of it", None),
        ({"pages": [1, 2], "api_key": "abcdef1234"}, {"pages": [1, 2], "api_key": "***"}, None),
        (
            {"at": datetime(2026, 11, 20), (1, 2): "skipped"},
            {"at": "datetime.datetime(2026, 11, 20, 0, 0)"},
            None,
        ),
        ("x" * 70_000, "x" * 64_000, 70_002),
        (["y" * 40_000] * 2, '["' + "y" * 40_000 + '", "' + "y" * 23_994, 80_008),
    ],
    ids=["text", "data", "no JSON", "long text", "long data"],
)
def test_what_an_exception_left_of_its_work(left, kept, size):
    error = TaskFailure("execution_halted", "stopped", partial_output=left)
    record = context_of(error).partial_output
    assert (record.content, record.truncated, record.original_size) == (kept, size is not None, size)
    read = ErrorContext.model_validate_json(context_of(error).model_dump_json())
    assert read.partial_output == record


def refused(status):
    response = httpx.Response(status, request=httpx.Request("GET", "http://127.0.0.1/"))
    return httpx.HTTPStatusError(f"Error code: {status}", request=response.request, response=response)


def failed_step():
    try:
        raise SubtaskError("parse") from KeyError("k")
    except SubtaskError as error:
        return error


REASONS = {
    "rate_limit": (lambda: refused(429), "execution_halted"),
    "timeout": (lambda: TimeoutError("late"), "execution_timeout"),
    "network": (lambda: ConnectionResetError("cut"), "execution_halted"),
    "unavailable": (lambda: refused(503), "execution_halted"),
    "server_error": (lambda: refused(500), "execution_halted"),
    "auth": (lambda: refused(401), "input_validation_failure"),
    "invalid": (lambda: refused(400), "input_validation_failure"),
    "not_found": (lambda: refused(404), "input_validation_failure"),
    "conflict": (lambda: refused(409), "input_validation_failure"),
    "overflow": (lambda: refused(413), "execution_halted"),
    "resource_exhausted": (lambda: ResourceExhausted("turns"), "execution_halted"),
    "validation": (lambda: OutputFormatError("array", "object"), "output_format_failure"),
    "tool_error": (lambda: subprocess.CalledProcessError(1, "tool"), "subtask_failure"),
    "agent_crash": (lambda: ProcessDied("'agent'", -9), "execution_halted"),
    "no_progress": (lambda: NoProgress(3, None, ()), "execution_halted"),
    "circuit_open": (lambda: CircuitOpenError("llm", 1.0, None), "execution_halted"),
    "subtask": (failed_step, "subtask_failure"),
    "cancelled": (lambda: asyncio.CancelledError(), "execution_halted"),
    "infrastructure": (lambda: StoreUnavailable("away"), "execution_halted"),
    "unexpected": (lambda: KeyError("k"), "unexpected_error"),
}


@pytest.mark.requirement("001.04")
@pytest.mark.parametrize("category", ErrorCategory)
def test_an_error_of_each_category_has_its_reason(category):
    make, reason = REASONS[category.value]
    info, context = classify(make()), context_of(make())
    assert (info.category, info.reason) == (context.category, context.reason) == (category, reason)
    record = context.to_task_error()
    assert record.get("reason") == (None if record["type"] == "RESOURCE_EXHAUSTION" else reason)


# The shape that agent task systems hand around.


def test_a_structure_without_a_request():
    record = with_inner(context(task_run_id="o"), context(task_run_id="i", node_id="inner")).to_task_error()
    assert record["details"]["subtaskError"]["reason"] == "execution_halted"
    assert "subtaskRequest" not in record["details"]


def test_the_structure_of_an_exhausted_resource():
    error = ResourceExhausted("output", 16, 16, partial_output="x" * 70_000)
    record = context_of(error).to_task_error()
    assert (record["type"], record["resource"]) == ("RESOURCE_EXHAUSTION", "output")
    assert record["metrics"] == {"usage": 16, "limit": 16}
    assert record["details"]["partialOutputTruncated"] is True
    short = context_of(ResourceExhausted("turns", partial_output="x")).to_task_error()
    assert short["details"] == {"partialOutput": "x"}


@pytest.mark.requirement("001.17")
def test_the_structure_of_a_sub_step_with_its_request():
    inner = context(task_run_id="i", node_id="inner")
    record = with_inner(context(task_run_id="o"), inner, SubtaskRequest("inner", {"a": 1})).to_task_error()
    request = {"type": "task", "description": "inner", "inputs": {"a": 1}}
    assert record["details"]["subtaskRequest"] == request


@pytest.mark.parametrize(
    ("reason", "category", "retryable"),
    [
        ("context_matching_failure", "validation", True),
        ("context_parsing_failure", "validation", False),
        ("execution_timeout", "timeout", True),
        ("execution_halted", "cancelled", False),
    ],
)
def test_the_category_of_a_reason(reason, category, retryable):
    info = classify(TaskFailure(reason))
    assert (info.category, info.retryable, info.reason, info.code) == (category, retryable, reason, reason)
