"""Chains, groups, rules, states, texts: how classify comes to its answer."""

from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import httpx
import prefect.exceptions
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prefect.client.schemas.objects import State
from prefect.flow_engine import FlowRunTimeoutError
from prefect.states import Cancelled, Completed, Crashed, Failed, Running
from prefect.task_engine import TaskRunTimeoutError

from prefect_resilience import (
    CircuitOpenError,
    ErrorInfo,
    ErrorKind,
    FailureReason,
    classifier,
    classify,
    register_classifier,
)
from prefect_resilience import ErrorCategory as C
from prefect_resilience.errors.classify.classify import registered
from prefect_resilience.errors.exceptions import ResilienceError


def raised(
    outer: BaseException, cause: BaseException | None = None, context: BaseException | None = None
) -> Any:
    if cause is not None:
        outer.__cause__ = cause
    outer.__context__ = context
    return outer


def with_status(status: int, **headers: str) -> httpx.HTTPStatusError:
    request = httpx.Request("GET", "http://x")
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.HTTPStatusError(
        f"status {status}", request=request, response=httpx.Response(status, headers=names)
    )


class Wrapped(Exception):
    pass


def test_a_cause_is_looked_through() -> None:
    info = classify(raised(Wrapped("outer"), with_status(503, retry_after="4")))
    assert (info.category, info.code, info.retry_after, info.message) == (C.UNAVAILABLE, "503", 4.0, "outer")
    assert info.exception_type.endswith("Wrapped")
    assert info.details["caused_by"] == "httpx.HTTPStatusError"
    assert classify(raised(Wrapped(), TimeoutError("inner"))).message == "inner"
    assert classify(raised(ValueError("x"), raised(Wrapped(), TimeoutError()))).category is C.TIMEOUT


def test_a_context_is_looked_through_unless_the_handler_is_at_fault() -> None:
    assert classify(raised(Wrapped("x"), context=TimeoutError())).category is C.TIMEOUT
    assert classify(raised(KeyError("x"), context=TimeoutError())).category is C.UNEXPECTED
    hidden = raised(Wrapped("x"), context=TimeoutError())
    hidden.__suppress_context__ = True
    assert classify(hidden).category is C.UNEXPECTED


def test_the_outermost_known_exception_decides() -> None:
    assert classify(raised(with_status(404), TimeoutError())).category is C.NOT_FOUND


def test_the_worst_member_of_a_group_decides() -> None:
    transient, slow = with_status(503, retry_after="9"), with_status(429, retry_after="30")
    group = ExceptionGroup("all", [transient, slow])
    info = classify(group)
    assert (info.code, info.retry_after, info.details["members"]) == ("429", 30.0, 2)
    assert info.details["group"] == "ExceptionGroup"
    crash = prefect.exceptions.CrashedRun("x")
    for worse in (crash, MemoryError(), ValueError("bug")):
        group = ExceptionGroup("all", [group, worse])
        assert classify(group).exception_type.endswith(type(worse).__name__)
    refused = ExceptionGroup("all", [TimeoutError(), CircuitOpenError("x")])
    assert classify(refused).category is C.CIRCUIT_OPEN
    assert classify(raised(Wrapped(), ExceptionGroup("all", [TimeoutError()]))).category is C.TIMEOUT


def test_rules_come_first_and_may_not_hurt() -> None:
    def broken(error: BaseException) -> str:
        raise RuntimeError

    def by_text(error: BaseException) -> str | None:
        return "TOOL_ERROR" if "tool" in str(error) else None

    rules = [broken, lambda error: "no such category", lambda error: 7, by_text]
    assert classify(ValueError("tool"), rules=rules).category is C.TOOL_ERROR  # type: ignore[arg-type]
    assert classify(ValueError("tool"), rules=rules).code == "ValueError"  # type: ignore[arg-type]
    assert classify(ValueError("x"), rules=rules).category is C.UNEXPECTED  # type: ignore[arg-type]
    assert classify(raised(Wrapped("x"), ValueError("tool")), rules=[by_text]).category is C.TOOL_ERROR
    group = ExceptionGroup("x", [ValueError("tool")])
    assert classify(group, rules=[by_text]).category is C.TOOL_ERROR


def test_a_rule_keeps_what_the_defaults_know() -> None:
    error = with_status(400, retry_after="2")
    info = classify(error, rules=[lambda error: C.RATE_LIMIT])
    assert (info.category, info.code, info.retry_after, info.retryable) == (C.RATE_LIMIT, "400", 2.0, True)
    same = classify(error, rules=[lambda error: C.INVALID])
    assert (same.category, same.code, same.retry_after) == (C.INVALID, "400", 2.0)


def test_a_rule_may_say_everything() -> None:
    mine = ErrorInfo.of(C.VALIDATION, "MINE", retryable=True, message="password=hunter2")
    assert classify(ValueError(), rules=[lambda error: mine]) is mine
    assert mine.message == "password=***"
    assert classify(mine) is mine


def test_rules_of_the_process() -> None:
    @classifier
    def first(error: BaseException) -> C | None:
        return C.CONFLICT if isinstance(error, Wrapped) else None

    def second(error: BaseException) -> C:
        return C.NO_PROGRESS

    try:
        assert classify(Wrapped()).category is C.CONFLICT
        assert classify(Wrapped(), rules=[lambda error: C.AUTH]).category is C.AUTH
        register_classifier(second)
        register_classifier(second)
        assert classify(Wrapped()).category is C.NO_PROGRESS
    finally:
        registered.remove(second)
        registered.remove(first)
    assert classify(Wrapped()).category is C.UNEXPECTED


def test_an_exception_may_say_what_it_is() -> None:
    class Mine(Exception):
        error_category = "tool_error"

    class Wrong(Exception):
        error_category = "no such thing"

    assert classify(Mine()).category is C.TOOL_ERROR
    assert classify(Wrong()).category is C.UNEXPECTED
    assert classify(type("RateLimitError", (Exception,), {})()).category is C.RATE_LIMIT
    assert classify(type("NoProgress", (ResilienceError,), {})()).category is C.NO_PROGRESS


def test_shapes_of_other_clients() -> None:
    def shaped(**attributes: object) -> Exception:
        return type("Other", (Exception,), attributes)("x")

    assert classify(shaped(status_code=503)).code == "503"
    assert classify(shaped(status=404)).code == "404"
    assert classify(shaped(code=429, retry_after=3)).retry_after == 3.0
    assert classify(shaped(code="429", headers={"Retry-After": "5"})).retry_after == 5.0
    assert classify(shaped(response=SimpleNamespace(status=502))).code == "502"
    assert classify(shaped(status_code=True)).category is C.UNEXPECTED
    assert classify(shaped(status_code=200)).category is C.UNEXPECTED
    assert classify(shaped(code="rate_limit_exceeded")).category is C.RATE_LIMIT
    assert classify(shaped(code="x" * 200)).category is C.UNEXPECTED


STATES: list[tuple[State[Any], C, str]] = [
    (Crashed(message="died"), C.AGENT_CRASH, "CRASHED"),
    (Cancelled(), C.CANCELLED, "CANCELLED"),
    (Failed(name="TimedOut", message="x"), C.TIMEOUT, "TIMEOUT"),
    (Failed(data=with_status(503)), C.UNAVAILABLE, "503"),
    (Failed(data=Failed(data=TimeoutError())), C.TIMEOUT, "TIMEOUT"),
    (
        Failed(data=[Completed(), Failed(data=TimeoutError()), Failed(data=KeyError())]),
        C.UNEXPECTED,
        "KeyError",
    ),
    (Failed(data="429 Too Many Requests"), C.RATE_LIMIT, "429"),
    (Failed(message="Task run encountered an exception ConnectionError: x"), C.NETWORK, "NETWORK_ERROR"),
    (Failed(message="nothing known"), C.UNEXPECTED, "Failed"),
    (Failed(data=[Completed()], message="1/1 states failed."), C.UNEXPECTED, "Failed"),
    (Running(), C.UNEXPECTED, "Running"),
]


@pytest.mark.parametrize(("state", "category", "code"), STATES)
def test_states(state, category, code) -> None:
    info = classify(state)
    assert (info.category, info.code) == (category, code)


def test_a_state_s_exception_may_lie_in_a_record() -> None:
    record = SimpleNamespace(result=with_status(429), metadata=None)
    state = SimpleNamespace(type="FAILED", name="Failed", message="x", data=record)
    assert classify(state).code == "429"
    state.data = SimpleNamespace(result=None)
    assert classify(state).code == "Failed"


def test_prefect_s_own_exceptions() -> None:
    failing = prefect.exceptions.PrefectHTTPStatusError.from_httpx_error(with_status(503, retry_after="2"))
    info = classify(failing)
    assert (info.category, info.code, info.retry_after, info.retryable) == (
        C.INFRASTRUCTURE,
        "503",
        2.0,
        True,
    )
    missing = prefect.exceptions.PrefectHTTPStatusError.from_httpx_error(with_status(404))
    assert classify(missing).category is C.NOT_FOUND
    assert classify(TaskRunTimeoutError("x")).code == "TIMEOUT"
    assert classify(FlowRunTimeoutError("x")).code == "TIMEOUT"
    # The run stays paused: another attempt could not pause it again.
    assert not classify(prefect.exceptions.FlowPauseTimeout("x")).retryable
    assert classify(prefect.exceptions.CancelledRun("x")).category is C.CANCELLED
    assert classify(prefect.exceptions.CrashedRun("x")).category is C.AGENT_CRASH
    assert classify(prefect.exceptions.TerminationSignal(15)).code == "SIGTERM"
    assert classify(prefect.exceptions.MissingResult("x")).category is C.NOT_FOUND
    assert classify(prefect.exceptions.ObjectNotFound(ValueError())).category is C.NOT_FOUND
    assert classify(prefect.exceptions.InfrastructureNotAvailable("x")).category is C.INFRASTRUCTURE
    assert classify(prefect.exceptions.ParameterTypeError("x")).category is C.INVALID


def test_a_failed_step_is_as_what_made_it_fail() -> None:
    transient = classify(prefect.exceptions.FailedRun("encountered an exception: ConnectionError: x"))
    assert (transient.category, transient.kind, transient.retryable) == (C.SUBTASK, ErrorKind.TRANSIENT, True)
    assert (transient.code, transient.reason) == ("NETWORK_ERROR", FailureReason.SUBTASK_FAILURE)
    unknown = classify(prefect.exceptions.UpstreamTaskError("Upstream task run 'x' did not reach COMPLETED"))
    assert (unknown.category, unknown.retryable, unknown.code) == (C.SUBTASK, False, "UpstreamTaskError")
    caused = classify(raised(prefect.exceptions.FailedRun("x"), with_status(503)))
    assert (caused.category, caused.kind, caused.code) == (C.SUBTASK, ErrorKind.TRANSIENT, "503")


TEXTS = [
    ("503 Service Unavailable", C.UNAVAILABLE, "503"),
    ("HTTP/1.1 429 Too Many Requests", C.RATE_LIMIT, "429"),
    ("server answered with status code 404", C.NOT_FOUND, "404"),
    ("Error code: 401 - {'error': 'x'}", C.AUTH, "401"),
    ("the request timed out", C.TIMEOUT, "TIMEOUT"),
    ("httpx.ReadTimeout", C.TIMEOUT, "TIMEOUT"),
    ("requests.exceptions.ConnectionError: x", C.NETWORK, "NETWORK_ERROR"),
    ("FileNotFoundError: [Errno 2] x", C.NOT_FOUND, "FileNotFoundError"),
    ("prompt is too long: 9 > 8", C.OVERFLOW, "context_length_exceeded"),
    ("You exceeded your current quota", C.RESOURCE_EXHAUSTED, "insufficient_quota"),
    ("deadlock detected", C.UNAVAILABLE, "unexpected"),
    ("forbidden", C.AUTH, "unexpected"),
    ("MyOwnError: nothing", C.UNEXPECTED, "unexpected"),
    ("order 404 was shipped", C.UNEXPECTED, "unexpected"),
    ("", C.UNEXPECTED, "unexpected"),
]


@pytest.mark.parametrize(("text", "category", "code"), TEXTS)
def test_texts(text, category, code) -> None:
    info = classify(text)
    assert (info.category, info.code, info.exception_type) == (category, code, None)


def test_anything_else() -> None:
    for thing in (None, 7, object(), [], uuid4(), ValueError, 3.5, b"x"):
        assert classify(thing).category is C.UNEXPECTED
    assert classify(7).message == "7"


def test_long_messages_are_cut_and_redacted() -> None:
    info = classify(ValueError("password=hunter2 " + "x" * 10_000))
    assert len(info.message) == 2_000
    assert info.message.startswith("password=*** xxx")


# What classification may meet: objects that fight back.


class Hostile(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __getattr__(self, name: str) -> Any:
        raise OSError(name)

    __repr__ = __str__


class Liar(Exception):
    status_code = property(lambda self: 1 / 0)
    response = property(lambda self: self)
    headers = property(lambda self: [1, 2, 3])
    retry_after = float("nan")
    exceptions = property(lambda self: (self, None, "x"))
    code = property(lambda self: self)


class Endless(Exception):
    headers = property(lambda self: {"retry-after": "inf", 3: object()})
    status_code = 503
    body = property(lambda self: {"error": {"code": [1], "details": 4}})


class StrangeMeta(type):
    def __getattribute__(cls, name: str) -> Any:
        if name in ("__module__", "__qualname__", "__name__"):
            raise RuntimeError(name)
        return super().__getattribute__(name)


class Strange(Exception, metaclass=StrangeMeta):
    pass


class StrangeModule(Exception):
    __module__ = 7  # type: ignore[assignment]


class HostileState:
    type = "FAILED"
    name = "Failed"
    message = property(lambda self: 1 / 0)
    data = property(lambda self: self)


def test_objects_that_fight_back() -> None:
    for thing in (Hostile(), Liar(), Endless(), Strange(), StrangeModule(), HostileState(), Hostile, Strange):
        assert isinstance(classify(thing), ErrorInfo)
    assert classify(Endless()).code == "503"
    assert classify(Hostile()).code == "Hostile"


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(
    [
        *("status_code", "status", "code", "response", "headers", "retry_after", "body", "type", "name"),
        *("message", "data", "errno", "args", "sqlstate", "exceptions", "orig", "details"),
        *("returncode", "signal", "smtp_code", "error_category", "grpc_status_code"),
    ]
)
bases = st.sampled_from([Exception, OSError, ValueError, TimeoutError, BaseException, CircuitOpenError])


@st.composite
def errors(draw: st.DrawFn) -> BaseException:
    attributes = draw(st.dictionaries(names, values, max_size=5))
    base = draw(bases)
    module = draw(
        st.sampled_from(["builtins", "grpc", "botocore.x", "google.y", "sqlalchemy.exc", "prefect", ""])
    )
    name = draw(st.sampled_from(["X", "RpcError", "ClientError", "GoogleAPICallError", "DBAPIError"]))
    cls = type(name, (base,), {"__module__": module, **{k: v for k, v in attributes.items() if k != "args"}})
    error = cls.__new__(cls, *draw(st.lists(values, max_size=2)))
    if draw(st.booleans()):
        error.__cause__ = draw(st.sampled_from([TimeoutError(), ValueError(), error]))
    return error


def test_details_are_json_whatever_an_attribute_holds() -> None:
    endless: list[Any] = []
    endless.append(endless)
    for circuit, shown in (([b"\xff orders"], ["_yBvcmRlcnM="]), ({1: endless}, "{1: [[...]]}")):
        info = classify(CircuitOpenError(cast("Any", circuit)))
        assert info.details == {"circuit": shown}
        assert ErrorInfo.model_validate_json(info.model_dump_json()) == info


@settings(max_examples=150, deadline=None)
@given(errors() | values | st.builds(lambda d: SimpleNamespace(**d), st.dictionaries(names, values)))
def test_classify_never_raises(thing: Any) -> None:
    for now in (None, 1e9):
        info = classify(thing, now=now)
        assert info.retry_after is None or 0 <= info.retry_after < float("inf")
        assert len(info.message) <= 2_000
        assert info.code
        assert ErrorInfo.model_validate_json(info.model_dump_json()).code == info.code
