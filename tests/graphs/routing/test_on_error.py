"""Error-handler nodes: when the handler runs, what it gets, and what is left of an error."""

from __future__ import annotations

import pytest
from prefect import task
from prefect.client.schemas.objects import StateDetails
from prefect.states import Cancelled, Crashed, Failed

from prefect_resilience import ErrorContext, failed, on_error, path, redact, register_secret
from tests.contexts import context_of
from tests.graphs.routing.scenes import drawn, in_flow

pytestmark = pytest.mark.api

SECRET = "tr0ub4dor-and-3"


def kg(mode, error=None):
    def kg_query(drug):
        if error is not None:
            raise error
        return f"graph of {drug}"

    return task(mode.function(kg_query))


def search(mode):
    def text_search(drug, error: ErrorContext):
        return f"texts on {drug} after {error.code}"

    return mode.function(text_search)


NODE = "on_error: text_search"


def test_it_is_skipped_when_there_is_no_error(mode):
    def body():
        return on_error(kg(mode).submit("aspirin"), search(mode), "aspirin").result()

    value, picture = drawn(body, ["kg_query", NODE], mode)
    assert value == "graph of aspirin"
    assert picture[NODE].state == "Skipped"
    assert picture[NODE].message == "The upstream succeeded, so text_search was not called"
    assert picture[NODE].behind == ["kg_query"]


@pytest.mark.smoke
def test_the_handler_takes_over_and_the_flow_does_not_fail(mode, seen):
    def body():
        node = on_error(kg(mode, TimeoutError("slow")).submit("aspirin"), search(mode), "aspirin")
        return node.result(), context_of(node.state)

    (value, context), picture = drawn(body, ["kg_query", NODE, "text_search"], mode)
    assert value == "texts on aspirin after TIMEOUT"
    assert context.category == "timeout"
    assert picture["kg_query"].state == "TimedOut"
    assert picture[NODE].state == "Handled"
    assert picture[NODE].message == "text_search handled the error: timeout: slow"
    assert picture["text_search"].behind == ["kg_query"]
    assert picture["text_search"].inside == [NODE]
    [event] = seen.events(
        "prefect-resilience.plan.branched",
        lambda event: event["payload"].get("task_run_id") == picture[NODE].id,
    )
    assert event["payload"]["chosen"] == "text_search"
    assert event["payload"]["error"]["category"] == "timeout"


@pytest.mark.requirement("002.30")
def test_when_says_which_errors_it_is_for(mode):
    applies = {
        "a category": "network",
        "a kind among others": ["rate_limit", "transient"],
        "a code": "NETWORK_ERROR",
        "a base class": ConnectionError,
        "a class among others": [ValueError, ConnectionRefusedError],
        "a condition on errors": failed(category="network"),
        "a condition on the context": path("code").is_in(["429", "NETWORK_ERROR"]),
        "a function": lambda error: error.retryable,
    }
    does_not = {
        "another category": "timeout",
        "another class": ValueError,
        "another code": failed(code=503),
        "nothing there": path("details.status").exists(),
        "no": lambda error: False,
    }

    def body():
        up = kg(mode, ConnectionRefusedError("no")).submit("x")
        nodes = {
            name: on_error(up, lambda: "instead", when=when) for name, when in (applies | does_not).items()
        }
        values = {name: node.result(raise_on_failure=False) for name, node in nodes.items()}
        return values, {context_of(node.state).category.value for node in nodes.values()}

    values, categories = in_flow(mode, body)
    assert {name for name, value in values.items() if value == "instead"} == set(applies)
    assert {type(values[name]) for name in does_not} == {ConnectionRefusedError}
    assert categories == {"network"}


def test_several_handlers_in_a_row_and_beside_each_other(mode):
    def broken(error: ErrorContext):
        raise LookupError("no index")

    def last(error: ErrorContext):
        return [error.code, error.cause.code]

    def body():
        up = kg(mode, ConnectionRefusedError("no")).submit("x")
        first = on_error(up, mode.function(broken))
        beside = on_error(up, lambda: "beside")
        second = on_error(first, mode.function(last))
        third = on_error(second, lambda: "not needed")
        return second.result(), beside.result(), third.result(), third.state.name

    codes, beside, third, name = in_flow(mode, body)
    assert codes == third == ["LookupError", "NETWORK_ERROR"]
    assert (beside, name) == ("beside", "Skipped")


@pytest.mark.requirement("002.20")
def test_an_error_in_a_handler_ends_there_and_nothing_is_lost(mode):
    calls = []
    register_secret(SECRET)

    def broken(error: ErrorContext):
        calls.append(error)
        raise LookupError("no index")

    def body():
        up = kg(mode, ConnectionRefusedError(f"no {SECRET}")).submit("x")
        node = on_error(up, mode.function(broken))
        with pytest.raises(LookupError, match="no index") as caught:
            node.result()
        return caught.value, node.state.name

    error, name = in_flow(mode, body)
    assert name == "Failed"
    assert len(calls) == 1
    [note] = error.__notes__
    masked = redact(f"NETWORK_ERROR network: no {SECRET}")
    assert note == f"prefect-resilience: broken failed while it handled the error: {masked}"
    assert SECRET not in note
    context = context_of(error)
    assert (context.code, context.cause.category) == ("LookupError", "network")


def test_an_error_in_when_ends_there_too(mode):
    def body():
        up = kg(mode, ConnectionRefusedError("no")).submit("x")
        node = on_error(up, lambda: "instead", when=lambda error: error.nonsense)
        with pytest.raises(AttributeError, match="nonsense") as caught:
            node.result()
        return caught.value

    error = in_flow(mode, body)
    assert context_of(error).cause.category == "network"
    assert "when= of <lambda> failed while it handled" in error.__notes__[0]


def test_what_never_ran_has_not_failed(mode):
    called = []

    def note(error: ErrorContext):
        called.append((error.category, error.code))
        return "asked for"

    def body():
        broken = kg(mode, RuntimeError("broken")).submit("x")
        blocked = kg(mode).submit(broken)
        never = on_error(blocked, note)
        ended = on_error(Cancelled(message="by hand"), note)
        for node in (never, ended):
            node.wait()
        return [(node.state.name, node.state.message) for node in (never, ended)]

    never, ended = in_flow(mode, body)
    assert never[0] == "NotReady"
    assert never[1].startswith("note was not called, because the upstream never ran: NotReady: Upstream")
    assert ended == ("Cancelled", "note was not called, because the upstream never ran: Cancelled: by hand")
    assert called == []


def test_a_crash_is_a_failure(mode):
    def exits(x):
        raise SystemExit(3)

    def body():
        codes = []
        for up in (task(mode.function(exits)).submit(1), Crashed(message="the process died")):
            codes.append(on_error(up, lambda error: error.category).result())
        node = on_error(task(exits).submit(1), print, when="timeout")
        with pytest.raises(SystemExit):
            node.result()
        return codes

    assert in_flow(mode, body) == ["agent_crash", "agent_crash"]


def test_states_caught_errors_values_and_lists_as_upstream(mode):
    def body():
        good, bad = kg(mode).submit("a"), kg(mode, ValueError("bad")).submit("b")
        blocked = kg(mode).submit(bad)
        named = lambda error: (error.code, error.node_id, error.task_run_id)  # noqa: E731
        state = Failed(message="503 Service Unavailable", state_details=StateDetails())
        return [
            on_error(good.state if good.wait() else good, named).result(),
            on_error(KeyError("caught"), named).result(),
            on_error(state, named).result()[0],
            on_error([good, 1], named).result(),
            on_error([blocked, good, bad], named).result()[0],
            on_error(kg(mode).map(["a", "b"]), named).result(),
            on_error(None, named).result(),
        ]

    assert in_flow(mode, body) == [
        "graph of a",
        ("KeyError", None, None),
        "503",
        ["graph of a", 1],
        "ValueError",
        ["graph of a", "graph of b"],
        None,
    ]


def test_a_handlers_own_upstream_may_have_failed(mode):
    def body():
        bad = kg(mode, ValueError("bad")).submit("b")
        node = on_error(kg(mode, TimeoutError("slow")).submit("x"), lambda other: other, bad)
        node.wait()
        return node.state.name, node.state.message

    name, message = in_flow(mode, body)
    assert name == "NotReady"
    assert message.startswith("<lambda> was called for timeout: slow, but it never ran: NotReady")
