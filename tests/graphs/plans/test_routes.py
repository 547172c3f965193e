# ruff: noqa: E501 - what is said stands whole in its line
"""Where a node leads, and the sentence that says why."""

from typing import Any

import pytest

from prefect_resilience import Condition, ErrorCategory, failed, path, succeeded
from prefect_resilience.graphs.plans.model import Node, PlanTransition
from prefect_resilience.graphs.plans.routes import Routing, about_errors, routes, state_of
from tests.graphs.plans.plan_builders import NOW, error_at, node

SURE = path("confidence") >= 0.9
LAST = path("state._last_error")


def decided(one: Node, output: Any = None, *, fails: bool = False, **more: Any) -> Routing:
    return routes(one, output=output, error=error_at(one.id) if fails else None, now=NOW, **more)


def error_code(code: str) -> Condition:
    return path("state._last_error.code") == code


THERE = Condition.model_validate({"type": "exists", "path": "n", "source_task": "other"})
TWO_WAYS = [PlanTransition(to="w", condition=error_code("429")), PlanTransition(to="go")]


@pytest.mark.parametrize(
    ("fields", "output", "more", "to", "why"),
    [
        ({"on_success": "b", "on_failure": "c"}, {"x": 1}, {"handlers": ("h",)}, ("b",), "it succeeded: on_success"),
        ({"on_failure": "c"}, None, {}, (), ""),
        ({"condition": SURE, "on_success": "b"}, {"confidence": 0.1}, {}, (), "confidence is 0.1, not >= 0.9: no node to run next"),
        ({"transitions": TWO_WAYS}, {}, {}, ("go",), "transition to go"),
        ({"on_success": "b"}, None, {"fails": True}, (), "it failed (503): no node to run next"),
        ({"condition": ~succeeded(), "on_success": "b"}, None, {"fails": True}, ("b",), "it failed (503): on_success, because the condition holds"),
        ({"condition": SURE, "on_success": "b", "on_failure": ("text", "tell")}, None, {"fails": True, "handlers": ("text", "other")}, ("text", "tell", "other"), "it failed (503): on_failure and handled by text, other"),
        ({"condition": THERE, "on_success": "b", "on_failure": "c"}, None, {"errors": {"other": error_at("other")}}, ("c",), None),
    ],
)  # fmt: skip
def test_where_it_leads_and_why(
    fields: dict[str, Any], output: Any, more: dict[str, Any], to: tuple[str, ...], why: str | None
) -> None:
    routing = decided(node("a", **fields), output, **more)
    error = error_at("a") if more.get("fails") else None
    assert routing == Routing(to, routing.why if why is None else why, error)


class TestAfterSuccess:
    @pytest.mark.requirement("000.14")
    @pytest.mark.parametrize(
        ("confidence", "to", "why"),
        [
            (0.95, ("b",), "confidence is 0.95, >= 0.9: on_success"),
            (0.71, ("c", "d"), "confidence is 0.71, not >= 0.9: on_failure"),
            ("0.95", ("c", "d"), "confidence is '0.95', not >= 0.9: on_failure"),
        ],
    )
    def test_its_condition_decides(self, confidence: Any, to: tuple[str, ...], why: str) -> None:
        one = node("a", condition=SURE, on_success="b", on_failure=("c", "d"))
        assert decided(one, {"confidence": confidence}) == Routing(to, why, None)

    @pytest.mark.requirement("000.13")
    def test_a_weak_answer_leads_to_no_handler_of_errors(self) -> None:
        one = node("a", condition=SURE, on_success="b", on_failure=("mend", "review"))
        routing = decided(one, {"confidence": 0.1}, handlers=("mend",))
        assert routing == Routing(("review",), "confidence is 0.1, not >= 0.9: on_failure", None)
        assert decided(one, fails=True, handlers=("mend",)).to == ("mend", "review")
        alone = node("a", condition=SURE, on_failure="mend")
        why = "confidence is 0.1, not >= 0.9: on_failure has only error handlers"
        assert decided(alone, {"confidence": 0.1}, handlers=("mend",)) == Routing((), why, None)

    @pytest.mark.requirement("000.06")
    def test_a_condition_may_look_at_other_nodes_and_at_state_and_inputs(self) -> None:
        other = Condition.model_validate(
            {"type": "comparison", "operator": "gt", "path": "n", "value": 3, "source_task": "other"}
        )
        both = other & (path("inputs.region") == "eu") & (path("state._plan_error.code") == "503")
        one = node("a", condition=both, on_success="b", on_failure="c")
        scope = {"inputs": {"region": "eu"}, "errors": {"third": error_at("third")}}
        assert decided(one, {}, outputs={"other": {"n": 4}}, **scope).to == ("b",)
        assert decided(one, {}, outputs={"other": {"n": 3}}, **scope).to == ("c",)

    @pytest.mark.requirement("000.02")
    def test_a_condition_may_ask_whether_another_node_failed(self) -> None:
        asks = Condition.model_validate(
            {"type": "error_catch", "operator": "error_occurred", "source_task": "other"}
        )
        one = node("a", condition=asks, on_success="b", on_failure="c")
        assert decided(one, errors={"other": error_at("other")}).to == ("b",)
        assert decided(one, outputs={"other": 1}).to == ("c",)
        assert decided(one).to == ("c",)


class TestAfterFailure:
    @pytest.mark.requirement("002.10")
    def test_the_error_of_a_crashed_node_learns_its_action(self) -> None:
        bare = error_at("a").model_copy(update={"action_id": None})
        routing = routes(node("a"), output=None, error=bare, now=NOW)
        assert routing.error is not None
        assert routing.error.action_id == "step"
        other = error_at("a").model_copy(update={"action_id": "inner"})
        assert routes(node("a"), output=None, error=other, now=NOW).error == other

    @pytest.mark.requirement("002.30")
    @pytest.mark.parametrize(
        ("condition", "after_success", "after_failure"),
        [
            (~succeeded(), "c", "b"),
            (succeeded(), "b", "c"),
            (failed(category="unavailable"), "c", "b"),
            (failed(category="rate_limit") | failed(code="429"), "c", "c"),
            (LAST.exists(), "c", "b"),
            (error_code("503"), "c", "b"),
            (path("state._last_error.details.nothing") == 1, "c", "c"),
        ],
    )
    def test_a_condition_about_errors_decides_in_both_cases(
        self, condition: Condition, after_success: str, after_failure: str
    ) -> None:
        one = node("a", condition=condition, on_success="b", on_failure="c")
        assert decided(one, {}).to == (after_success,)
        assert decided(one, fails=True, handlers=("h",)).to == (after_failure, "h")


class TestTransitions:
    ways = (
        PlanTransition(to="last", priority=9),
        PlanTransition(to="high", priority=1, condition=SURE),
        PlanTransition(to="told", priority=1, condition=LAST.exists()),
    )

    @pytest.mark.requirement("002.06")
    @pytest.mark.parametrize(("confidence", "to"), [(0.95, "high"), (0.5, "last")])
    def test_the_first_by_priority_that_holds_is_taken(self, confidence: float, to: str) -> None:
        one = node("a", on_success="also", transitions=self.ways)
        assert decided(one, {"confidence": confidence}).to == ("also", to)

    def test_after_a_failure_what_needs_an_output_does_not_hold(self) -> None:
        routing = decided(node("a", transitions=self.ways), fails=True)
        assert routing.to == ("told",)
        assert routing.why.endswith("; state._last_error exists: transition to told")


class TestWithoutAnAnswer:
    def test_the_node_fails_and_is_handled_as_a_failure(self) -> None:
        one = node("a", condition=SURE, on_success="b", on_failure="c")
        routing = decided(one, {"confidense": 1}, handlers=("h",))
        assert routing.to == ("c", "h")
        assert routing.error is not None
        assert (routing.error.category, routing.error.code) == (ErrorCategory.INVALID, "ConditionError")
        assert (routing.error.node_id, routing.error.timestamp) == ("a", NOW)
        assert routing.error.details == {"path": "confidence"}
        assert "did you mean 'confidense'" in routing.why

    def test_an_unanswered_transition_takes_back_on_success_and_is_not_asked_for_ever(self) -> None:
        ways = [PlanTransition(to="b", condition=SURE), PlanTransition(to="tell", condition=LAST.exists())]
        routing = decided(node("a", on_success="s", on_failure="f", transitions=ways), {})
        assert routing.to == ("f", "tell")
        assert routing.error is not None

    def test_secrets_stay_out_of_the_reason(self) -> None:
        one = node("a", condition=path("key") == "x", on_failure="b")
        assert "sk-ant" not in decided(one, {"key": "sk-ant-api03-" + "a" * 80}).why


def test_what_is_about_errors() -> None:
    assert about_errors(succeeded() & ~LAST.exists())
    assert about_errors(path("state._last_error['code']").exists())
    assert about_errors(path("state._plan_error.code") == "503")
    assert not about_errors(path("state._last_error_count").exists())
    assert not about_errors(succeeded() | SURE)


@pytest.mark.requirement("002.05")
def test_the_errors_in_the_state() -> None:
    assert state_of(None, {}) == {}
    others = {"a": error_at("a"), "b": error_at("b")}
    shown = state_of(error_at("a"), others)
    assert (shown["_last_error"]["code"], shown["_last_error"]["node_id"]) == ("503", "a")
    assert shown["_plan_error"]["node_id"] == "b", "the latest one, wherever it was"
    assert state_of(None, others).keys() == {"_plan_error"}
    assert state_of(error_at("a"), {})["_plan_error"]["node_id"] == "a"


@pytest.mark.requirement("002.06")
def test_a_transition_may_ask_for_an_error_anywhere_in_the_plan() -> None:
    ways = [
        PlanTransition(to="told", condition=path("state._plan_error.code") == "503"),
        PlanTransition(to="on"),
    ]
    one = node("a", transitions=ways)
    assert decided(one, 1, errors={"elsewhere": error_at("elsewhere")}).to == ("told",)
    assert decided(one, 1).to == ("on",)
    assert decided(one, fails=True, errors={"elsewhere": error_at("elsewhere")}).to == ("told",)
