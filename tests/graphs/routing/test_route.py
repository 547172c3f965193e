"""Branches: which one runs, with what, and how the UI shows the way that was taken."""

from __future__ import annotations

from functools import partial
from uuid import uuid4

import pytest
from prefect import flow, task
from prefect.cache_policies import INPUTS
from prefect.states import Cancelled

from prefect_resilience import (
    Backoff,
    ConditionError,
    ErrorContext,
    NoRoute,
    Retry,
    failed,
    otherwise,
    path,
    quorum,
    resilient_task,
    route,
    succeeded,
    when,
)
from tests.contexts import context_of
from tests.graphs.routing.scenes import drawn, in_flow

pytestmark = pytest.mark.api


def graph_query(mode, outcome):
    """A task that gives a confidence, or raises."""

    def kg_query(drug):
        if isinstance(outcome, BaseException):
            raise outcome
        return {"drug": drug, "confidence": outcome}

    return task(mode.function(kg_query))


def report(mode):
    def generate_report(found):
        return f"report on {found['drug']}"

    return mode.function(generate_report)


def review(mode):
    def manual_review(found):
        return f"review of {found['confidence']}"

    return mode.function(manual_review)


def by_confidence(mode, upstream):
    return route(upstream, when(path("confidence") >= 0.9, report(mode)), otherwise(review(mode)))


@pytest.mark.smoke
def test_the_first_branch_that_holds_runs_and_the_ui_shows_why(mode, seen):
    def body():
        return by_confidence(mode, graph_query(mode, 0.93).submit("aspirin")).result()

    node = "route: generate_report | manual_review"
    value, picture = drawn(body, ["kg_query", node, "generate_report"], mode)
    assert value == "report on aspirin"
    assert picture[node].state == "Routed"
    assert picture[node].message == "generate_report, because confidence is 0.93, >= 0.9"
    assert picture[node].behind == ["kg_query"]
    assert picture["generate_report"].state == "Completed"
    assert picture["generate_report"].behind == ["kg_query"]
    assert picture["generate_report"].inside == [node]

    [event] = seen.events(
        "prefect-resilience.plan.branched",
        lambda event: event["payload"].get("task_run_id") == picture[node].id,
    )
    assert event["payload"]["chosen"] == "generate_report"
    assert event["payload"]["condition"] == "confidence >= 0.9"
    assert event["payload"]["why"] == "confidence is 0.93, >= 0.9"
    assert event["payload"]["upstream"] == [picture["kg_query"].id]
    assert event["payload"]["passed_over"] == []
    related = {each["prefect.resource.id"] for each in event["related"]}
    assert f"prefect.task-run.{picture[node].id}" in related


@pytest.mark.parametrize(("confidence", "answer"), [(0.9, "report on aspirin"), (0.89, "review of 0.89")])
def test_otherwise_is_for_the_rest(mode, confidence, answer):
    def body():
        return by_confidence(mode, graph_query(mode, confidence).submit("aspirin")).result()

    assert in_flow(mode, body) == answer


def test_states_values_and_other_routes_are_upstreams(mode):
    def body():
        query = graph_query(mode, 0.95)
        future = query.submit("aspirin")
        future.wait()
        routed = by_confidence(mode, future)
        again = route(routed, when(path("$").matches("^report"), lambda text: text.upper()))
        inside = {"drug": "aspirin", "confidence": graph_query(mode, 0.95).submit("aspirin")}
        number = route(inside, when(path("confidence.confidence") > 0.9, lambda found: found["drug"]))
        return (
            by_confidence(mode, future.state).result(),
            by_confidence(mode, {"drug": "x", "confidence": 0.1}).result(),
            again.result(),
            number.result(),
        )

    assert in_flow(mode, body) == ("report on aspirin", "review of 0.1", "REPORT ON ASPIRIN", "aspirin")


def test_what_it_gives_is_a_future_as_any_other(mode):
    def body():
        routed = by_confidence(mode, graph_query(mode, 0.95).submit("aspirin"))
        add = task(mode.function(lambda text, mark: text + mark), name="add")
        followed = add.submit(routed, "!")
        waited = add.submit("waited", "!", wait_for=[routed])
        return followed.result(), waited.result(), add.map([routed, routed], "?").result()

    assert in_flow(mode, body) == (
        "report on aspirin!",
        "waited!",
        ["report on aspirin?", "report on aspirin?"],
    )


def test_a_flow_may_return_it_as_any_other_future(mode):
    state = in_flow(mode, lambda: by_confidence(mode, {"drug": "x", "confidence": 1}))
    assert (state.name, state.result(_sync=True)) == ("Routed", "report on x")


def test_a_failure_is_for_a_branch_that_speaks_of_errors(mode):
    heard = []

    def wait_and_ask(drug, error: ErrorContext):
        heard.append(error)
        return f"asked again for {drug}"

    def body():
        return route(
            graph_query(mode, ConnectionRefusedError("no")).submit("aspirin"),
            when(path("confidence") >= 0.9, report(mode)),
            when(failed(category="rate_limit"), lambda: "limited"),
            when(failed(category="network"), mode.function(wait_and_ask), "aspirin"),
            otherwise(review(mode)),
        ).result()

    node = "route: generate_report | <lambda> | wait_and_ask | manual_review"
    value, picture = drawn(body, ["kg_query", node, "wait_and_ask"], mode)
    assert value == "asked again for aspirin"
    assert picture[node].message == "wait_and_ask, because it failed with network NETWORK_ERROR"
    assert picture["wait_and_ask"].behind == ["kg_query"]
    assert heard[0].category == "network"
    assert heard[0].task_run_id == picture["kg_query"].id


def test_a_failure_that_no_branch_is_for_fails_the_route_as_it_is(mode):
    calls = []

    def body():
        query = graph_query(mode, ConnectionRefusedError("no")).submit("aspirin")
        routed = route(
            query,
            when(path("confidence") >= 0.9, calls.append),
            when(failed(code="429"), lambda: calls.append("limited")),
            otherwise(calls.append),
        )
        routed.wait()
        return routed.state.name, context_of(routed.state).category, routed.result(raise_on_failure=False)

    name, category, error = in_flow(mode, body)
    assert (name, category, type(error)) == ("Failed", "network", ConnectionRefusedError)
    assert calls == []


@pytest.mark.parametrize("outcome", [0.5, TimeoutError("slow")])
def test_conditions_on_values_and_errors_together(mode, outcome):
    def body():
        return route(
            graph_query(mode, outcome).submit("aspirin"),
            when(succeeded() & (path("confidence") > 0.4), lambda found: found["confidence"]),
            when(failed() & (path("code") == "TIMEOUT"), lambda error: error.code),
        ).result()

    assert in_flow(mode, body) == (0.5 if outcome == 0.5 else "TIMEOUT")


def test_no_branch_for_a_value_is_an_error_that_says_so(mode):
    def body():
        with pytest.raises(NoRoute) as caught:
            route({"confidence": 0.1}, when(path("confidence") >= 0.9, report(mode))).result()
        return caught.value

    error = in_flow(mode, body)
    assert str(error) == (
        "no branch matches a mapping of 1: none of (confidence >= 0.9) holds, and there is no otherwise"
    )
    assert context_of(error).category == "validation"


def test_a_condition_without_an_answer_fails_the_route(mode):
    def body():
        routed = route({"x": 1}, when(path("confidence") >= 0.9, print, name="high"), otherwise(print))
        with pytest.raises(ConditionError, match="confidence") as caught:
            routed.result()
        return caught.value

    assert "prefect-resilience: this is the condition of the branch 'high'" in in_flow(mode, body).__notes__


def test_an_upstream_that_never_ran_takes_no_branch(mode):
    called = []

    def body():
        broken = graph_query(mode, RuntimeError("broken")).submit("aspirin")
        blocked = graph_query(mode, 1).submit(broken)
        never = route(blocked, when(failed(), lambda: called.append(1)), otherwise(called.append))
        ended = route(Cancelled(message="by hand"), when(failed(), lambda: called.append(1)))
        after = task(mode.function(lambda x: called.append(x)), name="after").submit(never)
        for future in (never, ended, after):
            future.wait()
        return [(future.state.name, future.state.message) for future in (never, ended, after)]

    never, ended, after = in_flow(mode, body)
    assert never[0] == after[0] == "NotReady"
    assert never[1].startswith("No branch was evaluated, because the upstream never ran: NotReady: Upstream")
    assert ended == (
        "Cancelled",
        "No branch was evaluated, because the upstream never ran: Cancelled: by hand",
    )
    assert called == []


def test_a_branch_that_fails_fails_the_route_with_its_own_error(mode):
    def generate_report(found):
        raise KeyError("no template")

    def body():
        routed = route({"a": 1}, when(path("a") == 1, mode.function(generate_report)))
        with pytest.raises(KeyError, match="no template"):
            routed.result()
        return routed.state.name

    assert in_flow(mode, body) == "Failed"


def test_a_branch_whose_own_arguments_failed_never_ran(mode):
    def body():
        broken = graph_query(mode, RuntimeError("broken")).submit("aspirin")
        unused = route({"a": 1}, when(path("a") == 2, print, broken), otherwise(lambda found: found))
        routed = route({"a": 1}, when(path("a") == 1, mode.function(lambda found, other: other), broken))
        routed.wait()
        return unused.result(), routed.state

    value, state = in_flow(mode, body)
    assert value == {"a": 1}
    assert state.name == "NotReady"
    assert state.message.startswith("The branch <lambda> was chosen, but it never ran")


def test_tasks_keep_their_policies_and_flows_may_be_branches(mode):
    calls = []

    def flaky(found, suffix="."):
        calls.append(found)
        if len(calls) < 3:
            raise ConnectionResetError("cut")
        return f"{found}{suffix}"

    made = mode.task(flaky, retry=Retry(attempts=3, backoff=Backoff.none()))
    inner = flow(mode.function(lambda found: f"flow of {found}"), name="inner")

    def body():
        first = route("a", when(path("$") == "a", made, suffix="!"))
        return first.result(), route("b", otherwise(inner)).result()

    assert in_flow(mode, body) == ("a!", "flow of b")
    assert calls == ["a"] * 3


def test_methods_and_votes_as_targets(mode):
    class Reports:
        def __init__(self):
            self.sent = []

        def plain(self, found, *, error=None):
            return found, error

        def __call__(self, found):
            return "called", found

        @resilient_task
        def guarded(self, found):
            return self.sent, found

    reports = Reports()
    agreed = quorum(lambda x: x, lambda x: x)
    later = partial(mode.function(lambda extra, found: found + extra), 2)

    def body():
        return [
            route(1, otherwise(target)).result()
            for target in (reports.plain, reports.guarded, reports, later, str, agreed)
        ]

    assert in_flow(mode, body) == [(1, None), ([], 1), ("called", 1), 3, "1", 1]


def test_a_kept_result_of_the_branch_serves_again(mode):
    calls = []

    def slow(found):
        calls.append(found)
        return found * 2

    made = task(mode.function(slow), cache_policy=INPUTS, persist_result=True)
    key = uuid4().hex

    def body():
        return route(key, otherwise(made)).result()

    assert in_flow(mode, body) == in_flow(mode, body) == key * 2
    assert calls == [key]


def test_it_does_not_wait_for_its_upstream(mode):
    """The flow goes on: what the upstream waits for comes after the route in the flow's code."""
    import threading

    gate = threading.Event()

    def slow():
        assert gate.wait(30)
        return {"confidence": 1, "drug": "x"}

    def body():
        routed = by_confidence(mode, task(slow).submit())
        other = task(gate.set, name="open").submit()
        other.wait()
        return routed.result()

    assert in_flow(mode, body) == "report on x"
