"""`quorum` and `vote` in a plan: as they are written, refused and run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from prefect_resilience import ConfigurationError, ErrorContext, NoQuorum
from prefect_resilience.graphs.plans.actions import Actions
from prefect_resilience.graphs.plans.builtin import run_quorum, run_vote
from prefect_resilience.graphs.plans.edge.nodes import TaskFactory
from prefect_resilience.graphs.plans.model import Plan
from prefect_resilience.graphs.plans.reading.mistakes import PlanError
from prefect_resilience.graphs.plans.reading.reading import read_plan
from tests.graphs.plans.ran import ran

Answer = dict[str, Any]


def judge(label: str) -> Callable[[str], Answer]:
    def said(text: str) -> Answer:
        return {"label": label, "why": text}

    return said


def broken(text: str) -> Answer:
    raise ConnectionError(text)


def other(number: int) -> int:
    return number


def ballot(ballot: str) -> str:
    return ballot


def handler(text: str, error: ErrorContext | None) -> Answer:
    return {"label": error.category.value if error else None, "why": text}


ACTIONS: dict[str, Callable[..., Any]] = {
    "good": judge("good"),
    "fine": judge("good"),
    "bad": judge("bad"),
    "broken": broken,
    "handler": handler,
    "other": other,
}


def node(**fields: Any) -> dict[str, Any]:
    return {"id": "verdict", "input": {"text": "hi"}, **fields}


def mistakes(**fields: Any) -> list[str]:
    with pytest.raises(PlanError) as refused:
        read_plan({"tasks": [node(**fields)]}, actions=TaskFactory(Actions.of(ACTIONS)))
    return [str(one) for one in refused.value.mistakes]


ALL = ["good", "fine", "bad"]


def test_the_two_ways_to_write_it_are_one() -> None:
    short = Plan(tasks=[node(quorum={"of": ALL, "need": 2, "key": "label"})])
    long = Plan(
        tasks=[
            {
                "id": "verdict",
                "type": "quorum",
                "input": {"of": ALL, "need": 2, "key": "label", "input": {"text": "hi"}},
            }
        ]
    )
    assert short == long
    thrice = Plan(tasks=[node(type="good", quorum={"times": 3})]).tasks[0]
    assert (thrice.type, thrice.input) == ("quorum", {"of": ["good"] * 3, "input": {"text": "hi"}})
    assert not short.check(Actions.of(ACTIONS))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"quorum": 2}, 'tasks[0].quorum: write an object such as {"of": ["first"'),
        ({"quorum": {"of": ALL, "least": 2}}, "tasks[0].quorum: write an object"),
        ({"type": "good", "quorum": {"of": ALL}}, "tasks[0].quorum: write 'of' with the actions to call"),
        ({"quorum": {"times": 3}}, "tasks[0].quorum: write 'of' with the actions to call"),
        (
            {"type": "good", "quorum": {"times": 0}},
            "tasks[0].quorum.times: write how many times to call 'good'",
        ),
        ({"quorum": {"of": ["godo", "bad"]}}, "tasks[0].quorum.of[0]: unknown action 'godo'; did you mean"),
        ({"quorum": {"of": []}}, "tasks[0].quorum.of: write the names of the actions to call"),
        ({"quorum": {"of": [1]}}, "tasks[0].quorum.of[0]: write the name of an action, not 1"),
        ({"quorum": {"of": ALL, "need": 4}}, "tasks[0].quorum.need: write a whole number from 1 to 3, not 4"),
        ({"quorum": {"of": ALL, "need": True}}, "tasks[0].quorum.need: write a whole number"),
        ({"quorum": {"of": ALL, "key": "a..b"}}, "tasks[0].quorum.key: "),
        ({"quorum": {"of": ["other"]}}, "tasks[0].input.text: 'text' is not an input of 'other'"),
        ({"quorum": {"of": ["other"]}}, "tasks[0].input: 'other' needs 'number': write it in the input"),
        ({"type": "vote", "input": {"answers": [1], "need": 2}}, "tasks[0].input.need: write a whole number"),
    ],
)
def test_mistakes_stand_in_their_place(fields: dict[str, Any], said: str) -> None:
    assert any(one.startswith(said) for one in mistakes(**fields)), mistakes(**fields)


def test_answers_that_are_there_are_counted() -> None:
    assert run_vote([None, "a", "b", "a"], need=2) == "a"
    assert run_vote([{"k": 1}, {"k": True}, {"k": 1, "more": 2}], key="k") == {"k": 1}
    with pytest.raises(NoQuorum, match="2"):
        run_vote(["a", "b", None])
    with pytest.raises(ConfigurationError, match="elsewhere call quorum"):
        run_quorum(ALL)


def test_an_action_of_ones_own_may_be_called_vote() -> None:
    own = Actions.of({"vote": ballot})
    assert not Plan(tasks=[{"id": "a", "type": "vote", "input": {"ballot": "x"}}]).check(own)


@pytest.mark.smoke
@pytest.mark.api
def test_a_quorum_runs_each_action_as_a_task_run_of_its_own() -> None:
    done = ran({"tasks": [node(quorum={"of": ["broken", *ALL], "need": 2, "key": "label"})]}, actions=ACTIONS)
    assert done.result.outputs == {"verdict": {"label": "good", "why": "hi"}}


@pytest.mark.requirement("000.25")
@pytest.mark.api
def test_handlers_of_an_error_vote_on_it() -> None:
    handlers: dict[str, Any] = {"id": "decide", "handles_error": ["first"], "input": {"text": "x"}}
    handlers["quorum"] = {"of": ["handler", "handler", "broken"], "key": "label"}
    tasks = [{"id": "first", "type": "broken", "input": {"text": "down"}}, handlers]
    done = ran({"tasks": tasks}, actions=ACTIONS)
    assert done.result.outputs["decide"]["label"] == "network"


@pytest.mark.api
def test_a_vote_over_nodes_of_which_one_failed() -> None:
    """What failed is no answer, and too few that agree are an error with the votes."""
    asked = [{"id": f"n{i}", "type": name, "input": {"text": "x"}} for i, name in enumerate([*ALL, "broken"])]
    vote: dict[str, Any] = {
        "id": "vote",
        "type": "vote",
        "depends_on": [one["id"] for one in asked],
        "input": {"answers": [f"{{{{n{i}.output}}}}" for i in range(4)], "need": 2, "key": "label"},
    }
    rescue = {"id": "rescue", "type": "good", "handles_error": ["n3"], "input": {"text": "y"}}
    done = ran({"tasks": [*asked, vote, rescue]}, actions=ACTIONS)
    assert done.result.outputs["vote"]["label"] == "good"
    vote["input"] = {**vote["input"], "need": 3}
    failed = ran({"tasks": [*asked, vote, rescue]}, actions=ACTIONS).result.nodes["vote"].error
    assert failed is not None
    assert "good" in str(failed.message)
