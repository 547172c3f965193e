"""The corners of the schedule, one by one."""

import pytest

from prefect_resilience import ConfigurationError
from prefect_resilience.graphs.plans.model import Node
from prefect_resilience.graphs.plans.schedule import MOST, Ended, Schedule, ScheduleStep, Skip
from tests.graphs.plans.plan_builders import ended, node, play


@pytest.mark.requirement("000.21")
def test_independent_branches_go_on_after_a_failure() -> None:
    course = play([node("a"), node("b"), node("c", "a"), node("d", "b")], {"a": ended("a", fails=True)})
    assert course.status == {"a": "failed", "b": "succeeded", "c": "skipped", "d": "succeeded"}
    assert course.reasons == {"c": "none of its dependencies produced a value: a failed"}


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ("all_settled", "none of its dependencies produced a value: a failed, b was skipped"),
        ("all_success", "not all of its dependencies succeeded: a failed, b was skipped"),
        ("any_success", "none of its dependencies succeeded: a failed, b was skipped"),
        ("always", None),
    ],
)
def test_trigger_rules_when_nothing_produced_a_value(rule: str, reason: str | None) -> None:
    course = play([node("a"), node("b", "a"), node("c", "a", "b", rule=rule)], {"a": ended("a", fails=True)})
    assert course.reasons.get("c") == reason


def test_a_dependency_that_succeeded_is_not_among_those_that_did_not() -> None:
    plan = [node("a"), node("s"), node("c", "a", "s", rule="all_success")]
    reasons = play(plan, {"a": ended("a", fails=True)}).reasons
    assert reasons["c"] == "not all of its dependencies succeeded: a failed"


def test_any_success_starts_at_the_first_and_does_not_start_again() -> None:
    schedule = Schedule([node("a"), node("b"), node("c", "a", "b", rule="any_success")])
    assert schedule.start().ready == ("a", "b")
    assert schedule.settle("b", Ended(True)) == ScheduleStep(("c",))
    assert schedule.settle("c", Ended(True)) == ScheduleStep()
    assert schedule.settle("a", ended("a", fails=True)) == ScheduleStep()


@pytest.mark.requirement("000.12")
def test_a_handler_runs_when_its_node_fails_and_is_skipped_otherwise() -> None:
    nodes = [node("kg", on_failure="text"), node("text", handles_error="kg"), node("sum", "kg", "text")]
    good = play(nodes)
    assert good.status == {"kg": "succeeded", "text": "skipped", "sum": "succeeded"}
    assert good.reasons == {"text": "no node routed to it: kg succeeded"}
    bad = play(nodes, {"kg": ended("kg", fails=True, to=["text"])})
    assert bad.status == {"kg": "failed", "text": "succeeded", "sum": "succeeded"}
    assert bad.started == ["kg", "text", "sum"]


def test_one_that_is_led_to_waits_for_its_dependencies_too() -> None:
    schedule = Schedule([node("a"), node("slow"), node("h", "slow", handles_error="a")])
    schedule.start()
    assert schedule.settle("a", ended("a", fails=True, to=["h"])) == ScheduleStep()
    assert schedule.settle("slow", Ended(True)) == ScheduleStep(("h",))


def test_one_that_nothing_leads_to_does_not_wait_for_its_dependencies() -> None:
    schedule = Schedule([node("a"), node("slow"), node("h", "slow", handles_error="a"), node("z", "h")])
    schedule.start()
    step = schedule.settle("a", Ended(True))
    assert [skip.node for skip in step.skipped] == ["h", "z"]


def test_a_failed_dependency_of_one_that_is_led_to_skips_it_and_takes_nothing_over() -> None:
    schedule = Schedule([node("a"), node("b"), node("h", "b", handles_error="a")])
    schedule.start()
    schedule.settle("b", ended("b", fails=True))
    step = schedule.settle("a", ended("a", fails=True, to=["h"]))
    assert step.skipped == (Skip("h", "none of its dependencies produced a value: b failed"),)
    assert schedule.took_over("a") == ()


def test_led_to_twice_it_runs_once_and_as_soon_as_the_first_leads() -> None:
    schedule = Schedule([node("a", on_failure="tell"), node("b", on_failure="tell"), node("tell")])
    schedule.start()
    assert schedule.settle("b", ended("b", fails=True, to=["tell"])) == ScheduleStep(("tell",))
    assert schedule.settle("a", ended("a", fails=True, to=["tell"])) == ScheduleStep()
    seen = schedule.error_seen_by("tell")
    assert seen is not None
    assert seen.node_id == "b"


def test_a_skip_names_where_its_router_led() -> None:
    nodes = [node("a", on_success="b", on_failure="c"), node("b"), node("c")]
    course = play(nodes, {"a": ended("a", to=["c"])})
    assert course.reasons == {"b": "no node routed to it: a succeeded and routed to c"}


def test_a_long_reason_names_five() -> None:
    many = [f"n{i}" for i in range(9)]
    course = play([*map(node, many), node("z", *many)], {name: ended(name, fails=True) for name in many})
    assert course.reasons["z"].endswith("n3 failed, n4 failed and 4 more")


@pytest.mark.parametrize("size", [20_000])
def test_a_long_chain_of_skips_is_one_step(size: int) -> None:
    chain = [Node.model_construct(**node("n0").__dict__)]
    for i in range(1, size):
        fields = {**chain[0].__dict__, "id": f"n{i}", "depends_on": (f"n{i - 1}",)}
        chain.append(Node.model_construct(**fields))
    schedule = Schedule(chain)
    schedule.start()
    assert len(schedule.settle("n0", ended("n0", fails=True)).skipped) == size - 1
    seen = schedule.error_seen_by(f"n{size - 1}")
    assert seen is not None
    assert seen.node_id == "n0"


class TestLastError:
    @pytest.mark.requirement("002.11")
    def test_a_success_clears_it_and_a_skipped_node_passes_it_on(self) -> None:
        nodes = [
            node("a", on_failure="h"),
            node("h"),
            node("after", "h"),
            node("skipped", "a"),
            node("last", "skipped", rule="always"),
        ]
        seen = play(nodes, {"a": ended("a", fails=True, to=["h"])}).seen
        assert seen == {"a": None, "h": "a", "after": None, "skipped": "a", "last": "a"}

    def test_where_one_success_is_enough_the_others_are_not_looked_at(self) -> None:
        schedule = Schedule([node("a"), node("b"), node("e", "a", "b", rule="any_success")])
        schedule.start()
        schedule.settle("b", ended("b", fails=True))
        assert schedule.settle("a", Ended(True)) == ScheduleStep(("e",))
        assert schedule.error_seen_by("e") is None

    def test_a_crowd_of_failures_is_remembered_up_to_a_bound(self) -> None:
        many = [f"n{i}" for i in range(MOST + 20)]
        nodes = [*map(node, many), node("x", *many, rule="always"), node("y", "x", many[-1], rule="always")]
        nodes += [node("p", *many, rule="all_success"), node("q", "p", *many[3:], rule="always")]
        seen = play(nodes, {name: ended(name, fails=True) for name in many}).seen
        assert (seen["x"], seen["q"]) == ("n0", "n0")
        assert seen["y"] == many[-1]  # too many for all of them to be remembered as healed


class TestAdd:
    def started(self, *nodes: Node) -> Schedule:
        schedule = Schedule(nodes)
        schedule.start()
        return schedule

    def test_added_nodes_follow_the_same_rules(self) -> None:
        schedule = self.started(node("a"))
        first = node("first", "a", "free", rule="any_success")
        step = schedule.add([node("n", "a"), node("free"), node("h", handles_error="n"), first], by="a")
        assert step == ScheduleStep(("free",))
        assert schedule.settle("free", Ended(True)) == ScheduleStep(("first",))
        assert schedule.settle("a", Ended(True)) == ScheduleStep(("n",))
        assert schedule.settle("n", ended("n", fails=True, to=["h"])) == ScheduleStep(("h",))

    def test_they_may_come_after_nodes_that_are_over(self) -> None:
        schedule = self.started(node("a"), node("b"), node("c", "b"))
        schedule.settle("a", Ended(True))
        schedule.settle("b", ended("b", fails=True))
        late = [
            node("n", "a", "b"),
            node("h", handles_error="b"),
            node("m", "b"),
            node("k", handles_error="a"),
        ]
        step = schedule.add(late, by="a")
        assert step.ready == ("n",)
        assert step.skipped == (
            Skip("h", "no node routed to it: b failed"),
            Skip("m", "none of its dependencies produced a value: b failed"),
            Skip("k", "no node routed to it: a succeeded"),
        )

    @pytest.mark.parametrize(
        ("nodes", "message"),
        [
            ([node("n", on_success="done")], "the added node 'n' routes to 'done', which has started"),
            ([node("n", on_success="b")], "the added node 'n' routes to 'b', which runs without a route"),
            ([node("n", "m"), node("m", "n")], "'a' adds nodes that wait for each other: n -> m -> n"),
            (
                [node("n", "m"), node("m", handles_error="n")],
                "'a' adds nodes that wait for each other: n -> m -> n",
            ),
            ([node("n", "h", on_failure="h")], "'a' adds nodes that wait for each other: "),
            ([node("n", "k", on_failure="h")], "'a' adds nodes that wait for each other: "),
        ],
    )
    def test_what_cannot_be_added_is_refused_whole(self, nodes: list[Node], message: str) -> None:
        plan = [
            node("a", on_failure="h"),
            node("h"),
            node("k", "h"),
            node("done"),
            node("b", "a"),
            node("c", "b"),
        ]
        schedule = self.started(*plan)
        schedule.settle("done", Ended(True))
        with pytest.raises(ConfigurationError) as refusal:
            schedule.add(nodes, by="a")
        assert str(refusal.value).startswith(message)
        assert schedule.settle("a", Ended(True)).ready == ("b",)

    def test_a_way_through_the_plan_that_is_no_circle_is_taken(self) -> None:
        schedule = self.started(node("a", on_failure="h"), node("h"), node("b", "a"), node("c", "b"))
        assert schedule.add([node("n", on_success="h"), node("m", "h", "c")], by="a") == ScheduleStep(("n",))


class TestStop:
    def test_all_that_has_not_started_is_skipped(self) -> None:
        schedule = Schedule([node("a"), node("b", "a"), node("c", "b", rule="always")])
        schedule.start()
        assert schedule.stop("out of time").skipped == (Skip("b", "out of time"), Skip("c", "out of time"))
        assert schedule.settle("a", Ended(True)) == ScheduleStep()

    def test_what_is_skipped_for_it_took_nothing_over(self) -> None:
        schedule = Schedule([node("a"), node("w"), node("h", "w", handles_error="a")])
        schedule.start()
        schedule.settle("a", ended("a", fails=True, to=["h"]))
        assert schedule.took_over("a") == ("h",)
        schedule.stop("out of time")
        assert schedule.took_over("a") == ()

    def test_what_is_added_later_is_skipped_too(self) -> None:
        schedule = Schedule([node("a")])
        schedule.start()
        schedule.stop("out of time")
        assert schedule.add([node("n")], by="a") == ScheduleStep(skipped=(Skip("n", "out of time"),))
